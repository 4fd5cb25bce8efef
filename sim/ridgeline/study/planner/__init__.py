"""Plan search: branch and bound over all legal plans, the best ones simulated."""

from ridgeline.study.planner.search import search
from ridgeline.study.planner.search_result import SearchResult, SimulatedPlan

__all__ = ["SearchResult", "SimulatedPlan", "search"]
