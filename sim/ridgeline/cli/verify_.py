"""``ridgeline verify``: repeat what a file says of itself, and compare every number."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.output import console, print_json

DIFFERS_STATUS, NOT_REPEATED_STATUS = 1, 3


def verify_(
    file: str,
    *,
    study: str | None = None,
    data: str | None = None,
    model: str | None = None,
    cluster: str | None = None,
    software: str | None = None,
    tolerance: float = 1e-9,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Repeat what a result, figure, table or report says of itself, and compare every number.

    The exit status is 0 if all numbers are equal, 1 if one differs, and 3 if it cannot be repeated.

    Parameters
    ----------
    file
        JSON that ``run``, ``compare``, ``scaling``, ``gemm`` or ``conv`` printed; a figure (.svg,
        .png) by its record; the rows of a sweep (.csv, .parquet) with --study; a report (.html).
    study
        Study file that rows come from.
    data
        Table that a figure of rows is of; by default the file of its name beside the figure.
    model
        Model file of the result, if the model is not in the catalogue.
    cluster
        Machine file of the result, if the machine is not in the catalogue.
    software
        Stack file of the result, if the stack is not in the catalogue.
    tolerance
        Relative difference up to which numbers are equal.
    json
        Print what was found as JSON.
    """
    from ridgeline.study.verify import verify

    found = verify(
        file, study=study, data=data, model=model, cluster=cluster, software=software,
        tolerance=tolerance,
    )  # fmt: skip
    if json:
        print_json(found.to_dict())
    else:
        console().print(str(found), soft_wrap=True, markup=False)
    if found.verdict == "equal":
        return 0
    return DIFFERS_STATUS if found.verdict == "differs" else NOT_REPEATED_STATUS
