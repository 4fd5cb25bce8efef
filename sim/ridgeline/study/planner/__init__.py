"""Plan search: branch and bound over all legal plans, the best ones simulated."""

from ridgeline.study.planner.frontier import search
from ridgeline.study.planner.result import SearchResult, SimulatedPlan

__all__ = ["SearchResult", "SimulatedPlan", "search"]
