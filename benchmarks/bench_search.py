"""The lazy Gaussian process: ``python benchmarks/bench_search.py [SEEDS]``.

Prints the CPU time to add a sample to a process of 250 to 2,000 samples, by a row of the factor and
by a factor made anew, and the slope of both in a logarithmic plot; then regret and CPU time of
searches of Branin (2 dimensions, 40 evaluations) and Hartmann-6 (6 dimensions, 60), medians over
seeds: lazy-gp one by one and five at once, random, Optuna's TPE where it is installed, and
scikit-learn's Gaussian process with expected improvement, refitted for every sample, where that is.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np

from ridgeline.study.search.gaussian_process import LazyGaussianProcess
from ridgeline.study.search.method import SEARCH_METHODS, Outcome
from ridgeline.study.search.space import SearchSpace
from ridgeline.study.study_file import Study

Function = Callable[[np.ndarray[Any, Any]], float]


def branin(u: np.ndarray[Any, Any]) -> float:
    """Branin-Hoo over the unit box."""
    x, y = 15 * u[0] - 5, 15 * u[1]
    bent = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return float(bent**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10)


_A = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14],
     [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)  # fmt: skip
_P = 1e-4 * np.array(
    [[1312, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991],
     [2348, 1451, 3522, 2883, 3047, 6650], [4047, 8828, 8732, 5743, 1091, 381]]
)  # fmt: skip


def hartmann6(u: np.ndarray[Any, Any]) -> float:
    """Hartmann-6 over the unit box."""
    weights = np.array([1.0, 1.2, 3.0, 3.2])
    return float(-(weights * np.exp(-(_A * (u - _P) ** 2).sum(axis=1))).sum())


PROBLEMS: dict[str, tuple[Function, int, int, float]] = {
    "Branin": (branin, 2, 40, 0.397887),
    "Hartmann-6": (hartmann6, 6, 60, -3.32237),
}


def times() -> None:
    """Print what a sample more costs."""
    rng = np.random.default_rng(0)
    print(f"{'samples':>8s} {'a row, ms':>10s} {'anew, ms':>10s} {'ratio':>7s}")
    logs = []
    for n in (250, 500, 1000, 2000):
        x = rng.random((n + 10, 6))
        process = LazyGaussianProcess(np.full(6, 0.5))
        for point in x[:n]:
            process.extend(point)
        start = time.process_time()
        for point in x[n:]:
            process.extend(point)
        row_s = (time.process_time() - start) / 10
        start = time.process_time()
        process.rebuild(np.full(6, 0.5), 1e-6)
        full_s = time.process_time() - start
        logs.append((math.log(n), math.log(row_s), math.log(full_s)))
        print(f"{n:8d} {1e3 * row_s:10.2f} {1e3 * full_s:10.1f} {full_s / row_s:7.0f}")
    at, rows, full = np.array(logs).T
    print(f"slope of a row {np.polyfit(at, rows, 1)[0]:.2f}, anew {np.polyfit(at, full, 1)[0]:.2f}")


def ours(name: str, parallel: int) -> Callable[[Function, int, int, int], float]:
    """Return the search by a method of ridgeline: function, dimensions, evaluations, seed."""

    def search(function: Function, d: int, count: int, seed: int) -> float:
        vary = {f"plan.x{i}": {"from": 0.0, "to": 1.0} for i in range(d)}
        study = {"kind": "study", "name": "s", "vary": vary, "search": {"objectives": {"f": "min"}}}
        method = SEARCH_METHODS[name](SearchSpace(Study.model_validate(study)), 1, seed)
        best = math.inf
        for _ in range(count // parallel):
            designs = method.ask(parallel)
            found = [function(np.array(design)) for design in designs]
            method.tell(designs, [Outcome((value,), feasible=True) for value in found])
            best = min(best, *found, math.inf)
        return best

    return search


def scikit_learn(function: Function, d: int, count: int, seed: int) -> float:
    """Search by scikit-learn's process: 2 (d + 1) random designs, then 2,000 candidates each."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    from ridgeline.study.search.methods.lazy_gp import expected_improvement

    rng = np.random.default_rng(seed)
    x = rng.random((2 * (d + 1), d))
    y = np.array([function(point) for point in x])
    while len(x) < count:
        kernel = Matern(np.full(d, 0.5), (0.05, 10.0), nu=2.5)
        process = GaussianProcessRegressor(kernel, alpha=1e-6, normalize_y=True).fit(x, y)
        around = x[int(np.argmin(y))] + 0.03 * rng.normal(size=(400, d))
        pool = np.clip(np.concatenate([rng.random((1600, d)), around]), 0.0, 1.0)
        means, deviations = process.predict(pool, return_std=True)
        best = pool[int(np.argmax(expected_improvement(means, deviations, float(y.min()))))]
        x, y = np.vstack([x, best]), np.append(y, function(best))
    return float(y.min())


def main() -> None:
    """Print everything."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    times()
    searches = {
        "lazy-gp": ours("lazy-gp", 1),
        "lazy-gp, 5 at once": ours("lazy-gp", 5),
        "random": ours("random", 1),
    }
    if find_spec("optuna"):
        searches["tpe"] = ours("tpe", 1)
    if find_spec("sklearn"):
        searches["scikit-learn"] = scikit_learn
    for problem, (function, d, count, least) in PROBLEMS.items():
        print(f"\n{problem}, {count} evaluations, {seeds} seeds")
        print(f"{'':20s} {'regret':>9s} {'(most)':>9s} {'CPU s':>9s}")
        for label, search in searches.items():
            start = time.process_time()
            regrets = [search(function, d, count, seed) - least for seed in range(seeds)]
            used_s = (time.process_time() - start) / seeds
            print(f"{label:20s} {median(regrets):9.4f} {max(regrets):9.4f} {used_s:9.2f}")


if __name__ == "__main__":
    main()
