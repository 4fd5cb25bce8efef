"""Comparison figure: ratios to a baseline by every normalisation, with their ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ridgeline.report.figures.embedded import set_origin
from ridgeline.report.figures.style import GRID, INK, SERIES, SMALL, head, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PER_JOULE = "samples_per_j"
_GROUP_IN, _BAR_IN = 0.22, 0.24


def comparison_figure(saved: Mapping[str, Any], stamp: str = "", ax: Axes | None = None) -> Axes:
    """Draw each side over the baseline: a group of bars for each normalisation.

    Parameters
    ----------
    saved
        A comparison as `Comparison.to_dict` gives it.
    stamp
        Overridden rules, which stand in the figure.
    """
    names = dict(saved["normalisations"])
    ratios: Sequence[Mapping[str, Any]] = saved["ratios"]
    known = [name for name in names if any(r["ratios"][name] is not None for r in ratios)]
    sides = {side["side"]: side for side in saved["sides"]}
    baseline = sides[ratios[0]["baseline"]]

    def draw(axes: Axes) -> str:
        from matplotlib.patches import Patch

        height = 0.8 / len(ratios)
        ends = [1.0]
        for k, ratio in enumerate(ratios):
            for i, name in enumerate(known):
                value = ratio["ratios"][name]
                if value is None:
                    continue
                y = i - 0.4 + height * (k + 0.5)
                colour = SERIES[k % len(SERIES)]
                axes.barh(y, value, 0.86 * height, color=colour, gid=f"{ratio['side']} {name}")
                low, high = _ends(ratio, name, value)
                if high > low:
                    axes.errorbar(
                        value, y, xerr=[[value - low], [high - value]], color=INK, lw=1.0,
                        capsize=2.5, gid=f"range of {ratio['side']} {name}",
                    )  # fmt: skip
                axes.annotate(
                    f"{value:.3g}", (max(value, high), y), xytext=(4, 0), va="center",
                    textcoords="offset points", fontsize=SMALL, color=INK,
                )  # fmt: skip
                ends += [value, high]
        axes.axvline(1.0, color=INK, lw=0.9, ls=(0, (4, 2)))
        axes.set_yticks(range(len(known)), [names[name] for name in known])
        axes.set_ylim(len(known) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1.12 * max(ends))
        axes.grid(axis="x", color=GRID, lw=0.6)
        axes.set_xlabel(f"ratio to {baseline['side']} (dashed: equal)")
        handles = [
            Patch(color=SERIES[k % len(SERIES)], label=f"{r['side']}: {sides[r['side']]['name']}")
            for k, r in enumerate(ratios)
        ]
        title = str(saved["title"])
        head(axes, title, handles, columns=1)
        return _caption(saved, baseline, [name for name in names if name not in known])

    space = (1.0 + (_GROUP_IN + _BAR_IN * len(ratios)) * len(known), 1.55, 0.7, 1.6)
    made = sheet(space, draw, _stamp(saved, stamp), ax)
    if ax is None:
        origin = {
            k: saved[k] for k in ("sides", "ratios", "title", "scaling", "software_statement")
        }
        set_origin(made, {
            "simulated": True,
            "repeat": {"of": "comparison"},
            "comparison": {**origin, "normalisations": names, "stamp": stamp,
                           "accuracy_statement": saved["accuracy_statement"]},
            "states": {"scaling": saved["scaling"], "accuracy_note": saved["accuracy_statement"]},
        })  # fmt: skip
    return made


def _ends(ratio: Mapping[str, Any], name: str, value: float) -> tuple[float, float]:
    """Return the range of a ratio: area and price are known, so theirs is that of throughput."""
    found = ratio["range"]
    if isinstance(found, str):
        return value, value
    ends = found["energy_efficiency" if name == _PER_JOULE else "throughput"]
    scale = value / ratio["ratios"]["samples_per_s"] if name != _PER_JOULE else 1.0
    return scale * ends["p05"], scale * ends["p95"]


def _caption(saved: Mapping[str, Any], baseline: Mapping[str, Any], absent: Sequence[str]) -> str:
    said = [
        f"{baseline['side']}: {baseline['name']}, {baseline['samples_per_s']:.4g} samples/s,"
        f" {baseline['step_time_s'] * 1e3:.4g} ms a step."
    ]
    reasons = {r["range"] for r in saved["ratios"] if isinstance(r["range"], str)}
    if len(reasons) < len(saved["ratios"]):
        said.append("Whiskers: 5 to 95 %, both sides under the same draws.")
    said += sorted(reasons)
    said.append(f"{saved['scaling']}; {saved['accuracy_statement']}.".capitalize())
    software = saved.get("software_statement", "")
    if software:  # its first letter may be the label of a side
        said.append(f"{software[0].upper()}{software[1:]}.")
    if absent:
        names = ", ".join(saved["normalisations"][name] for name in absent)
        said.append(f"Not known of the machines: {names}.")
    return " ".join(said)


def _stamp(saved: Mapping[str, Any], stamp: str) -> str:
    hashes = [side["manifest"]["hash"] for side in saved["sides"] if "manifest" in side]
    manifests = f", manifests {', '.join(hashes)}" if hashes else ""
    overridden = f"{stamp.upper()[:10]}{stamp[10:]}; " if stamp else ""
    return f"{overridden}simulated, not measured; ridgeline {saved['ridgeline']}{manifests}"
