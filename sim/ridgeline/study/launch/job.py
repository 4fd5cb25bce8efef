"""What a launch file describes: a training step that is ready to be simulated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.errors import ConfigError, short
from ridgeline.study.launch.sources import PLACEHOLDER, LaunchSource, plain

NO_EFFECT = "no effect on a step"
"""What became of a setting that changes neither time nor memory of a step."""
_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0", "none", "null", ""}


@dataclass(frozen=True)
class Setting:
    """One thing that a launch file says, and what became of it.

    Attributes
    ----------
    name, value
        As the file writes them: ``--tensor-model-parallel-size``, ``8``.
    line
        Where it stands; 0: not known.
    became
        What it was understood as: "plan.tensor=8", "no effect on a step"; "": not understood.
    """

    name: str
    value: str
    line: int
    became: str


@dataclass(frozen=True)
class LaunchJob:
    """A training step as a launch file describes it.

    Attributes
    ----------
    file, framework
        Where it was read, and which reader read it.
    model, model_fields
        Name of a network in the catalogue or path of one ("": the file is of the program alone, a
        network must be given beside it), and what the file says otherwise, by
        dotted path (`load_model`).
    plan
        Fields of a `Plan`.
    software, software_settings
        Name of a software stack, and what the file says otherwise, by dotted path.
    devices
        How many devices the file asks for; None: it does not say.
    device
        Name of a device or machine in the catalogue, where the file says it.
    accumulation
        Micro-batches of a rank for one update, where the plan has no global batch.
    settings
        All that the file says.
    notes
        What was assumed, or is not modelled, in plain words.
    """

    file: str
    framework: str
    model: str
    model_fields: Mapping[str, Any]
    plan: Mapping[str, Any]
    software: str
    software_settings: Mapping[str, Any]
    devices: int | None
    device: str | None = None
    accumulation: int = 1
    settings: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def unread(self) -> tuple[Setting, ...]:
        """Settings that were not understood."""
        return tuple(setting for setting in self.settings if not setting.became)

    def on(self, devices: int) -> LaunchJob:
        """Return the job on so many devices: as many data-parallel ranks as these make.

        Raises
        ------
        ConfigError
            If the devices, or the batch, cannot be divided so.
        """
        plan = {key: value for key, value in self.plan.items() if key != "data"}
        draft = LaunchDraft(LaunchSource(self.file, ""), self.framework, plan=plan, devices=devices)
        draft.check()
        if "global_batch" not in plan:
            plan["global_batch"] = plan["data"] * plan.get("micro_batch", 1) * self.accumulation
        return replace(self, plan=plan, devices=devices)


@dataclass
class _Said:
    value: Any
    line: int
    became: str = ""


@dataclass
class LaunchDraft:
    """A launch job in the making: what the file says, and what a reader has made of it so far.

    A reader first registers with `say` everything that the file says, then asks for what it knows
    (`text`, `integer`, `number`, `flag`), which marks it as understood, and fills the fields.
    """

    source: LaunchSource
    framework: str
    model: str = ""
    model_fields: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    software: str = ""
    software_settings: dict[str, Any] = field(default_factory=dict)
    devices: int | None = None
    device: str | None = None
    accumulation: int = 1
    notes: list[str] = field(default_factory=list)
    said: dict[str, _Said] = field(default_factory=dict)

    def say(self, name: str, value: object, line: int = 0) -> None:
        """Register a thing that the file says; what is said again replaces the earlier value."""
        self.said[name] = _Said(value, line)

    def __contains__(self, name: str) -> bool:
        return name in self.said

    def value(self, name: str) -> Any:
        """Return a value as the file has it without marking it; None where it says nothing.

        Raises
        ------
        ConfigError
            If the value has a placeholder in it.
        """
        said = self.said.get(name)
        if said is None:
            return None
        if isinstance(said.value, str):
            if (hole := PLACEHOLDER.search(said.value)) is not None:
                raise self.error(
                    f"the value needs {hole['name']}, which the file does not give;"
                    f" give it: --set {hole['name'].lstrip('$')}=...",
                    name,
                )
            return plain(said.value)
        return said.value

    def take(self, name: str, became: str) -> Any:
        """Mark a setting as understood, and return its value; None where nothing is said."""
        value = self.value(name)
        if name in self.said:
            self.said[name].became = became
        return value

    def ignore(self, *names: str, became: str = NO_EFFECT) -> None:
        """Mark settings as understood without reading their values."""
        for name in names:
            if name in self.said:
                self.said[name].became = became

    def text(self, name: str, became: str) -> str | None:
        """Take a setting as text; ``became`` may have ``{}`` for its value."""
        value = self.value(name)
        if value is None:
            self.ignore(name, became=became.format("default"))
            return None
        self.said[name].became = became.format(value)
        return str(value)

    def integer(self, name: str, became: str) -> int | None:
        """Take a setting as a whole number."""
        value = self.text(name, became)
        if value is None or value.lower() in {"none", "null"}:
            return None
        try:
            return int(value.replace("_", ""))
        except ValueError:
            number = self._number(name, value, "a whole number")
            if not number.is_integer():
                raise self.error(f"expected a whole number, found {value!r}", name) from None
            return int(number)

    def number(self, name: str, became: str) -> float | None:
        """Take a setting as a number."""
        value = self.text(name, became)
        if value is None or value.lower() in {"none", "null"}:
            return None
        return self._number(name, value, "a number")

    def _number(self, name: str, value: str, what: str) -> float:
        try:
            number = float(value)
        except ValueError as error:
            raise self.error(f"expected {what}, found {short(value)}", name) from error
        if not math.isfinite(number):
            raise self.error(f"expected {what}, found {short(value)}", name)
        return number

    def flag(self, name: str, became: str, *, default: bool = False) -> bool:
        """Take a setting as a switch: true where it stands without a value."""
        value = self.value(name)
        if name in self.said:
            self.said[name].became = became.format(value)
        if value is None:
            return default
        word = str(value).lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise self.error(f"expected true or false, found {short(value)}", name)

    def note(self, text: str) -> None:
        """Say something that a reader of the result must know, once."""
        if text not in self.notes:
            self.notes.append(text)

    def error(self, message: str, name: str | None = None) -> ConfigError:
        """Return an error that points at a setting of the file."""
        said = self.said.get(name) if name else None
        line = said.line if said else 0
        return ConfigError(message, file=self.source.file, line=line or None, field=name)

    def placed(self, names: Iterable[str]) -> str | None:
        """Return the first of some names that the file says, to point at."""
        return next((name for name in names if name in self.said), None)

    def check(self, where: Mapping[str, Iterable[str]] | None = None) -> None:
        """Refuse values that contradict each other, and work out the degree of data parallelism.

        Parameters
        ----------
        where
            Names of settings behind each field of the plan, and "devices", for the message.
        """
        names = {key: tuple(value) for key, value in (where or {}).items()}
        plan = self.plan
        parts: dict[str, int] = {
            key: plan.get(key) or 1 for key in ("tensor", "pipeline", "context")
        }
        model = parts["tensor"] * parts["pipeline"] * parts["context"]
        product = " x ".join(f"{key} {count}" for key, count in parts.items() if count > 1)
        if self.devices is not None:
            if self.devices % model:
                raise self.error(
                    f"{self.devices} devices cannot be divided by {product}",
                    self.placed(names.get("devices", ()))
                    or self.placed(names.get("tensor", ()))
                    or self.placed(names.get("pipeline", ())),
                )
            data = self.devices // model
            if plan.setdefault("data", data) != data:
                raise self.error(
                    f"data {plan['data']}{' x ' if product else ''}{product} is not"
                    f" {self.devices} devices",
                    self.placed(names.get("data", ())),
                )
        self._check_batch(names)
        expert: int = plan.get("expert") or 1
        share: int | None = plan.get("data")
        outer: int = plan.get("expert_tensor_parallel") or 0
        ranks = (share or 1) * (parts["tensor"] * parts["context"] if outer else 1)
        if share is not None and ranks % (expert * max(outer, 1)):
            raise self.error(
                f"expert {expert} does not divide the {ranks} ranks that share experts",
                self.placed(names.get("expert", ())),
            )

    def _check_batch(self, names: Mapping[str, tuple[str, ...]]) -> None:
        plan = self.plan
        batch, micro, data = (plan.get(k) for k in ("global_batch", "micro_batch", "data"))
        rows = (micro or 1) * (data or 1)
        if batch is not None and batch % rows:
            raise self.error(
                f"global batch {batch} cannot be divided by micro-batch {micro or 1}"
                + (f" x {data} data-parallel ranks" if data else ""),
                self.placed(names.get("global_batch", ())),
            )

    def job(self, *, networkless: bool = False) -> LaunchJob:
        """Return the finished job; of a file that has no network, where that is allowed."""
        if not self.model and not networkless:
            raise self.error("the file does not say which network is trained")
        settings = tuple(
            Setting(name, _shown(said.value), said.line, said.became)
            for name, said in self.said.items()
        )
        return LaunchJob(
            file=self.source.file,
            framework=self.framework,
            model=self.model,
            model_fields=dict(self.model_fields),
            plan={key: value for key, value in self.plan.items() if value is not None},
            software=self.software,
            software_settings=dict(self.software_settings),
            devices=self.devices,
            device=self.device,
            accumulation=self.accumulation,
            settings=settings,
            notes=tuple(self.notes),
        )


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    return PLACEHOLDER.sub(lambda hole: hole["name"], plain(str(value)))
