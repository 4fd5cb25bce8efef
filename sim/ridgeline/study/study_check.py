"""Checks the values of a study against the files that they go into, before anything is simulated.

Each value is put alone into the first point of the study, which is loaded, not simulated. A field
that is not there, or a value of the wrong type or unit, is the study's mistake. What two fields do
not allow together is found later, point by point: it may be what the study wants to know.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.config import Document, Source, read_yaml
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.study.collective_point import AnyPoint
from ridgeline.study.columns import parse_formula, resolve
from ridgeline.study.parallel_run import row_of
from ridgeline.study.study_file import Row, Study, ValueSpan, axes_of

MAX_CHECKED = 500
"""Values of one field that are checked; further ones are of the same kind, or fail as points."""


def check_values(path: Source, study: Study) -> None:
    """Raise ConfigError at the line of the first value that its field cannot take."""
    document = read_yaml(path)
    is_searched = study.search is not None
    if is_searched:
        study = study.corners
    first = next(study.combinations())
    try:
        if not is_searched and next(study.points(), None) is None:
            raise ConfigError("these conditions leave no point")
    except ConfigError as error:
        raise document.error(error.message, ("where",)) from error
    base = study.base
    for place, name, values in axes_of(study):
        if isinstance(values, ValueSpan):
            for end, value in (("from", values.at(0.0)), ("to", values.at(1.0))):
                _check(document, (*place, end), base.with_values({**first, name: value}), name)
            continue
        for i, value in enumerate(values[:MAX_CHECKED]):
            _check(document, (*place, i), base.with_values({**first, name: value}), name)
    for name in base.NAMES:
        if name not in first:
            _check(document, (name,), base.with_values(first), name)
    for name in study.set:
        _check(document, ("set", name), base.with_values(first), name)
    for head, given in (("plan", study.plan), ("collective", study.collective)):
        for name in given:
            _check(document, (head, name), base.with_values(first), f"{head}.{name}")
    for wanted in base.REQUIRED:
        if wanted not in study.fixed and wanted not in study.fields:
            raise document.error(
                f"the field {wanted!r} is missing, and is not varied either",
                (wanted.partition(".")[0],),
            )


def check_columns(path: Source, study: Study, first: tuple[Row, AnyPoint] | None = None) -> None:
    """Simulate the first point, and raise ConfigError at the first formula with an unknown column.

    What passes which link is not asked for: other points may have other links.

    Parameters
    ----------
    first
        Varied values and point to simulate; None: the first of the grid.
    """
    first = next(study.points(), None) if first is None else first
    if first is None or (row := row_of(first[1]))["error"]:
        return
    document = read_yaml(path)
    known = list(dict.fromkeys([*study.fixed, *first[0], *row]))
    known.remove("error")
    formulas: list[tuple[tuple[str | int, ...], str | None, str]] = [
        (("columns", name), name, text) for name, text in study.columns.items()
    ]
    formulas += [(("require", i), None, text) for i, text in enumerate(study.require)]
    if study.search is not None:
        for group in ("objectives", "reference"):
            names = getattr(study.search, group)
            formulas += [(("search", group, name), None, name) for name in names]
    for place, column, text in formulas:
        formula = parse_formula(text)
        if not formula.names:  # then it is the same for all points
            try:
                formula.value({})
            except ConfigError as error:
                raise document.error(error.message, place) from error
        for name in sorted(formula.names):
            if name.startswith("traffic_bytes."):
                continue
            try:
                resolve(name, known)
            except ConfigError as error:
                message = error.message
                if name in study.columns:
                    message = f"there is no column {name!r} yet: a formula names those before it"
                raise document.error(message, place) from error
        if column in known:
            raise document.error(f"there is a column {column!r} already", place)
        if column is not None:
            known.append(column)


def _check(document: Document, place: tuple[str | int, ...], point: AnyPoint, name: str) -> None:
    root = name.partition(".")[0]
    if name == root:  # whether fields of it can be replaced is theirs to say
        named = {path: of for path, of in point.overrides.items() if path == "cluster.device"}
        point = replace(point, overrides=named)  # which a network has to be told
    try:
        point.load(root)
    except RidgelineError as error:
        if name == root or _is_of(error, name):
            raise document.error(_message(error), place) from error


def _is_of(error: RidgelineError, name: str) -> bool:
    """Tell whether an error is about one field by itself, and not about several together."""
    field = getattr(error, "field", None)
    if field is None:
        return False
    field, name = field.removesuffix(".value"), name.removesuffix(".value")
    root, _, rest = name.partition(".")
    if field == root and f"unknown field {rest!r}" in str(error):
        return True
    if not (getattr(error, "file", None) or "override").startswith("override"):
        return False
    parts = rest.split(".")
    inside = any(field.startswith(f"{'.'.join(parts[i:])}.") for i in range(len(parts) - 1))
    return field == name or inside or f".{rest}".endswith(f".{field}")


def _message(error: RidgelineError) -> str:
    """Return what is wrong, with file and line where they are another file's than the study."""
    if not isinstance(error, ConfigError):
        return str(error)
    file = getattr(error, "file", None)
    return error.message if file is None or file.startswith("override") else str(error)
