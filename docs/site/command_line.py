"""The command line as pages, from the verbs themselves: what ``--help`` says, one page a verb."""

from __future__ import annotations

import inspect
import re
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from cyclopts.argument import Argument

import ridgeline as rl
from repository_pages import outside_code
from ridgeline.cli.app import VERBS, Verb, app

_EVERYWHERE = """\
Every verb also takes

| option | meaning |
|---|---|
| `--quiet`, `-q` | No notes and no progress. |
| `--verbose`, `-v` | Whole summaries, and which files were read. |
| `--plugin FILE.py` | A file of yours with further op kinds, schedules, topologies and the like \
([extending](../../extending.md)). |
| `--help`, `-h` | What stands on these pages. |

`ridgeline --version` prints the version. `ridgeline --install-completion` makes the shell complete
verbs, options and names.

Exit status: 0; 1 where rows of a sweep have errors or a rule of `lint` refuses; 2 after a mistake
in what was asked, which is one line on standard error; 3 with `--require-fit` where a step does
not fit.
"""
_WORDS = {str: "TEXT", int: "NUMBER", float: "NUMBER"}
_PAGE = re.compile(r"\bdocs/([\w-]+)\.md\b")


def command_line_index() -> str:
    """Write the page that lists all verbs."""
    rows = [f"| [`{name}`]({name}.md) | {_prose(verb.help)} |" for name, verb in VERBS.items()]
    return "\n".join(
        ["# Command line", "", "`ridgeline VERB`. Made from the code of this version.", "",
         "| verb | what it does |", "|---|---|", *rows, "", _EVERYWHERE]
    )  # fmt: skip


def verb_page(name: str, verb: Verb) -> str:
    """Write the page of one verb: usage, example, arguments and options with their defaults."""
    shown = [each for each in arguments(name) if each.show]
    positional = [each for each in shown if _is_positional(each)]
    options = [each for each in shown if not _is_positional(each)]
    words = [_word(each) if each.required else f"[{_word(each)}]" for each in positional]
    parts = [
        f"# ridgeline {name}",
        _prose(verb.help),
        *_paragraphs(name),
        "\n".join(["```console", f"$ {verb.example}", "```"]),
        f"Usage: `{' '.join(['ridgeline', name, *words, '[OPTIONS]'])}`",
    ]
    if positional:
        parts.append(_table("argument", positional))
    if options:
        parts.append(_table("option", options))
    parts.append("Options of every verb: [command line](index.md).")
    twin = name.replace("-", "_")
    if twin in rl.__all__:
        parts.append(f"In Python: [`rl.{twin}`](../python/index.md).")
    return "\n\n".join(parts) + "\n"


def arguments(name: str) -> list[Argument]:
    """Return arguments and options of a verb, in the order of its help."""
    return list(app[name].assemble_argument_collection(parse_docstring=True))


def _is_positional(argument: Argument) -> bool:
    return argument.index is not None


def _word(argument: Argument) -> str:
    return argument.names[0].lstrip("-").upper()


def _table(kind: str, shown: list[Argument]) -> str:
    rows = [f"| {kind} | meaning | default |", "|---|---|---|"]
    rows.extend(f"| {_named(each)} | {_meaning(each)} | {_default(each)} |" for each in shown)
    return "\n".join(rows)


def _named(argument: Argument) -> str:
    if _is_positional(argument):
        return f"`{_word(argument)}`"
    name, kind = argument.names[0], _present(argument.hint)
    if kind is bool:
        return f"`{name}`"
    if get_origin(kind) is tuple:
        return f"`{name} {_WORDS.get(get_args(kind)[0], 'TEXT')}`, repeatable"
    return f"`{name} {_WORDS.get(kind, 'CHOICE' if argument.get_choices() else 'TEXT')}`"


def _meaning(argument: Argument) -> str:
    text = _prose(argument.parameter.help or "")
    choices = argument.get_choices() or ()
    listed = ", ".join(f"`{choice}`" for choice in choices)
    return f"{text} One of {listed}." if choices else text


def _default(argument: Argument) -> str:
    if argument.required:
        return "required"
    value = argument.field_info.default
    return "" if value in (None, False, (), "") else f"`{value}`"


def _present(hint: Any) -> Any:
    """Drop None from ``X | None``."""
    if get_origin(hint) in (Union, UnionType):
        return next(each for each in get_args(hint) if each is not type(None))
    return Literal if get_origin(hint) is Literal else hint


def _paragraphs(name: str) -> list[str]:
    """Return what the verb's docstring says between its first line and its parameters."""
    command = app[name].default_command
    assert command is not None
    text = inspect.cleandoc(command.__doc__ or "").split("\nParameters\n---")[0]
    return [_prose(part) for part in text.split("\n\n")[1:] if part.strip()]


def _prose(text: str) -> str:
    """Write a text of the help as one line of Markdown: code, links to pages, no accidents."""

    def plain(part: str) -> str:
        part = re.sub(r"([*_<|\[\]])", r"\\\1", part)
        return _PAGE.sub(r"[\1](../../\1.md)", part)

    joined = " ".join(text.replace("``", "`").split())
    return outside_code(joined, plain).replace("|", "\\|").replace("\\\\|", "\\|")
