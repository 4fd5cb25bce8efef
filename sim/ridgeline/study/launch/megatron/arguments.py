"""Arguments of Megatron-LM by the names of the fields that they are kept in.

Frameworks on top of Megatron-Core have the same names for most (``tensor_model_parallel_size``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgeline.errors import ConfigError
from ridgeline.study.launch.job import LaunchDraft
from ridgeline.study.launch.options import found_in


@dataclass
class Arguments:
    """Arguments by their names as Megatron keeps them, over a draft with the names of its file."""

    draft: LaunchDraft
    names: dict[str, str] = field(default_factory=dict)
    tables: Sequence[str] = ("megatron",)
    uneven_stages: bool = False
    """Whether stages of a pipeline may have unequally many layers."""
    instances: int = 1
    """Copies of what is sharded, each on a part of the data-parallel ranks."""

    def say(self, canonical: str, name: str, value: object, line: int) -> None:
        """Register an argument; what is said again replaces the earlier value."""
        if (old := self.names.get(canonical)) is not None and old != name:
            self.draft.said.pop(old, None)
        self.names[canonical] = name
        self.draft.say(name, value, line)

    def given(self) -> None:
        """Let what the user sets replace or complete arguments of these names."""
        for key, value in self.draft.source.set_.items():
            name = key.lstrip("-").replace("-", "_")
            if name in self.names or name in _SETTABLE:
                self.say(name, self.names.get(name, name), value, 0)

    def __contains__(self, canonical: str) -> bool:
        return canonical in self.names

    def name(self, canonical: str) -> str:
        """Return the name as the file has it."""
        return self.names.get(canonical, canonical)

    def first(self, *canonicals: str) -> str:
        """Return the first of some names that the file gives; else the first."""
        return next((each for each in canonicals if each in self.names), canonicals[0])

    def text(self, canonical: str, became: str) -> str | None:
        """Take an argument as text."""
        found = self.draft.text(self.name(canonical), became)
        return None if found is None or found.lower() in {"none", "null"} else found.strip("\"'")

    def integer(self, canonical: str, became: str) -> int | None:
        """Take an argument as a whole number."""
        return self.draft.integer(self.name(canonical), became)

    def number(self, canonical: str, became: str) -> float | None:
        """Take an argument as a number."""
        return self.draft.number(self.name(canonical), became)

    def flag(self, canonical: str, became: str, *, default: bool = False) -> bool:
        """Take an argument as a switch."""
        return self.draft.flag(self.name(canonical), became, default=default)

    def switch(self, canonical: str, became: str, *, default: bool) -> bool:
        """Take a switch that is on by default or off: ``--no-x``, ``--disable-x`` turn it off."""
        value = self.flag(canonical, became, default=default)
        for off in (f"no_{canonical}", f"disable_{canonical}"):
            if off in self and self.flag(off, became.format(False)):
                value = False
        return value

    def ignore(self, *canonicals: str, became: str) -> None:
        """Mark arguments as understood."""
        self.draft.ignore(*(self.name(each) for each in canonicals), became=became)

    def error(self, message: str, canonical: str) -> ConfigError:
        """Return an error that points at an argument."""
        return self.draft.error(message, self.names.get(canonical))

    def unmodelled(self, canonical: str, note: str) -> None:
        """Say what is not modelled, where a switch turns it on, and leave it as not understood."""
        if canonical in self and self.flag(canonical, "off"):
            self.draft.said[self.name(canonical)].became = ""
            self.draft.note(note)

    def finish(self) -> None:
        """Mark what the tables of arguments know, of those that nobody has taken."""
        for canonical, name in self.names.items():
            said = self.draft.said.get(name)
            if said is not None and not said.became:
                said.became = found_in(canonical, self.tables)


_SETTABLE = {
    "vocab_size", "padded_vocab_size", "seq_length", "global_batch_size", "micro_batch_size",
    "num_layers", "hidden_size", "num_attention_heads", "tensor_model_parallel_size",
    "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
}  # fmt: skip
"""Arguments that may be given where a file does not have them at all."""


def finish(args: Arguments, devices: Sequence[str] = ()) -> None:
    """Refuse what contradicts itself, and mark what has no effect.

    Parameters
    ----------
    devices
        Names of the settings that say how many devices there are.
    """
    draft = args.draft
    draft.check(
        {
            "devices": devices,
            "tensor": [args.name("tensor_model_parallel_size")],
            "pipeline": [args.name("pipeline_model_parallel_size")],
            "global_batch": [args.name("global_batch_size")],
            "expert": [args.name("expert_model_parallel_size")],
        }
    )
    data = draft.plan.get("data")
    if draft.plan.get("global_batch") is None and data:
        draft.plan["global_batch"] = data * (draft.plan.get("micro_batch") or 1)
        draft.note("no global batch: one micro-batch of each data-parallel rank")
    if args.instances > 1:
        if data is None:
            draft.note("devices that share weights and state cannot be counted: all do here")
        elif data % args.instances:
            raise args.error(
                f"{data} data-parallel ranks cannot be divided into {args.instances} instances",
                "num_distributed_optimizer_instances",
            )
        elif draft.plan.get("expert", 1) > 1:
            draft.note("several instances of what is sharded, with experts: in one here")
        elif draft.plan.get("zero_stage", 0) > 1:
            draft.plan["hybrid_shard_size"] = data // args.instances
        else:
            draft.note("optimizer state in several instances: in one here")
    if draft.devices is None:
        draft.note("the file does not say how many devices there are")
    args.finish()
