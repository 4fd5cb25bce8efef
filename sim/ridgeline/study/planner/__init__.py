"""The best plan of a step: the whole legal space screened by a bound, the best of it replayed."""

from ridgeline.study.planner.found import SearchResult, Replay
from ridgeline.study.planner.search import search

__all__ = ["SearchResult", "Replay", "search"]
