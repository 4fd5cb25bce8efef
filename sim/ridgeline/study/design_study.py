"""A design study in Python: from a file, a mapping or keywords; run in parallel; rows as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, Unpack

from ridgeline.config import Document
from ridgeline.errors import ConfigError
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report.progress import progress_bar
from ridgeline.study.store import opened_store
from ridgeline.study.study_document import naming_no_inline_file, study_document
from ridgeline.study.study_file import Scalar, Study
from ridgeline.study.study_rows import StudyRows
from ridgeline.study.sweep import check_output, prepare, write_rows


class StudyFields(TypedDict, total=False):
    """Fields of a study, as in its file (`study_file.Study`)."""

    name: str
    description: str
    model: str
    cluster: str
    software: str
    plan: Mapping[str, Scalar] | Plan
    collective: Mapping[str, Scalar]
    set: Mapping[str, Any]
    faults: Iterable[str]
    vary: Mapping[str, Any]
    zip: Iterable[Mapping[str, Any]]
    sample: Mapping[str, Any]
    where: Iterable[str]
    require: Iterable[str]
    columns: Mapping[str, str]


class DesignStudy:
    """Which points are simulated, and what is asked of them.

    Parameters
    ----------
    source
        Path of a study file, its text, or a mapping with its fields.
    fields
        Fields of the file; they replace those of `source`. ``software="all"`` varies the software
        over every stack that can run the steps.

    Raises
    ------
    ConfigError
        As for a file: unknown field, a path that leads nowhere, a value that its field cannot take.

    Examples
    --------
    >>> study = DesignStudy(
    ...     model="resnet50", cluster="dgx1-v100", plan={"data": 8, "precision": "fp16-mixed"},
    ...     vary={"plan.global_batch": [512, 1024, 2048]},
    ... )
    >>> study.run().to_pandas()  # doctest: +SKIP
    """

    def __init__(
        self,
        source: str | Path | Mapping[str, Any] | None = None,
        /,
        **fields: Unpack[StudyFields],
    ) -> None:
        document = study_document(source, fields)
        software = str(document.data.get("software", "")) if isinstance(document.data, dict) else ""
        if software == "all":
            document = Document(document.file, {**document.data, "software": ""}, document.places)
        with naming_no_inline_file():
            self._sweep = prepare(document, software)

    @property
    def file(self) -> Study:
        """The study as a file states it."""
        return self._sweep.study

    @property
    def name(self) -> str:
        """Its name."""
        return self.file.name

    @property
    def fields(self) -> list[str]:
        """All fields that differ between points, in the order of the columns."""
        return self.file.fields

    @cached_property
    def size(self) -> int:
        """Number of points."""
        return self._sweep.size

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return repr(self.file)

    def _repr_html_(self) -> str:
        return self.file._repr_html_()

    def run(
        self,
        *,
        output: str | Path | None = None,
        processes: int = 1,
        cluster: str | None = None,
        resume: bool | None = None,
        progress: bool = True,
    ) -> StudyRows:
        """Simulate every point.

        Parameters
        ----------
        output
            File for the rows, .csv or .parquet. Finished points are kept beside it until all are
            there, so that a study that was killed goes on where it was.
        processes
            Processes on this machine. A script that asks for more than one must be importable: its
            own work stands under ``if __name__ == "__main__":``.
        cluster
            Address of a Dask scheduler, whose workers simulate the points.
        resume
            With `output`: whether finished points of a run that was interrupted count. None: yes.
        progress
            Show a bar, in a notebook or on a terminal.

        Returns
        -------
        StudyRows
            A row a point, in the order of the study. A point that cannot be simulated is a row with
            its error.

        Raises
        ------
        ConfigError
            If an option makes no sense, or the output cannot be written.
        RidgelineError
            If workers die again and again, or the cluster cannot be reached.
        """
        if processes < 1:
            raise ConfigError(f"must be at least 1, found {processes}", field="processes")
        if processes > 1 and cluster is not None:
            raise ConfigError(
                "processes are of this machine, a cluster has its own", field="processes"
            )
        if resume is not None and output is None:
            raise ConfigError("without an output nothing is kept to go on with", field="resume")
        check_output(output)
        with opened_store(output, restart=resume is False) as store:
            if progress:
                with progress_bar(self.name, self.size) as advance:
                    self._sweep.run(store, processes, cluster, advance)
            else:
                self._sweep.run(store, processes, cluster)
            rows = list(self._sweep.rows(store))
            if output is not None:
                write_rows(rows, output)
            store.remove()
        return StudyRows(rows, self.file)
