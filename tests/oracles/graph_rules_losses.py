"""Numpy rules of losses (see `graph_interpreter`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.workload.graph import Op

Array = npt.NDArray[Any]
Shapes = list[tuple[int, ...]]


def _log_softmax(logits: Array, axis: int) -> Array:
    shifted = logits - logits.real.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def loss_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    (logits, labels), axis = inputs, int(dict(op.attrs)["axis"])
    logs = _log_softmax(logits, axis)
    picked = np.take_along_axis(logs, np.expand_dims(labels.real.astype(int), axis), axis)
    return [-picked.mean(), logs]


def loss_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    (d_loss, logs, labels), axis = inputs, int(dict(op.attrs)["axis"])
    one_hot = np.moveaxis(np.arange(logs.shape[axis]) == labels[..., None], -1, axis)
    return [d_loss * (np.exp(logs) - one_hot) / labels.size]


def bce_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    x, t = inputs
    return [(np.log(1 + np.exp(x)) - x * t).mean()]


def bce_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    d_loss, x, t = inputs
    return [d_loss * (1 / (1 + np.exp(-x)) - t) / x.size]


def smooth_l1_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    d = inputs[0] - inputs[1]
    size = np.where(d.real < 0, -d, d)
    return [np.where(size.real < 1, d * d / 2, size - 0.5).mean()]


def smooth_l1_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    d_loss, x, t = inputs
    return [d_loss * np.clip(x - t, -1, 1) / x.size]


# --- connectionist temporal classification: Graves et al., ICML 2006, equations 6 to 16


def _states(labels: Array, blank: int) -> tuple[list[int], list[bool]]:
    """Labels with blanks around them, and whether a state may be entered from two before."""
    states = [blank]
    for label in labels.real.astype(int):
        states += [int(label), blank]
    skips = [s > 1 and states[s] not in {blank, states[s - 2]} for s in range(len(states))]
    return states, skips


def _variables(probabilities: Array, states: list[int], skips: list[bool]) -> Array:
    """Forward variables [time, states]: probability of all paths to a state."""
    a = np.zeros((len(probabilities), len(states)), probabilities.dtype)
    a[0, :2] = probabilities[0, states[:2]]
    for t in range(1, len(a)):
        for s, label in enumerate(states):
            reach = a[t - 1, s]
            if s > 0:
                reach = reach + a[t - 1, s - 1]
            if skips[s]:
                reach = reach + a[t - 1, s - 2]
            a[t, s] = reach * probabilities[t, label]
    return a


def ctc_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    logits, labels = inputs
    logs = _log_softmax(logits, -1)
    blank, total, variables = logits.shape[-1] - 1, 0, []
    for sample, of_sample in zip(logs, labels, strict=True):
        a = _variables(np.exp(sample), *_states(of_sample, blank))
        variables.append(a)
        total = total - np.log(a[-1, -1] + a[-1, -2])
    return [total / len(logs), logs, np.array(variables)]


def ctc_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    d_loss, logs, variables, labels = inputs
    dx = np.exp(logs)
    for n, (sample, a, of_sample) in enumerate(zip(logs, variables, labels, strict=True)):
        states, _ = _states(of_sample, logs.shape[-1] - 1)
        probabilities = np.exp(sample)
        _, skips = _states(of_sample[::-1], logs.shape[-1] - 1)
        b = _variables(probabilities[::-1], states[::-1], skips)[::-1, ::-1]
        total = a[-1, -1] + a[-1, -2]
        for t in range(len(a)):
            for s, label in enumerate(states):
                dx[n, t, label] -= a[t, s] * b[t, s] / probabilities[t, label] / total
    return [d_loss * dx / len(logs)]


def _lattice(sample: Array, labels: Array) -> tuple[Array, Array, Array]:
    """Probabilities of blanks and of labels, and the forward variables of a transducer."""
    p = np.exp(_log_softmax(sample, -1))
    time, positions, _ = p.shape
    blanks, steps = p[:, :, -1], p[:, range(positions - 1), labels.real.astype(int)]
    a = np.zeros((time, positions), p.dtype)
    for t in range(time):
        for u in range(positions):
            start = 1.0 if t == u == 0 else 0.0
            before = a[t - 1, u] * blanks[t - 1, u] if t else 0.0
            below = a[t, u - 1] * steps[t, u - 1] if u else 0.0
            a[t, u] = start + before + below
    return blanks, steps, a


def transducer_forward(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    logits, labels = inputs
    total, variables = 0, []
    for sample, of_sample in zip(logits, labels, strict=True):
        blanks, _, a = _lattice(sample, of_sample)
        variables.append(a)
        total = total - np.log(a[-1, -1] * blanks[-1, -1])
    sums = np.log(np.exp(logits).sum(-1))
    return [total / len(logits), sums, np.array(variables)]


def transducer_gradient(op: Op, inputs: list[Array], shapes: Shapes) -> list[Array]:
    """By the share of all paths that pass each step of the lattice."""
    d_loss, logits, _, _, labels = inputs
    dx = np.zeros(logits.shape)
    for n, (sample, of_sample) in enumerate(zip(logits, labels, strict=True)):
        blanks, steps, a = _lattice(sample, of_sample)
        time, positions = a.shape
        b = np.zeros((time + 1, positions + 1))
        b[time, positions - 1] = 1.0
        shares = np.zeros(sample.shape)
        for t in range(time - 1, -1, -1):
            for u in range(positions - 1, -1, -1):
                stay = blanks[t, u] * b[t + 1, u]
                go = steps[t, u] * b[t, u + 1] if u < positions - 1 else 0.0
                b[t, u] = stay + go
                shares[t, u, -1] += a[t, u] * stay
                if u < positions - 1:
                    shares[t, u, int(of_sample[u].real)] += a[t, u] * go
        shares /= b[0, 0]
        dx[n] = np.exp(_log_softmax(sample, -1)) * shares.sum(-1, keepdims=True) - shares
    return [d_loss * dx / len(logits)]


FORWARD = {
    "loss": loss_forward,
    "bce-loss": bce_forward,
    "mse-loss": lambda op, inputs, shapes: [((inputs[0] - inputs[1]) ** 2).mean()],
    "smooth-l1-loss": smooth_l1_forward,
    "ctc-loss": ctc_forward,
    "transducer-loss": transducer_forward,
}
GRADIENT = {
    "loss": loss_gradient,
    "bce-loss": bce_gradient,
    "mse-loss": lambda op, x, shapes: [x[0] * 2 * (x[1] - x[2]) / x[1].size],
    "smooth-l1-loss": smooth_l1_gradient,
    "ctc-loss": ctc_gradient,
    "transducer-loss": transducer_gradient,
}
