"""A lazy Gaussian process: its Cholesky factor grows by a row for every new sample.

With K of n samples factored as L L', one more sample appends a row: solve L q = p, where p is the
covariance of the new sample with the others, and the new row is (q', sqrt(c - q'q)). That costs
O(n^2), where factoring anew costs O(n^3). Hyperparameters are held in between (R. Ram et al.,
"Scalable Hyperparameter Optimization with Lazy Gaussian Processes", MLHPC 2019, arXiv:2001.05726).
The factor depends on where samples are, not on what was found there, so all objectives share it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError

Floats = npt.NDArray[np.float64]
_SQRT5 = float(np.sqrt(5.0))
_BLOCK = 64  # rows that are solved for together
_LEAST_SCALE = 1e-12  # of values that are all equal


class LazyGaussianProcess:
    """A Gaussian process with a Matern 5/2 covariance of unit variance, and a nugget.

    The variance of the values is estimated from them, so it needs no parameter.

    Parameters
    ----------
    length_scales
        One a dimension, in the units of the coordinates.
    nugget
        Variance of noise, as a share of the variance of the values; more than 0.

    Raises
    ------
    RidgelineError
        If a length scale or the nugget is not more than 0.
    """

    def __init__(self, length_scales: npt.ArrayLike, nugget: float = 1e-6) -> None:
        self.length_scales: Floats = np.atleast_1d(np.asarray(length_scales, np.float64))
        if not (self.length_scales > 0).all() or not nugget > 0:
            raise RidgelineError("length scales and the nugget of a Gaussian process exceed 0")
        self.nugget = float(nugget)
        self._n = 0
        self._points = np.empty((0, len(self.length_scales)))
        self._factor = np.empty((0, 0))

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        return f"<LazyGaussianProcess of {self._n} samples in {len(self.length_scales)} dimensions>"

    @property
    def points(self) -> Floats:
        """Coordinates of the samples, (n, dimensions)."""
        return self._points[: self._n]

    @property
    def factor(self) -> Floats:
        """Lower Cholesky factor of the covariance of the samples, (n, n)."""
        return self._factor[: self._n, : self._n]

    def extend(self, point: npt.ArrayLike) -> None:
        """Add a sample: the factor grows by a row, in O(n^2).

        Raises
        ------
        RidgelineError
            If the covariance with this sample is not positive definite to rounding.
        """
        where = np.asarray(point, np.float64)
        n = self._n
        self._reserve(n + 1)
        row = self.covariance(where[None, :], self._points[:n])[0]
        row = solve_lower(self.factor, row[:, None])[:, 0]
        pivot = 1.0 + self.nugget - float(row @ row)
        if not pivot > 0:
            raise RidgelineError(
                f"sample {n + 1} repeats others to rounding: a larger nugget than {self.nugget:g}"
                " is needed"
            )
        self._factor[n, :n] = row
        self._factor[n, n] = np.sqrt(pivot)
        self._points[n] = where
        self._n = n + 1

    def rebuild(self, length_scales: npt.ArrayLike, nugget: float) -> None:
        """Take other hyperparameters, and factor the covariance of all samples anew, in O(n^3)."""
        n, points = self._n, self.points.copy()
        fresh = LazyGaussianProcess(length_scales, nugget)
        self.length_scales, self.nugget = fresh.length_scales, fresh.nugget
        if n:
            self._factor[:n, :n] = np.linalg.cholesky(self._full(points))

    def posterior(self, points: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Return means and standard deviations of the latent values at points.

        Parameters
        ----------
        points
            (m, dimensions).
        values
            What was found at the first n samples, (n, outputs); the others do not count.

        Returns
        -------
        tuple of arrays
            Each (m, outputs).
        """
        n = len(values)
        centre: Floats = values.mean(axis=0)
        # One pass over the factor for the points and the values. The factor of the first samples is
        # the first part of the whole.
        both = np.concatenate([self.covariance(self.points[:n], points), values - centre], axis=1)
        solved = solve_lower(self.factor[:n, :n], both)
        across, weights = solved[:, : len(points)], solved[:, len(points) :]
        scale = np.sqrt(np.maximum((weights**2).mean(axis=0), _LEAST_SCALE))
        variance = np.maximum(1.0 - (across**2).sum(axis=0), 0.0)
        return centre + across.T @ weights, np.sqrt(variance)[:, None] * scale

    def covariance(self, a: Floats, b: Floats) -> Floats:
        """Return the covariance between two sets of points, without the nugget: (len a, len b)."""
        a, b = a / self.length_scales, b / self.length_scales
        squared = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2.0 * a @ b.T
        r = _SQRT5 * np.sqrt(np.maximum(squared, 0.0))
        return np.asarray((1.0 + r + r * r / 3.0) * np.exp(-r))

    def _full(self, points: Floats) -> Floats:
        full = self.covariance(points, points)
        full[np.diag_indices(len(points))] = 1.0 + self.nugget
        return full

    def _reserve(self, n: int) -> None:
        """Make room for n samples: at least twice what there was, so that copies are rare."""
        room = len(self._points)
        if n <= room:
            return
        room = max(n, 2 * room, 64)
        factor, points = np.zeros((room, room)), np.empty((room, self._points.shape[1]))
        factor[: self._n, : self._n] = self.factor
        points[: self._n] = self.points
        self._factor, self._points = factor, points


def log_likelihood(points: Floats, values: Floats, length_scales: Floats, nugget: float) -> float:
    """Return the log likelihood of values, (n, outputs), with the best variance of each output.

    Constants that no hyperparameter changes are left out.
    """
    process = LazyGaussianProcess(length_scales, nugget)
    factor = np.asarray(np.linalg.cholesky(process._full(points)), np.float64)
    solved = solve_lower(factor, np.asarray(values - values.mean(axis=0), np.float64))
    variances = np.maximum((solved**2).mean(axis=0), _LEAST_SCALE)
    half_log_determinant = np.log(np.diag(factor)).sum()
    n, outputs = values.shape
    return float(-0.5 * n * np.log(variances).sum() - outputs * half_log_determinant)


def fitted(points: Floats, values: Floats, groups: npt.NDArray[np.int64]) -> tuple[Floats, float]:
    """Return length scales and a nugget of nearly the greatest posterior density.

    Length scales have a log-normal prior around half the unit box. They are found from a grid of
    equal ones, by doubling and halving one group at a time.

    Parameters
    ----------
    points, values
        Samples, (n, dimensions) and (n, outputs).
    groups
        Dimensions of equal number share a length scale: those of one unordered field.
    """

    def density(logs: Floats, nugget: float) -> float:
        prior = 0.5 * float((((logs - np.log(0.5)) / 1.0) ** 2).sum())
        return log_likelihood(points, values, np.exp(logs)[groups], nugget) - prior

    many = int(groups.max()) + 1
    starts = [
        (np.full(many, np.log(scale)), nugget)
        for scale in (0.1, 0.2, 0.4, 0.8, 1.6)
        for nugget in _NUGGETS
    ]
    best, (logs, nugget) = max(
        ((density(*start), start) for start in starts), key=lambda found: found[0]
    )
    step = np.log(2.0)
    for _ in range(_ROUNDS):
        for group in range(many):
            for change in (step, -step):
                moved = logs.copy()
                moved[group] += change
                if (found := density(moved, nugget)) > best:
                    best, logs = found, moved
                    break
        step /= 1.5
    return np.exp(logs)[groups], nugget


_NUGGETS = (1e-6, 1e-4, 1e-2)
_ROUNDS = 4


def solve_lower(factor: Floats, right: Floats) -> Floats:
    """Return the solution of L x = b for lower triangular L, (n, n), and several b, (n, k).

    In blocks, so that nearly all of the work is products of matrices: O(n^2 k).
    """
    solved = right.copy()
    for first in range(0, len(factor), _BLOCK):
        block = slice(first, first + _BLOCK)
        solved[block] -= factor[block, :first] @ solved[:first]
        solved[block] = np.linalg.solve(factor[block, block], solved[block])
    return solved
