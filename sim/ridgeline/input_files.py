"""Input files: every one has ``kind`` and ``name``, and one loader reads any by its kind.

Loaders and schemas are named, not imported, so that a command imports what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from ridgeline import catalog
from ridgeline.config import Document, check_kind, read_yaml


class InputKind(NamedTuple):
    """What a file of some kind is read by.

    Attributes
    ----------
    folder
        Name of its catalogue (`catalog.FOLDERS`); empty: none of this kind ship.
    loader
        ``module:function`` from a name or path, and overrides where it takes them.
    schema
        ``module:class`` of its fields; of a model, what all families share.
    """

    folder: str
    loader: str
    schema: str


INPUT_KINDS: Mapping[str, InputKind] = {
    "model": InputKind(
        "models", "workload.files:load_model", "workload.families.base:Network"
    ),
    "device": InputKind("devices", "hardware:load_device", "hardware.device:Device"),
    "node": InputKind("nodes", "hardware:load_node", "hardware.node:Node"),
    "cluster": InputKind("clusters", "network.resolve:load_cluster", "hardware.cluster:Cluster"),
    "software": InputKind("software", "software:load_software", "software.stack:Stack"),
    "component": InputKind(
        "components", "hardware.components.estimate:load_component",
        "hardware.components.schema:Component",
    ),
    "energy-table": InputKind(
        "energy", "hardware:load_energy_table", "hardware.energy:EnergyTable"
    ),
    "dataset": InputKind("datasets", "workload.dataset:load_dataset", "workload.dataset:DataSet"),
    "study": InputKind("", "study.design_study:DesignStudy", "study.study_file:Study"),
    "jobs": InputKind("", "study.jobs.job_file:read_jobs", "study.jobs.job_file:JobFile"),
    "rl-run": InputKind("", "study.rl.rl_file:read_rl", "study.rl.rl_file:RlFile"),
    "run": InputKind("", "training.run_file:read_run", "training.run_file:RunFile"),
}  # fmt: skip
"""By what ``kind:`` says."""


def load(name_or_path: str | Path, **options: Any) -> Any:
    """Load anything that a file describes, by its name in the catalogue or a path.

    Parameters
    ----------
    options
        Of the loader of its kind: ``overrides={...}``.

    Raises
    ------
    ConfigError
        If nothing is called so, the file does not say what it is, or it has a mistake; with file,
        line and field.
    """
    name = str(name_or_path)
    if not _is_listed(name) and not catalog.is_path(name):
        name = catalog.resolve(name)
    return named(INPUT_KINDS[kind_of(name)].loader)(name, **options)


def kind_of(name: str) -> str:
    """Return the kind of a catalogue name or of a file, in `INPUT_KINDS`.

    Raises
    ------
    ConfigError
        If nothing is called so, or the file does not say what it describes.
    """
    if not _is_listed(name):
        if catalog.is_path(name):
            return kind_of_document(read_yaml(name))
        name = catalog.resolve(name)
    return next(
        kind for kind, of in INPUT_KINDS.items() if of.folder and name in catalog.names(of.folder)
    )


def _is_listed(name: str) -> bool:
    return any(name in catalog.names(folder) for folder in catalog.FOLDERS)


def kind_of_document(document: Document) -> str:
    """Return what ``kind:`` of a file says, in `INPUT_KINDS`, or raise ConfigError."""
    return check_kind(document, *INPUT_KINDS)


def named(place: str) -> Any:
    """Import what ``module:name`` of this package says."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"ridgeline.{module}"), name)
