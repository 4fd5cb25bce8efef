"""Network families: each is a schema of ``models/*.yaml`` that builds a forward graph.

A new family is one file here, named after it, with the decorator `base.family`; the file is
imported when a model of the family is loaded.
"""

from ridgeline.workload.families.base import FAMILIES, Network, family

__all__ = ["FAMILIES", "Network", "family"]
