"""Which command of a shell script starts the training, and on how many devices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.study.launch.options import Option, canonical, options
from ridgeline.study.launch.shell import Command, ScriptFindings, follow, line_of
from ridgeline.study.launch.sources import PLACEHOLDER, LaunchSource, plain

_PER_NODE = {"nproc_per_node", "num_gpus", "gpus_per_node", "num_processes_per_node"}
_NODES = {"nnodes", "num_nodes", "nodes"}


@dataclass(frozen=True)
class Launch:
    """A command that starts a training program.

    Attributes
    ----------
    program
        The script that it runs, as it is written.
    before, after
        The words of the launcher, and those of the program.
    """

    program: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    line: int
    certain: bool


def launches(script: ScriptFindings, program: str) -> list[Launch]:
    """Return the commands that run a program whose path fits a regular expression."""
    found: list[Launch] = []
    for command in script.commands:
        place = _place(command, program)
        if place is None:
            continue
        words = command.words
        line = line_of(words[place]) or command.line
        name = plain(words[place])
        launch = Launch(name, words[:place], words[place + 1 :], line, command.certain)
        if _texts(launch) not in [_texts(other) for other in found]:
            found.append(launch)
    certain = [each for each in found if each.certain]
    return certain or found


def _texts(launch: Launch) -> tuple[str, ...]:
    return tuple(plain(word) for word in (*launch.before, launch.program, *launch.after))


def _place(command: Command, program: str) -> int | None:
    for place, word in enumerate(command.words):
        if re.fullmatch(program, PLACEHOLDER.sub("", plain(word))) is not None:
            return place
    return None


def chosen(source: LaunchSource, found: Sequence[Launch]) -> Launch:
    """Return the one launch, or that which the user means; refuse to choose among several."""
    if len(found) == 1:
        return found[0]
    number = source.set_.get("launch", "")
    if number.isdigit() and 1 <= int(number) <= len(found):
        return found[int(number) - 1]
    lines = ", ".join(f"{i} in line {each.line}" for i, each in enumerate(found, 1))
    raise source.error(
        f"the file starts {len(found)} jobs ({lines}); choose one: --set launch=1", found[0].line
    )


def choices(source: LaunchSource, program: str) -> tuple[str, ...]:
    """Return what chooses each of several launches of a script."""
    if source.suffix in {".yaml", ".yml", ".py", ".json", ".toml"}:
        return ()
    found = launches(follow(source), program)
    return tuple(f"launch={i + 1}" for i in range(len(found))) if len(found) > 1 else ()


def launch_options(launch: Launch) -> tuple[list[Option], list[Option]]:
    """Return the options of the launcher and those of the program."""
    return list(options(launch.before)), list(options(launch.after))


@dataclass(frozen=True)
class Devices:
    """How many devices a script asks for, and where it says so."""

    count: int | None
    per_node: int | None
    nodes: int | None
    said: tuple[Option, ...] = ()


def devices(script: ScriptFindings, before: Sequence[Option]) -> Devices:
    """Work out how many devices a launch has, from its launcher or the batch system."""
    per_node = nodes = None
    said: list[Option] = []
    every = [*_of_slurm(script), *_of_srun(script), *before]
    for option in every:
        name = canonical(option.name)
        count = _number(option.value)
        if name in _PER_NODE | _NODES:
            said = [each for each in said if canonical(each.name) != name]
            said.append(option)
        if name in _PER_NODE and count is not None:
            per_node = count
        elif name in _NODES and count is not None:
            nodes = count
        elif name in _PER_NODE | _NODES and option in before:
            return Devices(None, per_node, nodes, tuple(said))  # a placeholder overrides
    launched = any(canonical(option.name) in _PER_NODE | _NODES for option in every)
    if per_node is None or not launched:
        return Devices(None, per_node, nodes, tuple(said))
    return Devices(per_node * (nodes or 1), per_node, nodes, tuple(said))


def _number(value: str | None) -> int | None:
    if value is None:
        return None
    found = re.fullmatch(r"\s*(\d+)(:\d+)?\s*", value)
    return int(found[1]) if found else None


def _of_slurm(script: ScriptFindings) -> list[Option]:
    found = []
    for name, (value, line) in script.slurm.items():
        if name in {"gres", "gpus-per-node"}:
            count = re.search(r"(?:^|gpu:(?:\w+:)?)(\d+)$", value)
            if count:
                found.append(Option("--gpus-per-node", count[1], line))
        elif name == "nodes":
            found.append(Option("--nodes", value, line))
    if not any(option.name == "--gpus-per-node" for option in found) and "nodes" in script.slurm:
        value, line = script.slurm.get("ntasks-per-node", ("", 0))
        if value.isdigit() and int(value) > 1:
            found.append(Option("--gpus-per-node", value, line))
    return found


def _of_srun(script: ScriptFindings) -> list[Option]:
    found: list[Option] = []
    for command in script.commands:
        if plain(command.words[0]) != "srun":
            continue
        for option in options(command.words):
            name = {"-N": "--nodes"}.get(option.name, option.name)
            value = option.value.split()[0] if option.value else None
            if name == "--gres" and value and (count := re.search(r":(\d+)$", value)):
                found.append(Option("--gpus-per-node", count[1], option.line))
            elif name in {"--nodes", "--gpus-per-node"}:
                found.append(Option(name, value, option.line))
    return found


def why_nothing(script: ScriptFindings, signs: Sequence[str]) -> str:
    """Say why a script starts no training: it only gives arguments, or needs another file."""
    if script.sources:
        files = ", ".join(name for name, _ in script.sources)
        return f"no training is started here: the file reads others that are not there ({files})"
    for name, value in script.variables.values.items():
        words = value if isinstance(value, list) else [str(value)]
        if any(sign in plain(word) for word in words for sign in signs):
            return (
                f"model arguments only ({name}): no training is started here, and no batch, machine"
                " or parallelism can be told from it"
            )
    return "no training is started here"
