"""ridgeline: how fast is this machine at training that network, at what energy, and what limits it?"""

from __future__ import annotations

__version__ = "0.1.0"
