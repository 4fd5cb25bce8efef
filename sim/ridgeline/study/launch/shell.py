"""What a shell script would run, worked out without running anything.

Variables are followed through assignments, conditions and loops as far as the script itself gives
their values. Where it does not, both ways are followed, and what differs becomes a placeholder.
"""

from __future__ import annotations

import copy
import fnmatch
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ridgeline.bounded_files import read_text
from ridgeline.errors import ConfigError
from ridgeline.study.launch import shell_syntax as syntax
from ridgeline.study.launch.shell_words import (
    Expander,
    Value,
    Variables,
    arithmetic,
    known,
    line_of,
    mark,
    split,
)
from ridgeline.study.launch.sources import PLACEHOLDER, LaunchSource, hole, plain

_ASSIGNMENT = re.compile(
    r"(?P<name>[A-Za-z_]\w*)(?:\[(?P<index>[^\]]*)\])?(?P<add>\+?)=", re.DOTALL
)
_DECLARE = {"export", "declare", "local", "readonly", "typeset"}
_SHELLS = {"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/usr/bin/bash"}
_QUIET = {
    "echo", "printf", "cat", "mkdir", "cd", "set", "shift", "unset", "sleep", "rm", "cp", "ls",
    "wait", "ulimit", "module", "conda", "pip", "pip3", "git", "wget", "curl", "tar", "chmod",
    "touch", "date", "trap", "alias", "shopt", "pwd", "which", "nvidia-smi", "pkill", "ps",
    "kill", "grep", "sed", "awk", "basename", "dirname", "pushd", "popd", "true", "false", ":",
    "[", "[[", "test", "let", "apt-get",
}  # fmt: skip
"""Commands that start no training."""
_MOST_TURNS = 100
_DEEPEST = 12
_MOST_COMMANDS = 5000
_MOST_STEPS = 50_000
_LONGEST = 2**20


@dataclass(frozen=True)
class Command:
    """A command that the script runs: its words, and whether only perhaps."""

    words: tuple[str, ...]
    line: int
    certain: bool = True


@dataclass
class ScriptFindings:
    """What following a script has found.

    Attributes
    ----------
    commands
        That could start something, in order.
    documents
        Text that the script writes to files (here-documents), by the file's name.
    slurm
        Options of its ``#SBATCH`` lines: value and line by name.
    sources
        Other files that it reads, with the line.
    variables
        As they are at the end.
    """

    commands: list[Command] = field(default_factory=list)
    documents: dict[str, str] = field(default_factory=dict)
    slurm: dict[str, tuple[str, int]] = field(default_factory=dict)
    sources: list[tuple[str, int]] = field(default_factory=list)
    variables: Variables = field(default_factory=Variables)

    def value(self, name: str) -> str | None:
        """Return the value of a variable as text; None where the script gives none."""
        value = self.variables.get(name)
        if value is None:
            return None
        text = plain(self.variables.text(name))
        return text if known(text) else None


def follow(source: LaunchSource) -> ScriptFindings:
    """Follow a shell script.

    Raises
    ------
    ConfigError
        If its quotes, brackets or keywords do not match.
    """
    script = ScriptFindings()
    script.slurm = slurm_options(source.text)
    script.variables.given = source.set_
    _slurm_variables(script)
    runner = _Runner(source.file, script)
    runner.run_text(source.text, 1)
    return script


def slurm_options(text: str) -> dict[str, tuple[str, int]]:
    """Return the options of ``#SBATCH`` lines, value and line by long name."""
    long = {"N": "nodes", "n": "ntasks", "p": "partition", "J": "job-name", "c": "cpus-per-task"}
    found: dict[str, tuple[str, int]] = {}
    pattern = re.compile(r"\s*#\s?SBATCH\s+(?:--([\w-]+)(?:[= ]\s*([^\s#]+))?|-(\w)\s*([^\s#]+))")
    for number, line in enumerate(text.splitlines(), 1):
        if (option := pattern.match(line)) is not None:
            name = option[1] or long.get(option[3], option[3])
            found[name] = (plain(option[2] or option[4] or ""), number)
    return found


def _slurm_variables(script: ScriptFindings) -> None:
    names = {
        "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        "ntasks": ("SLURM_NTASKS",),
        "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
        "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
        "cpus-per-task": ("SLURM_CPUS_PER_TASK",),
        "job-name": ("SLURM_JOB_NAME",),
    }
    for option, variables in names.items():
        value = script.slurm.get(option, ("", 0))[0]
        if value.isdigit() or (value and option == "job-name"):
            for name in variables:
                script.variables.values[name] = value


class _Exit(Exception):
    """The script, or a function, ends; because something is amiss, or not."""

    def __init__(self, amiss: bool) -> None:
        self.amiss = amiss


class _Runner:
    """Follows the commands of a script."""

    def __init__(self, file: str, script: ScriptFindings) -> None:
        self.file, self.script = file, script
        self.variables = script.variables
        self.variables.substitute = self._substitute
        self.expander = Expander(self.variables)
        self.functions: dict[str, syntax.Listed] = {}
        self.certain = True
        self.steps = 0
        self.asked = ""  # what the last condition that was left open needs
        self.depth = 0
        self.variables.values.setdefault("#", "0")

    def run_text(self, text: str, line: int) -> None:
        """Follow a script, or a command that is given as text."""
        self.depth += 1
        if self.depth <= _DEEPEST:
            parsed = syntax.parse(text, self.file, line)
            try:
                self._listed(parsed)
            except _Exit:
                if self.depth == 1:
                    pass
                elif self.depth > 1:
                    self.depth -= 1
                    raise
        self.depth -= 1

    def _listed(self, listed: syntax.Listed) -> bool | None:
        """Follow commands; return whether the last one holds, where that is known."""
        holds: bool | None = None
        for joint, node in listed.parts:
            if (joint == "&&" and holds is False) or (joint == "||" and holds is True):
                continue
            if joint in {"&&", "||"} and holds is None:
                self._perhaps([partial(self._node, node)])
                continue
            holds = self._node(node)
        return holds

    def _node(self, node: syntax.Node) -> bool | None:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise ConfigError("shell: too many commands to follow", file=self.file)
        match node:
            case syntax.Simple():
                return self._simple(node)
            case syntax.Listed():
                return self._listed(node)
            case syntax.ShellGroup(body):
                return self._listed(body)
            case syntax.ShellFunction(name, body):
                self.functions[name] = body
            case syntax.ShellConditional(cases):
                self._branches(cases)
            case syntax.ShellCase():
                self._choice(node)
            case syntax.ShellLoop():
                self._loop(node)
        return None

    def _perhaps(self, ways: list[Callable[[], object]], *, nothing: bool = True) -> None:
        """Follow several ways of which one is taken; what they leave different is not known."""
        before, asked = self.variables.values, self.asked
        certain, self.certain = self.certain, False
        ends: list[dict[str, Value]] = [before] if nothing else []
        for way in ways:
            self.variables.values = copy.deepcopy(before)
            try:
                way()
            except _Exit:
                continue
            ends.append(self.variables.values)
        self.certain = certain
        if not ends:
            self.variables.values = before
            raise _Exit(False)
        merged: dict[str, Value] = {}
        for name in dict.fromkeys(name for end in ends for name in end):
            values = [end.get(name) for end in ends]
            first = values[0]
            if first is not None and all(_same(first, value) for value in values):
                merged[name] = first
            else:
                merged[name] = hole(asked or name)
        self.variables.values = merged
        self.asked = ""

    def _branches(self, cases: tuple[tuple[syntax.Listed | None, syntax.Listed], ...]) -> None:
        ways: list[Callable[[], object]] = []
        for condition, body in cases:
            holds = True if condition is None else self._listed(condition)
            if holds is True and not ways:
                self._guarded(body)
                return
            if holds is not False:
                ways.append(partial(self._listed, body))
            if holds is True:
                self._perhaps(ways, nothing=False)
                return
        if ways:
            self._perhaps(ways)

    def _guarded(self, body: syntax.Listed) -> None:
        """Follow what a condition guards; a file that is to be filled in may complain of it."""
        try:
            self._listed(body)
        except _Exit as end:
            if not end.amiss:
                raise

    def _choice(self, node: syntax.ShellCase) -> None:
        word = self.expander.text(node.word.text, node.word.line)
        if known(word):
            for patterns, body in node.cases:
                for pattern in patterns:
                    if fnmatch.fnmatchcase(
                        plain(word), plain(self.expander.text(pattern.text, pattern.line))
                    ):
                        self._listed(body)
                        return
            return
        found = PLACEHOLDER.search(word)
        self.asked = found["name"] if found is not None and _settable(found["name"]) else ""
        self._perhaps([partial(self._listed, body) for _, body in node.cases])

    def _loop(self, node: syntax.ShellLoop) -> None:
        if node.condition is not None:
            if self._listed(node.condition) is not False:
                self._perhaps([partial(self._listed, node.body)])
            return
        words = [w for token in node.words for w in self.expander.words(token.text, token.line)]
        if node.name in self.variables.given:
            words = [self.variables.given[node.name]]
        if not all(known(word) for word in words) or len(words) > _MOST_TURNS:
            self._perhaps([partial(self._turn, node, hole(node.name))])
            return
        for word in words:
            self._turn(node, word)

    def _turn(self, node: syntax.ShellLoop, value: str) -> None:
        self.variables.values[node.name] = value
        self._listed(node.body)

    def _simple(self, node: syntax.Simple) -> bool | None:
        texts = [token.text for token in node.words]
        if texts and texts[0].startswith("(("):
            return self._counted(texts[0][2:-2])
        count = 0
        while count < len(texts) and _ASSIGNMENT.match(plain(texts[count])):
            count += 1
        if count == len(texts):
            for token in node.words:
                self._assign(token)
            return True
        if texts[0] in _DECLARE:
            for token in node.words[1:]:
                if _ASSIGNMENT.match(plain(token.text)):
                    self._assign(token)
            return True
        negated = texts[count] == "!"
        words = [
            word
            for token in node.words[count + negated :]
            for word in self.expander.words(token.text, token.line)
        ]
        if not words:
            return None
        holds = self._call(node, words, node.words[:count])
        return (not holds) if negated and holds is not None else holds

    def _counted(self, text: str) -> bool | None:
        if re.match(r"\s*\w+\s*([-+*/]?=[^=]|\+\+|--)", text):
            name = text.strip(" +-").split()[0].rstrip("+-=")
            if name.isidentifier():
                self.variables.values[name] = hole(name)
            return None
        value = arithmetic(text, self.expander)
        return bool(int(value)) if known(value) else None

    def _assign(self, token: syntax.Token) -> None:
        raw = token.text
        found = _ASSIGNMENT.match(plain(raw))
        assert found is not None
        name, value = found["name"], raw[raw.index("=") + 1 :]
        if name in self.variables.given:
            return
        old = self.variables.get(name)
        if value.startswith("("):
            new = self._array(value[1:-1], token.line)
            if found["add"] and old is not None:
                if isinstance(old, dict) and isinstance(new, dict):
                    new = {**old, **new}
                else:
                    start = old if isinstance(old, list) else [str(old)]
                    new = [*start, *new]
            if sum(map(len, new)) > _LONGEST:
                raise ConfigError(f"shell: {name} grows too long", file=self.file, line=token.line)
            self.variables.values[name] = new
            return
        text = mark(token.line) + self.expander.text(value, token.line)
        if len(text) > _LONGEST:
            raise ConfigError(f"shell: {name} grows too long", file=self.file, line=token.line)
        if found["index"] is not None:
            self._set_element(name, old, found["index"], text)
        elif found["add"]:
            if isinstance(old, list):
                old[0:1] = [(old or [""])[0] + text]
            else:
                self.variables.values[name] = (str(old) if old is not None else "") + text
        else:
            self.variables.values[name] = text

    def _set_element(self, name: str, old: Value | None, index: str, text: str) -> None:
        key = plain(self.expander.text(index, 0))
        if isinstance(old, list) and key.isdigit() and int(key) <= len(old):
            old[int(key) : int(key) + 1] = [text]
        else:
            items = dict(old) if isinstance(old, dict) else {}
            items[key] = text
            self.variables.values[name] = items

    def _array(self, inside: str, line: int) -> Value:
        tokens = [
            token
            for token in syntax._Scanner(inside, self.file, line).tokens()
            if token.kind == "word"
        ]
        pairs = [re.fullmatch(r"\[([^\]]+)\]=(.*)", token.text, re.DOTALL) for token in tokens]
        if tokens and all(pair is not None for pair in pairs):
            return {
                plain(self.expander.text(pair[1], line)): self.expander.text(pair[2], line)
                for pair in pairs
                if pair is not None
            }
        return [w for token in tokens for w in self.expander.words(token.text, token.line)]

    def _call(  # noqa: PLR0911 - a case each
        self, node: syntax.Simple, words: list[str], before: tuple[syntax.Token, ...]
    ) -> bool | None:
        name = plain(words[0])
        document = self._document(node)
        match name:
            case "[" | "[[" | "test":
                return self._test([plain(word) for word in words[1:]])
            case "true" | ":":
                return True
            case "false":
                return False
            case "exit" | "return":
                code = plain(words[1]) if len(words) > 1 else "0"
                raise _Exit(code not in {"0", "0x0"})
            case "source" | ".":
                if len(words) > 1:
                    self._sourced(plain(words[1]), node.line)
                return None
            case "read":
                self._read(node, words, before)
                return None
            case "unset":
                for word in words[1:]:
                    self.variables.values.pop(plain(word), None)
                return True
            case "set":
                if "--" in [plain(word) for word in words]:
                    self.variables.values["@"] = words[2:]
                return True
            case "eval":
                self.run_text(" ".join(words[1:]), node.line)
                return None
        if name in self.functions:
            self._function(name, words[1:])
            return None
        return self._started(node, words, document)

    def _function(self, name: str, arguments: list[str]) -> None:
        if self.depth > _DEEPEST:
            return
        self.depth += 1
        kept = {key: self.variables.values.get(key) for key in ("@", "#", *map(str, range(1, 10)))}
        self.variables.values |= {"@": arguments, "#": str(len(arguments))}
        for number in range(1, 10):
            given = arguments[number - 1] if number <= len(arguments) else ""
            self.variables.values[str(number)] = given
        try:
            self._listed(self.functions[name])
        except _Exit:
            pass
        finally:
            for key, value in kept.items():
                if value is None:
                    self.variables.values.pop(key, None)
                else:
                    self.variables.values[key] = value
            self.depth -= 1

    def _document(self, node: syntax.Simple) -> str | None:
        if not node.documents:
            return None
        text, expanded = node.documents[-1]
        if expanded:
            text = self.expander.document(text)
        for sign, token in node.redirections:
            if sign in {">", ">>", ">|"}:
                self.script.documents[plain(self.expander.text(token.text, token.line))] = text
        return text

    def _started(self, node: syntax.Simple, words: list[str], document: str | None) -> bool | None:
        """Note a command, and follow those that it is given as text."""
        names = [plain(word) for word in words]
        if names[0] == "echo":
            self._written(node, words)
        if names[0] in _QUIET:
            return True if names[0] in {"echo", "printf", "cd", "mkdir"} else None
        for place, name in enumerate(names):
            if name in _SHELLS:
                options = [
                    i for i in range(place + 1, len(names)) if re.fullmatch("-[a-z]*c", names[i])
                ]
                if options and options[0] + 1 < len(words):
                    self._note(node, words[:place])
                    self._inner(words[options[0] + 1], node.line)
                    return None
                if document is not None and place == len(names) - 1:
                    self._inner(document, node.line)
                    return None
                if place + 1 < len(names) and names[place + 1] in self.script.documents:
                    self._note(node, words[:place])
                    self._inner(self.script.documents[names[place + 1]], node.line)
                    return None
        self._note(node, words)
        if document is not None and names[0] in {"sbatch", "srun", "qsub"}:
            self.script.slurm |= slurm_options(document)
            _slurm_variables(self.script)
            self._inner(document, node.line)
        return None

    def _written(self, node: syntax.Simple, words: list[str]) -> None:
        """Keep the text that an echo writes to a file."""
        for sign, token in node.redirections:
            if sign in {">", ">|"}:
                file = plain(self.expander.text(token.text, token.line))
                self.script.documents[file] = " ".join(words[1:])

    def _inner(self, text: str, line: int) -> None:
        kept = self.variables.values
        self.variables.values = copy.deepcopy(kept)
        with suppress(_Exit):
            self.run_text(text, line)
        self.variables.values = kept

    def _note(self, node: syntax.Simple, words: list[str]) -> None:
        if words and len(self.script.commands) < _MOST_COMMANDS:
            line = line_of(words[0]) or node.line
            self.script.commands.append(Command(tuple(words), line, self.certain))

    def _read(
        self, node: syntax.Simple, words: list[str], before: tuple[syntax.Token, ...]
    ) -> None:
        names = [plain(word) for word in words[1:] if not plain(word).startswith("-")]
        fed = next((token for sign, token in node.redirections if sign == "<<<"), None)
        if fed is None:
            for name in names:
                self.variables.values[name] = hole(name)
            return
        separators = " \t\n"
        for token in before:
            if token.text.startswith("IFS="):
                separators = plain(self.expander.text(token.text[4:], token.line))
        text = plain(self.expander.text(fed.text, fed.line))
        parts = re.split(f"[{re.escape(separators)}]+", text.strip()) if known(text) else []
        for place, name in enumerate(names):
            self.variables.values[name] = parts[place] if place < len(parts) else hole(name)

    def _substitute(self, command: str, line: int) -> str | None:  # noqa: PLR0911 - a case each
        """Return what a command prints, for the few that print what the script gives."""
        try:
            parsed = syntax.parse(command, self.file, line)
        except ConfigError:
            return None
        nodes = [node for _, node in parsed.parts if isinstance(node, syntax.Simple)]
        if not nodes or len(nodes) != len(parsed.parts):
            return None
        node, filters = nodes[0], nodes[1:]
        if node.documents and [token.text for token in node.words] == ["cat"]:
            text, expanded = node.documents[-1]
            return self.expander.document(text) if expanded else text
        if any(joint != "|" for joint, _ in parsed.parts[1:]) or not all(
            map(_spaces_only, filters)
        ):
            return None
        words = [
            plain(word)
            for token in node.words
            for word in self.expander.words(token.text, token.line)
        ]
        if words and words[0] == "echo" and not node.redirections:
            return " ".join(words[1:])
        if not words or not all(known(word) for word in words):
            return None
        match words[0]:
            case "expr":
                value = arithmetic(" ".join(words[1:]), self.expander)
                return value if known(value) else None
            case "seq" if all(word.isdigit() for word in words[1:]) and len(words) in {2, 3}:
                first, last = (1, int(words[1])) if len(words) == 2 else map(int, words[1:])
                return " ".join(map(str, range(first, min(last, first + _MOST_TURNS) + 1)))
            case "basename" if len(words) > 1:
                return words[1].rstrip("/").rpartition("/")[2].removesuffix((words[2:] or [""])[0])
        return None

    def _sourced(self, name: str, line: int) -> None:
        """Follow another file that the script reads, if it is there."""
        tail = name[name.rfind("\ue003") + 1 :].lstrip("/")
        path = Path(self.file).parent / tail
        shown = PLACEHOLDER.sub(lambda found: found["name"], name)
        if not tail or self.depth > _DEEPEST or not path.is_file():
            self.script.sources.append((shown, line))
            return
        kept, self.file = self.file, str(path)
        self.run_text(read_text(path), 1)
        self.file = kept

    def _test(self, words: list[str]) -> bool | None:
        words = [_assumed(word) for word in words if word not in {"]", "]]"}]
        holds = _Test(words).holds()
        if holds is None:
            found = [match["name"] for word in words for match in PLACEHOLDER.finditer(word)]
            self.asked = next((name for name in found if _settable(name)), "")
        return holds


def _settable(name: str) -> bool:
    """Tell whether the user can give a placeholder: a variable, or an argument of the script."""
    return name.lstrip("$").isidentifier() or name.lstrip("$").isdigit()


def _spaces_only(node: syntax.Simple) -> bool:
    """Tell whether a filter changes nothing but spaces and line ends."""
    words = [token.text.strip("'\"") for token in node.words]
    match words:
        case ["tr", "\\n", " "] | ["tr", "-s", " "] | ["xargs"]:
            return True
        case ["sed", rule]:
            return (
                re.fullmatch(r"s/[ \\s+*^$|]*/ ?/g?(;\s*s/[ \\s+*^$|]*/ ?/g?)*", rule) is not None
            )
    return False


def _assumed(word: str) -> str:
    """Return a word of a condition; a variable that the script never sets is taken as empty."""
    found = PLACEHOLDER.fullmatch(word)
    return word if found is None or not found["name"].isidentifier() else f"\ue005{found['name']}"


def _same(one: Value, other: Value | None) -> bool:
    if isinstance(one, str):
        return isinstance(other, str) and plain(one) == plain(other)
    return type(one) is type(other) and one == other


class _Test:
    """A condition in brackets."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.at = words, 0

    def holds(self) -> bool | None:
        try:
            return self._any()
        except IndexError:
            return None

    def _any(self) -> bool | None:
        value = self._all()
        while self.at < len(self.words) and self.words[self.at] in {"||", "-o"}:
            self.at += 1
            other = self._all()
            value = True if True in (value, other) else (None if None in (value, other) else False)
        return value

    def _all(self) -> bool | None:
        value = self._one()
        while self.at < len(self.words) and self.words[self.at] in {"&&", "-a"}:
            self.at += 1
            other = self._one()
            value = False if False in (value, other) else (None if None in (value, other) else True)
        return value

    def _one(self) -> bool | None:  # noqa: PLR0911 - a case each
        words, at = self.words, self.at
        if words[at] == "!":
            self.at += 1
            value = self._one()
            return None if value is None else not value
        if words[at] == "(":
            self.at += 1
            value = self._any()
            self.at += 1
            return value
        following = words[at + 1] if at + 1 < len(words) else ""
        if following in _COMPARED:
            self.at += 3
            return _compared(words[at], following, words[at + 2] if at + 2 < len(words) else "")
        if words[at] in {"-z", "-n", "-v"}:
            self.at += 2
            if _open(following):
                return None
            return bool(_emptied(following)) != (words[at] == "-z")
        if re.fullmatch("-[a-zA-Z]", words[at]):
            self.at += 2
            return None
        self.at += 1
        return None if _open(words[at]) else bool(_emptied(words[at]))


_COMPARED = {"=", "==", "!=", "=~", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "<", ">"}


def _open(word: str) -> bool:
    return not known(word)


def _emptied(word: str) -> str:
    return "" if word.startswith("\ue005") else word


def _compared(left: str, operator: str, right: str) -> bool | None:
    if _open(left) or _open(right):
        return None
    left, right = _emptied(left), _emptied(right)
    match operator:
        case "=" | "==":
            return fnmatch.fnmatchcase(left, right)
        case "!=":
            return not fnmatch.fnmatchcase(left, right)
        case "=~":
            return None
    try:
        one, other = int(left or 0), int(right or 0)
    except ValueError:
        return None
    return {
        "-eq": one == other, "-ne": one != other, "-lt": one < other,
        "-le": one <= other, "-gt": one > other, "-ge": one >= other,
    }.get(operator)  # fmt: skip


__all__ = ["Command", "ScriptFindings", "follow", "line_of", "slurm_options", "split"]
