"""Data sets: what one sample is on disk and decoded, and what decoding costs the host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import Field, model_validator

from ridgeline import catalog, config, units
from ridgeline.config import Aliases, Strict
from ridgeline.errors import ConfigError, nearest

T = TypeVar("T")
NOT_STATED: Final = "not stated"


class DatasetFigure(Strict, Generic[T]):
    """A figure of a data set, with where it comes from."""

    value: T
    source: str = NOT_STATED
    """A key of the file's ``sources``, or a citation in words."""
    basis: Literal["data-sheet", "measured", "derived", "extrapolated", "assumed", "not stated"] = (
        NOT_STATED
    )
    """How the value was obtained."""
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, raw: Any) -> Any:
        return raw if isinstance(raw, dict | DatasetFigure) else {"value": raw}


Layout = Literal["files", "shards"]


class StoredFormat(Strict):
    """Another form in which a data set is kept: its bytes, and what decoding them costs."""

    stored: DatasetFigure[units.Bytes]
    """Bytes read from disk."""
    decoding: DatasetFigure[Annotated[float, Field(ge=0)]]
    """Clock cycles of one core of the host."""
    layout: Layout
    """"files": every sample is a file, read by a request of its own; "shards": many samples stand
    one after the other in large files."""


class DataSet(Strict):
    """A data set as an input pipeline sees it."""

    kind: Literal["dataset"]
    name: str
    """Name in the catalogue."""
    title: str
    """Its name for people."""
    aliases: Aliases = ()
    """What people call it besides, where case, hyphens and vendors are not all that differs."""
    citation: str = ""
    unit: Literal["sample", "token"]
    """What the sizes are of."""
    samples: DatasetFigure[Annotated[int, Field(gt=0)]] | None = None
    """How many there are to train on."""
    stored: DatasetFigure[units.Bytes]
    """Bytes read from disk."""
    decoded: DatasetFigure[units.Bytes]
    """Bytes handed to the device."""
    decoding: DatasetFigure[Annotated[float, Field(ge=0)]]
    """Clock cycles of one core of the host."""
    layout: Layout = "files"
    """As of a format."""
    formats: dict[str, StoredFormat] = Field(default_factory=dict)
    """Other forms in which it is kept, by name."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Citations by short name."""

    @property
    def unsourced(self) -> tuple[str, ...]:
        """Names of the figures that state no source."""
        figures = {"samples": self.samples, "stored": self.stored}
        figures |= {"decoded": self.decoded, "decoding": self.decoding}
        for name, form in self.formats.items():
            figures |= {f"{name} stored": form.stored, f"{name} decoding": form.decoding}
        return tuple(n for n, of in figures.items() if of is not None and of.source == NOT_STATED)

    def kept_as(self, form: str) -> DataSet:
        """Return the data set as one of its formats keeps it.

        Raises
        ------
        ConfigError
            If it has no such format.
        """
        if form not in self.formats:
            known = ", ".join(self.formats) or "none"
            raise ConfigError(
                f"{self.name} has no format {form!r}{nearest(form, self.formats)} "
                f"(there are: {known})",
                field="format",
            )
        found = self.formats[form]
        return self.model_copy(
            update={
                "stored": found.stored,
                "decoding": found.decoding,
                "layout": found.layout,
            }
        )


def load_dataset(name_or_path: str | Path) -> DataSet:
    """Load a data set by its name in ``models/datasets/`` or from a YAML file.

    Raises
    ------
    ConfigError
        If there is none, or the file does not describe one; with file, line and field.
    """
    path = catalog.find("datasets", str(name_or_path))
    document = config.read_yaml(path)
    config.check_kind(document, "dataset")
    return config.validate(document, DataSet)
