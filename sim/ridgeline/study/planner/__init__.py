"""Plan search: branch and bound over all legal plans, the best ones simulated."""

from ridgeline.study.planner.search import search
from ridgeline.study.planner.search_result import Replay, SearchResult

__all__ = ["Replay", "SearchResult", "search"]
