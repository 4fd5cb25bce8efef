"""The same random cases in every run, so that a change is judged by what it changes.

``pytest --hypothesis-profile=explore`` (``make explore``) draws new ones.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# How long a case takes to draw says how busy the machine is.
settings.register_profile(
    "repeatable", derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile("repeatable")

# numba keys a cached function on its own file, so an edit of what a compiled oracle calls elsewhere
# would not be seen: the cache is named by all of them, as the package's is by its sources.
_ORACLES = sorted((Path(__file__).parent / "oracles").glob("*.py"))
_NAMED = hashlib.blake2b(b"".join(path.read_bytes() for path in _ORACLES), digest_size=6)
_BASE = os.environ.get("RIDGELINE_CACHE_DIR") or Path.home() / ".cache" / "ridgeline"
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers have the environment of who starts them
    os.environ["RIDGELINE_CACHE_DIR"] = str(Path(_BASE, "tests", _NAMED.hexdigest()))
