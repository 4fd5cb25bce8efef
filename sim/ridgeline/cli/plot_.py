"""``ridgeline plot``: a figure of saved results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ridgeline.cli.number_options import Count
from ridgeline.cli.output import console, print_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOPOLOGY = "topology"


def plot_(
    kind: str,
    file: str,
    *,
    out: str,
    x: str | None = None,
    y: str | None = None,
    z: str | None = None,
    by: str | None = None,
    facet: str | None = None,
    columns: str | None = None,
    label: str | None = None,
    title: str | None = None,
    model: str | None = None,
    cluster: str | None = None,
    software: str | None = None,
    load: str | None = None,
    tiles: Count | None = None,
    theme: str = "screen",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Draw a figure of saved results: of one, of the rows of a sweep, of scaling, of validation.

    Parameters
    ----------
    kind
        Figure of one result (simulated again from its manifest): roofline, timeline, pipeline (all
        stages with messages), time, energy, memory, power, tornado, sobol (global sensitivity),
        utilisation or topology. Of one op: op-gantt (its tiles over the memory port, the buffers
        and the array) or utilisation (of every cell of the array). Of rows: time, energy or memory
        (bars), curve, pareto, choice, heatmap, parallel, sobol, residuals, hypervolume. Of scaling:
        scaling or distributed-roofline. Of a whole run: run or run-costs. Of a network: topology.
    file
        Rows of a sweep (.csv, .parquet); or the JSON of ``ridgeline run --json``, ``scaling
        --json``, ``validate --json --rows``, ``gemm --json`` or ``conv --json``; a YAML file of
        kind run; or, for a topology, a network as ``ridgeline topology`` takes it.
    out
        File of the figure: .png, .svg or .pdf.
    x
        Column of the x axis of a curve, a Pareto front, a choice or a heat map. Small values of a
        front are the best ones.
    y
        Column of the y axis. Small values of a front are the best ones, and of a choice unless the
        column is a rate. Of parallel coordinates the column of the colour, of Sobol indices the one
        whose variance is shared.
    z
        Column of the colours of a heat map.
    by
        Column that tells lines or bars apart, or several with commas between them; for a choice,
        first the column that is chosen between; for Sobol indices, the fields that vary.
    facet
        Column of a curve or a front, with a panel for each of its values.
    columns
        Columns of parallel coordinates, with commas between them.
    label
        Columns that name the points of a Pareto front, with commas between them.
    title
        Network, machine and software of rows, for the line below the title.
    model
        Model file of the result, if the model is not in the catalogue.
    cluster
        Machine file of the result, if the machine is not in the catalogue.
    software
        Stack file of the result, if the stack is not in the catalogue.
    load
        What the links of a topology carry, as in ``ridgeline topology --load``.
    tiles
        Number of tiles that op-gantt draws, from the first; by default at most 16.
    theme
        screen, or print (narrower and finer, for a column of a paper).
    json
        Print what was written as JSON.
    """
    from ridgeline.report.figures.result import save
    from ridgeline.report.figures.themes import theme as themed

    options = {
        "x": x, "y": y, "z": z, "by": by, "facet": facet, "columns": columns, "label": label,
        "title": title, "tiles": tiles,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    with themed(theme):
        described = {"model": model, "cluster": cluster, "software": software}
        drawn = _draw(kind, file, given, described, load)
    save(drawn, out)
    if json:
        print_json({"kind": kind, "file": file, "wrote": out})
    else:
        console().print(f"wrote {out}", soft_wrap=True)


def _draw(
    kind: str, file: str, options: dict[str, Any], files: dict[str, str | None], load: str | None
) -> Axes:
    """Draw what a file is of."""
    from ridgeline import plot
    from ridgeline.errors import ConfigError

    if kind == TOPOLOGY and not file.endswith(".json"):
        return _topology(file, load)
    if load is not None:
        raise ConfigError("is of a network, not of a saved result", field="--load")
    named = next((name for name, path in files.items() if path is not None), None)
    if named is None:
        return plot.draw(kind, file, **options)
    from ridgeline.study.repeat import repeat
    from ridgeline.study.row_plots import read

    plot.check_options(kind, options)
    found = read(file)
    if not plot.is_step(found):
        raise ConfigError("is of a saved result", file=file, field=f"--{named}")
    model, cluster, software = (files[name] for name in ("model", "cluster", "software"))
    result = repeat(
        found, model=model, cluster=cluster, software=software, file=file, fold=kind != TOPOLOGY
    )
    return plot.draw(kind, result, **options)


def _topology(where: str, load: str | None) -> Axes:
    """Draw a network that has a name, a file or is written inline."""
    from ridgeline.network.load import link_load
    from ridgeline.network.resolve import topology_of
    from ridgeline.report.figures.network import network

    topology = topology_of(where)
    return network(topology, None if load is None else link_load(topology, load))
