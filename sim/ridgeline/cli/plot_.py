"""``ridgeline plot``: a figure of saved results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ridgeline.cli.number_options import Count
from ridgeline.cli.output import console, print_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOPOLOGY = "topology"
OP_GANTT = "op-gantt"


def plot_(
    kind: str,
    file: str,
    *,
    out: str,
    x: str | None = None,
    y: str | None = None,
    by: str | None = None,
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
        Figure of one result (simulated again from its manifest): roofline, timeline, time, energy,
        memory, tornado, utilisation or topology. Of one op: op-gantt (its tiles over the memory
        port, the buffers and the array) or utilisation (of every cell of the array). Of rows:
        time, energy or memory (bars), curve, pareto, choice or residuals. Of a scaling study:
        scaling or distributed-roofline. Of a network: topology.
    file
        Rows of a sweep (.csv, .parquet); or the JSON of ``ridgeline run --json``, ``scaling
        --json``, ``validate --json --rows``, ``gemm --json`` or ``conv --json``; or, for a
        topology, a network as ``ridgeline topology`` takes it.
    out
        File of the figure: .png, .svg or .pdf.
    x
        Column of the x axis of a curve, a Pareto front or a choice. Small values of a front are
        the best ones.
    y
        Column of the y axis. Small values of a front are the best ones, and of a choice unless the
        column is a rate.
    by
        Column that tells lines or bars apart, or several with commas between them; for a choice,
        first the column that is chosen between.
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

    axes = {"x": x, "y": y}
    with themed(theme):
        described = {"model": model, "cluster": cluster, "software": software}
        drawn = _draw(kind, file, axes, by, described, load, tiles)
    if file.endswith((".csv", ".parquet")):
        from ridgeline.report.figures.embedded import set_origin
        from ridgeline.study.verify import table_origin

        set_origin(drawn, table_origin(file, {"kind": kind, **axes, "by": by}))
    save(drawn, out)
    if json:
        print_json({"kind": kind, "file": file, "wrote": out})
    else:
        console().print(f"wrote {out}", soft_wrap=True)


def _draw(
    kind: str, file: str, axes: dict[str, str | None], by: str | None,
    files: dict[str, str | None], load: str | None, tiles: int | None,
) -> Axes:  # fmt: skip
    """Draw what a file is of."""
    from ridgeline.errors import ConfigError
    from ridgeline.report.figures.result import FIGURES
    from ridgeline.report.figures.rows import ROW_FIGURES
    from ridgeline.study.repeat import repeat
    from ridgeline.study.row_plots import draw_rows
    from ridgeline.study.row_values import flat_rows
    from ridgeline.study.scaling_figures import KINDS, draw

    if kind == TOPOLOGY and not file.endswith(".json"):
        return _topology(file, load)
    read = _read(file)
    if kind == OP_GANTT or (isinstance(read, dict) and "request" in read):
        return _of_op(kind, read, file, tiles)
    if kind in KINDS:
        return draw(kind, read, file=file)
    if kind == TOPOLOGY or (kind in FIGURES and isinstance(read, dict) and "manifest" in read):
        return repeat(read, **files, file=file, fold=kind != TOPOLOGY).plot(kind)
    known = (*FIGURES, *KINDS, TOPOLOGY, OP_GANTT)
    if kind in FIGURES and kind not in ROW_FIGURES:
        raise ConfigError(f"a {kind} is of one result, JSON of ridgeline run --json", file=file)
    return draw_rows(kind, flat_rows(read, file), file, axes, by, known)


def _of_op(kind: str, read: Any, file: str, tiles: int | None) -> Axes:
    """Draw one op, priced again from the request in its result."""
    from ridgeline.errors import ConfigError
    from ridgeline.kernels.single_op import repeat
    from ridgeline.report.figures.op import draw_op

    if not isinstance(read, dict) or not isinstance(read.get("request"), dict):
        raise ConfigError(
            f"{kind} is of one op, JSON of ridgeline gemm --json or conv --json", file=file
        )
    return draw_op(kind, repeat(read["request"]), tiles=tiles)


def _topology(where: str, load: str | None) -> Axes:
    """Draw a network that has a name, a file or is written inline."""
    from ridgeline.network.load import link_load
    from ridgeline.network.resolve import topology_of
    from ridgeline.report.figures.network import network

    topology = topology_of(where)
    return network(topology, None if load is None else link_load(topology, load))


def _read(file: str) -> Any:
    """Read a table, or whatever stands in a JSON file."""
    from ridgeline.config import read_text
    from ridgeline.study.sweep import plain_rows
    from ridgeline.workload.trace.json_files import read_json

    if not file.endswith(".json"):
        return plain_rows(file)
    return read_json(read_text(file, limit=2**28).encode(), file)
