"""The same random cases in every run, so that a change is judged by what it changes.

``pytest --hypothesis-profile=explore`` (``make explore``) draws new ones.
"""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile("repeatable")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Two processes that compile one kernel for two signatures at once can overwrite each other's
    # entry in numba's cache: each worker has a cache of its own.
    base = os.environ.get("RIDGELINE_CACHE_DIR") or Path.home() / ".cache" / "ridgeline"
    os.environ["RIDGELINE_CACHE_DIR"] = str(Path(base, os.environ["PYTEST_XDIST_WORKER"]))
