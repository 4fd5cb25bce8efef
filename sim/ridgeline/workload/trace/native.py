"""ridgeline's own file of a network: every tensor and op, readable, and exact out and in.

One JSON object: ``format`` "ridgeline-graph", ``version``, ``name``, ``title``, ``citation``,
``optimizer`` and ``graphs``. A graph is for one precision and either one batch or any: then what
depends on the batch stands as text, ``"64*batch+1"``. It is a forward graph, whose training graph
is derived as that of a shipped network, or (``"pass": "training"``) the training graph itself.
docs/executions.md has the fields one by one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PrivateAttr

from ridgeline.bounded_files import parse_json, read_bytes
from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.workload import numerics as precisions
from ridgeline.workload import optimizers
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.families.base import Network
from ridgeline.workload.graph import Graph, Pass, Role
from ridgeline.workload.model import MAX_BATCH, Model
from ridgeline.workload.optimizers import Optimizer
from ridgeline.workload.trace.affine import AffineNumber, NotAffineError, at_batch, joined
from ridgeline.workload.trace.documents import graph_document, graph_of, read_section, sizes

FORMAT = "ridgeline-graph"
VERSION = 1
MAX_BYTES = 512 * 2**20
FIT_BATCHES = (8, 16)
CHECK_BATCH = 5
WHOLE_PRECISIONS = tuple(
    name for name, numerics in precisions.PRECISIONS.items() if numerics.narrow is None
)
"""Those in which the same ops are done at every batch; narrow ones quantise only what fits."""


@dataclass(frozen=True)
class Section:
    """One graph of a file.

    Attributes
    ----------
    training
        Whether it is a training graph, made with `optimizer`.
    batch
        The only batch that it is for, or None for any.
    document
        Plain values, `AffineNumber` where a number depends on the batch.
    place
        Where it stands, for messages.
    """

    precision: str
    training: bool
    optimizer: str
    batch: int | None
    document: Mapping[str, Any]
    place: str

    @property
    def smallest_batch(self) -> int:
        """The only batch, or the least at which all numbers are whole."""
        if self.batch is not None:
            return self.batch
        return math.lcm(1, *(line.slope.denominator for line in sizes(self.document)))

    def graph(self, batch: int, name: str) -> Graph:
        """Return the graph for a batch."""
        if self.batch is not None and batch != self.batch:
            raise RidgelineError(
                f"{name}: this graph is for a batch of {self.batch} only, {batch} was asked for;"
                " its file says how it depends on no other"
            )
        return graph_of(at_batch(self.document, batch), name, batch, self.precision, self.place)


class Recorded(Network):
    """A network of which the ops are known, and not the rule by which they were made."""

    recorded: ClassVar[bool] = True

    family: Literal["recorded"] = "recorded"
    digest: str
    """SHA-256 of the file."""
    sample_name: str = "samples"
    tokens: int = 0
    _sections: tuple[Section, ...] = PrivateAttr(default=())

    @property
    def tokens_per_sample(self) -> int:
        """Tokens in a sample; 0 where that has no meaning."""
        return self.tokens

    @property
    def sections(self) -> tuple[Section, ...]:
        """The graphs of the file."""
        return self._sections

    def section(self, precision: str, *, training: bool) -> Section | None:
        """Return the graph of a precision, or None."""
        for one in self._sections:
            if one.precision == precision and one.training == training:
                return one
        return None

    def build(self, b: GraphBuilder) -> str:
        """Write the recorded forward graph and return the name of the loss tensor."""
        section = self.section(b.numerics.name, training=False)
        if section is None:
            raise self.missing(b.name, b.numerics.name)
        graph = section.graph(b.batch, b.name)
        b.tensors.update(graph.tensors)
        b.ops += graph.ops
        b.frozen = graph.frozen
        b.take_checkpoints(graph)
        b.sample = self.sample_name
        return graph.loss

    def graph(self, b: GraphBuilder) -> Graph:
        """Write the recorded forward graph and return it."""
        section = self.section(b.numerics.name, training=False)
        loss = self.build(b)
        assert section is not None  # else `build` has said so
        notes, partial = section.document["notes"], section.document["partial"]
        return b.graph(loss, partial=partial, notes=notes)

    @property
    def smallest_batch(self) -> int:
        """The smallest mini-batch that the network exists for."""
        return max(section.smallest_batch for section in self._sections)

    def missing(self, name: str, precision: str) -> RidgelineError:
        """Return the error that the file has no graph of a precision."""
        known = ", ".join(dict.fromkeys(one.precision for one in self._sections))
        return RidgelineError(
            f"{name}: its file has no graph for the precision {precision!r} (it has: {known});"
            " export the network again with that precision"
        )


@dataclass(frozen=True)
class RecordedModel(Model):
    """A Model that was read from a file of graphs."""

    @property
    def recorded(self) -> Recorded:
        """The network."""
        assert isinstance(self.network, Recorded)
        return self.network

    def training(
        self, batch: int, precision: str = "fp32", optimizer: Optimizer | None = None
    ) -> Graph:
        """Return the graph of a training step: derived, or the recorded one."""
        section = self.recorded.section(precisions.find(precision).name, training=True)
        if section is None:
            return super().training(batch, precision, optimizer)
        own = optimizers.find(section.optimizer)
        if optimizer is not None and optimizer.name == own.name and optimizer != own:
            raise RidgelineError(
                f"{self.name}: its training graph was recorded with the state of"
                f" {own.name} as it usually is, not in {optimizer.state_format}"
            )
        if optimizer is not None and optimizer.name != section.optimizer:
            raise RidgelineError(
                f"{self.name}: its training graph was recorded with the optimizer"
                f" {section.optimizer!r}, {optimizer.name!r} was asked for"
            )
        return section.graph(batch, self.name)

    @cached_property
    def input_bytes_per_sample(self) -> int:
        """Bytes of one sample with its label, as delivered to the device."""
        section = self.recorded.sections[0]
        batch = section.smallest_batch
        tensors = section.graph(batch, self.name).tensors.values()
        return sum(t.bytes for t in tensors if t.role is Role.INPUT) // batch


def model_document(
    model: Model, precisions_: Iterable[str] | None = None, batch: int | None = None
) -> dict[str, Any]:
    """Return a network as the plain values of a file.

    Parameters
    ----------
    precisions_
        Which precisions to write; default: `WHOLE_PRECISIONS`.
    batch
        The only batch to write; default: any, if every number depends on it as a + b * batch.

    Raises
    ------
    NotAffineError
        If no batch is given and some number does not.
    """
    chosen = list(precisions_ or WHOLE_PRECISIONS)
    own = model.network.precision
    sections = [_section_document(model, precision, batch) for precision in chosen]
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": model.name,
        "title": model.title,
        "citation": model.citation,
        "optimizer": model.default_optimizer.name,
        "precision": own if own in chosen else chosen[0],
        "dataset": model.network.dataset,
        "graphs": sections,
    }


def _section_document(model: Model, precision: str, batch: int | None) -> dict[str, Any]:
    head = {"precision": precision, "pass": "forward"}
    if batch is not None:
        return {**head, "batch": batch, **graph_document(model.forward(batch, precision))}
    least = model.network.smallest_batch
    batches = (FIT_BATCHES[0] * least, FIT_BATCHES[1] * least)
    third = CHECK_BATCH * least
    one, two = (graph_document(model.forward(n, precision)) for n in batches)
    document = joined(one, two, batches)
    check = graph_document(model.forward(third, precision))
    if at_batch(document, third) != check:
        odd = [
            op["name"]
            for op, true in zip(at_batch(document, third)["ops"], check["ops"], strict=True)
            if op != true
        ]
        raise NotAffineError(
            f"{model.name}: {', '.join(odd[:5]) or 'a tensor'} depends on the batch in another way"
            " than a + b * batch; give the batch to export"
        )
    return {**head, "batch": "any", **document}


def graph_file(graph: Graph, optimizer: str = "") -> dict[str, Any]:
    """Return one graph, of the forward pass or of a whole step, as the plain values of a file."""
    training = any(op.pass_ is not Pass.FORWARD for op in graph.ops)
    if training:
        optimizers.find(optimizer)
    head = {"precision": graph.precision, "pass": "training" if training else "forward"}
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "title": graph.name,
        "citation": "",
        "optimizer": optimizer or "sgd",
        "precision": graph.precision,
        "graphs": [{**head, "batch": graph.batch, **graph_document(graph)}],
    }


def to_text(document: Mapping[str, Any]) -> str:
    """Write the plain values of a file as JSON, one tensor and one op to a line."""
    lines = ["{"]
    for key, value in document.items():
        if key != "graphs":
            lines.append(f"  {_json(key)}: {_json(value)},")
    lines.append('  "graphs": [')
    sections = [_section_text(section) for section in document["graphs"]]
    lines.append(",\n".join(sections))
    lines += ["  ]", "}", ""]
    return "\n".join(lines)


def _section_text(section: Mapping[str, Any]) -> str:
    parts = []
    for key, value in section.items():
        if key == "tensors":
            rows = [f"        {_json(name)}: {_json(tensor)}" for name, tensor in value.items()]
            parts.append('      "tensors": {\n' + ",\n".join(rows) + "\n      }")
        elif key == "ops":
            parts.append(
                '      "ops": [\n'
                + ",\n".join(f"        {_json(op)}" for op in value)
                + "\n      ]"
            )
        else:
            parts.append(f"      {_json(key)}: {_json(value)}")
    return "    {\n" + ",\n".join(parts) + "\n    }"


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Fraction) and value.denominator == 1:
        return value.numerator
    if isinstance(value, AffineNumber | Fraction):
        return str(value)
    if isinstance(value, dict):
        if isinstance(
            value.get("is"), AffineNumber | Fraction
        ):  # of an attribute, which may be text
            return {"number": str(value["is"])}
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def load(path: str | Path) -> RecordedModel:
    """Read a file of graphs.

    Raises
    ------
    ConfigError
        If it is damaged, too large, of a later version, or says something impossible; with place.
    """
    raw = read_bytes(path, MAX_BYTES)
    return from_document(parse_json(raw, str(path)), str(path), hashlib.sha256(raw).hexdigest())


def from_document(data: Any, file: str, digest: str = "") -> RecordedModel:
    """Return the model of a file's plain values."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ConfigError(f"the field 'format' must be {FORMAT!r}", file=file, field="format")
    if data.get("version") != VERSION:
        raise ConfigError(
            f"version {data.get('version')!r} is not known (known: {VERSION})",
            file=file,
            field="version",
        )
    for key in ("name", "title", "citation", "optimizer"):
        if not isinstance(data.get(key), str):
            raise ConfigError(f"expected text, found {data.get(key)!r}", file=file, field=key)
    if unknown := set(data) - {*_FIELDS}:
        name = min(unknown)
        raise ConfigError(f"unknown field {name!r}{nearest(name, _FIELDS)}", file=file, field=name)
    try:
        optimizers.find(data["optimizer"])
    except RidgelineError as error:
        raise ConfigError(str(error), file=file, field="optimizer") from error
    sections = _sections(data, file)
    first = sections[0].document
    own, dataset = data.get("precision", sections[0].precision), data.get("dataset", "")
    if own not in {section.precision for section in sections}:
        raise ConfigError(f"no graph is for {own!r:.60}", file=file, field="precision")
    if not isinstance(dataset, str):
        raise ConfigError(f"expected text, found {dataset!r:.60}", file=file, field="dataset")
    network = Recorded(
        precision=own,
        dataset=dataset,
        title=data["title"],
        citation=data["citation"],
        optimizer=data["optimizer"],
        digest=digest,
        sample_name=first["sample"],
        tokens=first["tokens_per_sample"],
    )
    network._sections = sections
    return RecordedModel(data["name"], network)


_FIELDS = ("format", "version", "name", "title", "citation", "optimizer", "precision", "dataset",
           "graphs")  # fmt: skip


def _sections(data: Mapping[str, Any], file: str) -> tuple[Section, ...]:
    graphs = data.get("graphs")
    if not isinstance(graphs, list) or not graphs:
        raise ConfigError("expected a list of at least one graph", file=file, field="graphs")
    sections = []
    for i, raw in enumerate(graphs):
        place = f"graphs.{i}"
        if not isinstance(raw, dict):
            raise ConfigError(f"expected an object, found {raw!r:.60}", file=file, field=place)
        batch = raw.get("batch")
        if batch != "any" and not (type(batch) is int and 1 <= batch <= MAX_BATCH):
            raise ConfigError(
                f'expected "any" or a number from 1 to {MAX_BATCH}, found {batch!r}',
                file=file,
                field=f"{place}.batch",
            )
        if raw.get("pass") not in {"forward", "training"}:
            raise ConfigError(
                f'expected "forward" or "training", found {raw.get("pass")!r}',
                file=file,
                field=f"{place}.pass",
            )
        try:
            precisions.find(str(raw.get("precision")))
        except RidgelineError as error:
            raise ConfigError(str(error), file=file, field=f"{place}.precision") from error
        document = read_section(raw, file, place)
        section = Section(
            precision=raw["precision"],
            training=raw["pass"] == "training",
            optimizer=data["optimizer"],
            batch=None if batch == "any" else batch,
            document=document,
            place=f"{file}: {place}",
        )
        section.graph(section.smallest_batch, data["name"])  # so that a mistake shows now
        sections.append(section)
    return tuple(sections)
