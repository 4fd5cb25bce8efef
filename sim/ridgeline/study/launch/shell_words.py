"""Values of variables and words of a shell script, as far as the script itself gives them.

A part that it does not give becomes a placeholder (`sources.hole`), which costs nothing as long as
nobody needs it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ridgeline.study.launch.sources import MARK, PLACEHOLDER, hole, plain

Value = str | list[str] | dict[str, str]
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACED = re.compile(
    r"(?P<sign>[#!]?)(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$])(?:\[(?P<index>[^\]]*)\])?"
    r"(?P<rest>.*)",
    re.DOTALL,
)
_MOST_WORDS = 20_000


@dataclass
class Variables:
    """Variables of a script.

    Attributes
    ----------
    values
        By name; arrays are lists, or mappings if their keys are words.
    given
        What the user says, which no assignment changes.
    substitute
        Returns what a command prints, or None.
    """

    values: dict[str, Value] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    substitute: Callable[[str, int], str | None] = lambda _text, _line: None

    def get(self, name: str) -> Value | None:
        """Return a value; None where the script does not give it."""
        if name in self.given:
            return self.given[name]
        return self.values.get(name)

    def text(self, name: str) -> str:
        """Return a value as one word, or a placeholder."""
        value = self.get(name)
        if value is None:
            return hole(f"${name}" if name.isdigit() else name)
        return value if isinstance(value, str) else " ".join(_elements(value))


def _elements(value: Value) -> list[str]:
    if isinstance(value, str):
        return [value]
    return list(value.values()) if isinstance(value, dict) else value


def mark(line: int) -> str:
    """Return the sign that what follows stands on a line."""
    return f"\ue000{line}\ue001"


def line_of(word: str) -> int:
    """Return the line that a word of a script stands on; 0 if it is not known."""
    line = 0
    at = 0
    while (found := MARK.match(word, at)) is not None:
        line, at = int(found[0][1:-1]), found.end()
    return line


def known(text: str) -> bool:
    """Tell whether a value has no placeholder."""
    return PLACEHOLDER.search(text) is None


def split(text: str, line: int = 0) -> list[str]:
    """Split text at spaces; every word begins with the mark of its line."""
    words: list[str] = []
    current, at = line, 0
    piece = ""
    for found in re.finditer(f"{MARK.pattern}|[ \t\r\n]+|{PLACEHOLDER.pattern}", text):
        piece += text[at : found.start()]
        at = found.end()
        if found[0][0] == "\ue000":
            current = int(found[0][1:-1])
            if not plain(piece):
                piece = mark(current)
        elif found[0][0] == "\ue002":
            piece += found[0]
        else:
            if plain(piece):
                words.append(piece)
            piece = mark(current)
    piece += text[at:]
    if plain(piece):
        words.append(piece)
    return [word if word[0] == "\ue000" else mark(line) + word for word in words]


class Expander:
    """Makes words of what is written, with the values of variables."""

    def __init__(self, variables: Variables) -> None:
        self.variables = variables

    def words(self, raw: str, line: int) -> list[str]:
        """Return the words that a word as it is written stands for."""
        done: list[str] = []
        piece, quoted = mark(line), False
        for text, kind in self._pieces(raw, line):
            if kind == "list":
                parts = text.split("\ue004") if text else []
                if parts:
                    done += [piece + parts[0], *parts[1:]][:-1]
                    piece = (piece if len(parts) == 1 else "") + parts[-1]
                    quoted = True
            elif kind == "loose":
                parts = split(text.replace("\ue004", " "))
                if not parts:
                    continue
                if len(done) + len(parts) > _MOST_WORDS:
                    break
                starts, ends = plain(text)[:1].isspace(), plain(text)[-1:].isspace()
                if starts and plain(piece):
                    done, piece = [*done, piece], mark(line)
                done += [piece + parts[0], *parts[1:]][:-1]
                piece = (piece if len(parts) == 1 else "") + parts[-1]
                if ends:
                    done, piece = [*done, piece], mark(line)
            else:
                piece += text
                quoted = quoted or kind == "quoted"
        if plain(piece) or quoted:
            done.append(piece)
        return done

    def text(self, raw: str, line: int) -> str:
        """Return what a word stands for, without splitting it."""
        return "".join(text.replace("\ue004", " ") for text, _ in self._pieces(raw, line))

    def document(self, text: str) -> str:
        """Return a here-document with the values of variables."""
        return "".join(piece for piece, _ in self._inside_quotes(text, 0, document=True))

    def _pieces(self, raw: str, line: int) -> Iterator[tuple[str, str]]:
        at = 0
        while at < len(raw):
            sign = raw[at]
            if (found := MARK.match(raw, at)) is not None:
                line, at = int(found[0][1:-1]), found.end()
                yield found[0], "plain"
            elif sign == "\\":
                if raw.startswith("\n", at + 1):
                    line += 1
                else:
                    yield raw[at + 1 : at + 2], "quoted"
                at += 2
            elif sign == "'":
                end = raw.find("'", at + 1)
                end = len(raw) if end < 0 else end
                text = raw[at + 1 : end]
                yield _marked(text, line), "quoted"
                line += text.count("\n")
                at = end + 1
            elif sign == '"':
                end = _closing_quote(raw, at)
                text = raw[at + 1 : end]
                yield "", "quoted"
                yield from self._inside_quotes(text, line)
                line += text.count("\n")
                at = end + 1
            elif sign in "$`":
                value, end, kind = self._expansion(raw, at, line, quoted=False)
                yield value, kind
                line += raw.count("\n", at, end)
                if kind == "loose":
                    yield mark(line), "plain"
                at = end
            else:
                yield sign, "plain"
                line += sign == "\n"
                at += 1

    def _inside_quotes(
        self, text: str, line: int, *, document: bool = False
    ) -> Iterator[tuple[str, str]]:
        at = 0
        while at < len(text):
            sign = text[at]
            if (found := MARK.match(text, at)) is not None:
                line, at = int(found[0][1:-1]), found.end()
                yield found[0], "quoted"
            elif sign == "\\" and text[at + 1 : at + 2] in {"$", "`", '"', "\\", "\n"}:
                if text[at + 1] == "\n":
                    line += 1
                    yield mark(line), "quoted"
                elif document and text[at + 1] == '"':
                    yield '\\"', "quoted"
                else:
                    yield text[at + 1], "quoted"
                at += 2
            elif sign in "$`":
                value, end, kind = self._expansion(text, at, line, quoted=True)
                yield value, "list" if kind == "list" and not document else "quoted"
                line += text.count("\n", at, end)
                if line:
                    yield mark(line), "quoted"
                at = end
            else:
                line += sign == "\n"
                yield (sign + mark(line) if sign == "\n" and line else sign), "quoted"
                at += 1

    def _expansion(  # noqa: PLR0911 - a case each
        self, raw: str, at: int, line: int, *, quoted: bool
    ) -> tuple[str, int, str]:
        """Return the value of what begins with a dollar or backquote, its end, and its kind."""
        loose = "quoted" if quoted else "loose"
        if raw[at] == "`":
            end = raw.find("`", at + 1)
            end = len(raw) if end < 0 else end
            return self._substituted(raw[at + 1 : end], line), end + 1, loose
        if raw.startswith("$((", at) and (end := raw.find("))", at)) > 0:
            end = _closing(raw, at + 1, "(", ")")
            return arithmetic(raw[at + 3 : end - 1], self), end + 1, loose
        if raw.startswith("$(", at):
            end = _closing(raw, at + 1, "(", ")")
            return self._substituted(raw[at + 2 : end], line), end + 1, loose
        if raw.startswith("${", at):
            end = _closing(raw, at + 1, "{", "}")
            value, many = self._braced(raw[at + 2 : end], line)
            return value, end + 1, "list" if many and quoted else loose
        if raw.startswith("$'", at) and not quoted and (end := raw.find("'", at + 2)) > 0:
            return raw[at + 2 : end], end + 1, "quoted"
        found = _NAME.match(raw, at + 1)
        if found is None:
            return "$", at + 1, "plain"
        if found[0] in {"@", "*"}:
            return self._positional(), found.end(), "list" if quoted else loose
        array = self.variables.get(found[0])
        if isinstance(array, list | dict):  # without an index: its first
            return (_elements(array) or [""])[0], found.end(), loose
        return self.variables.text(found[0]), found.end(), loose

    def _positional(self) -> str:
        value = self.variables.get("@")
        return "" if value is None else "\ue004".join(_elements(value))

    def _substituted(self, command: str, line: int) -> str:
        found = self.variables.substitute(command, line)
        return hole(f"$({' '.join(plain(command).split())[:40]})") if found is None else found

    def _braced(self, inside: str, line: int) -> tuple[str, bool]:  # noqa: PLR0911 - a case each
        """Return the value of ``${inside}``, and whether it is many words."""
        found = _BRACED.fullmatch(MARK.sub("", inside))
        if found is None:
            return hole(f"${{{plain(inside)}}}"), False
        name, index, rest = found["name"], found["index"], found["rest"]
        if found["sign"] == "!" and index is None and not rest:
            target = plain(self.variables.text(name))
            return (self.variables.text(target) if target.isidentifier() else target), False
        if name in {"@", "*"}:
            return self._positional(), True
        value = self.variables.get(name)
        if found["sign"] == "#":
            if value is None:
                return "0", False
            count = len(_elements(value)) if index in {"@", "*"} else len(plain(str(value)))
            return str(count), False
        if index in {"@", "*"} and not rest:
            if value is None:
                return hole(name), False
            elements = list(value) if found["sign"] == "!" and isinstance(value, dict) else None
            return "\ue004".join(elements or _elements(value)), index == "@"
        text = self._element(name, value, index, line)
        return self._changed(name, text, rest, line), False

    def _element(self, name: str, value: Value | None, index: str | None, line: int) -> str | None:
        if value is None or isinstance(value, str):
            return value
        if index is None:
            return (_elements(value) or [""])[0]
        key = plain(self.text(index, line))
        if isinstance(value, dict):
            return value.get(key.strip("\"'"))
        number = arithmetic(index, self)
        try:
            return value[int(number)]
        except (ValueError, IndexError):
            return hole(f"{name}[{plain(key)}]")

    def _changed(self, name: str, text: str | None, rest: str, line: int) -> str:
        """Return a value changed as what stands behind its name says: ``:-default``, ``%.sh``."""
        if not rest:
            return hole(f"${name}" if name.isdigit() else name) if text is None else text
        absent = text is None or (rest[0] == ":" and not plain(text))
        if (default := re.match(r":?([-=?+])", rest)) is not None:
            other = rest[default.end() :]
            match default[1]:
                case "-" | "=":
                    value = self.text(other, line) if absent else str(text)
                    if default[1] == "=" and absent:
                        self.variables.values[name] = value
                    return value
                case "?":
                    return hole(name) if absent else str(text)
                case _:
                    return "" if absent else self.text(other, line)
        if text is None or not known(text):
            return hole(name)
        return _edited(plain(text), rest, lambda raw: plain(self.text(raw, line)))


def _edited(  # noqa: PLR0911 - a case each
    text: str, rest: str, expand: Callable[[str], str]
) -> str:
    match rest[0]:
        case "%" | "#":
            longest = rest[:2] in {"%%", "##"}
            pattern = expand(rest[2 if longest else 1 :])
            spans = range(len(text) + 1)
            if rest[0] == "%":
                cuts = [i for i in spans if fnmatch.fnmatchcase(text[i:], pattern)]
                return text[: (min if longest else max)(cuts)] if cuts else text
            cuts = [i for i in spans if fnmatch.fnmatchcase(text[:i], pattern)]
            return text[(max if longest else min)(cuts) :] if cuts else text
        case "/":
            every = rest.startswith("//")
            old, _, new = rest[2 if every else 1 :].partition("/")
            old, new = expand(old.replace("\\", "")), expand(new)
            return text.replace(old, new, -1 if every else 1) if old else text
        case ",":
            return text.lower()
        case "^":
            return text.upper()
        case ":":
            start, _, length = rest[1:].strip().partition(":")
            if start.strip().isdigit() and (not length or length.strip().isdigit()):
                tail = text[int(start) :]
                return tail[: int(length)] if length else tail
    return hole("a part of a value")


def _marked(text: str, line: int) -> str:
    parts = text.split("\n")
    return "\n".join([parts[0], *(mark(line + i) + part for i, part in enumerate(parts[1:], 1))])


def _closing_quote(raw: str, at: int) -> int:
    at += 1
    while at < len(raw) and raw[at] != '"':
        if raw[at] == "\\":
            at += 2
        elif raw.startswith("$(", at):
            at = _closing(raw, at + 1, "(", ")") + 1
        elif raw.startswith("${", at):
            at = _closing(raw, at + 1, "{", "}") + 1
        elif raw[at] == "`" and (end := raw.find("`", at + 1)) > 0:
            at = end + 1
        else:
            at += 1
    return at


def _closing(raw: str, at: int, opening: str, closing: str) -> int:
    """Return the place of the bracket that closes the one at a place."""
    depth = 0
    while at < len(raw):
        sign = raw[at]
        if sign == "\\":
            at += 1
        elif sign == "'" and opening == "(":
            end = raw.find("'", at + 1)
            at = len(raw) if end < 0 else end
        elif sign == '"':
            at = _closing_quote(raw, at)
        elif sign == opening:
            depth += 1
        elif sign == closing:
            depth -= 1
            if not depth:
                return at
        at += 1
    return len(raw)


_TERM = re.compile(r"\s*(\*\*|<<|>>|<=|>=|==|!=|&&|\|\||\d+(?:\.\d+)?|[A-Za-z_]\w*|\S)")
_POWER: Mapping[str, int] = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, ">": 4, "<=": 4, ">=": 4,
    "<<": 5, ">>": 5, "+": 6, "-": 6, "*": 7, "/": 7, "%": 7, "**": 8,
}  # fmt: skip
_LARGEST = 2**63


def arithmetic(raw: str, expander: Expander) -> str:
    """Return the value of an expression of whole numbers, or a placeholder."""
    text = plain(expander.text(raw, 0))
    if (found := PLACEHOLDER.search(text)) is not None:
        return found[0]
    terms = _TERM.findall(text)
    try:
        value, rest = _expression(terms, 0, 0, expander)
    except _Unknown as error:
        return hole(str(error))
    except (ValueError, ZeroDivisionError, IndexError, RecursionError):
        return hole(f"$(({text.strip()}))")
    return str(value) if rest == len(terms) else hole(f"$(({text.strip()}))")


class _Unknown(Exception):
    """A variable of an expression has no value."""


def _expression(terms: list[str], at: int, power: int, expander: Expander) -> tuple[int, int]:
    value, at = _operand(terms, at, expander)
    while at < len(terms) and _POWER.get(terms[at], 0) > power:
        operator = terms[at]
        own = _POWER[operator] - (operator == "**")
        right, at = _expression(terms, at + 1, own, expander)
        value = _applied(operator, value, right)
        if abs(value) > _LARGEST:
            raise ValueError
    return value, at


def _operand(terms: list[str], at: int, expander: Expander) -> tuple[int, int]:
    term = terms[at]
    if term == "(":
        value, at = _expression(terms, at + 1, 0, expander)
        if terms[at] != ")":
            raise ValueError
        return value, at + 1
    if term in {"-", "+", "!"}:
        value, at = _operand(terms, at + 1, expander)
        return {"-": -value, "+": value, "!": int(not value)}[term], at
    if term.isdigit():
        return int(term), at + 1
    if term.isidentifier():
        text = plain(expander.variables.text(term)).strip()
        if (found := PLACEHOLDER.search(text)) is not None:
            raise _Unknown(found["name"])
        return int(text or 0), at + 1
    raise ValueError


def _applied(operator: str, left: int, right: int) -> int:  # noqa: PLR0911 - a case each
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return int(left / right) if abs(left) < 2**50 else left // right
        case "%":
            return left % right
        case "**":
            if not 0 <= right <= 63:
                raise ValueError
            return int(left**right)
        case "<<" | ">>":
            if not 0 <= right <= 63:
                raise ValueError
            return left << right if operator == "<<" else left >> right
        case "&&":
            return int(bool(left) and bool(right))
        case "||":
            return int(bool(left) or bool(right))
    compared = {
        "==": left == right, "!=": left != right, "<": left < right,
        ">": left > right, "<=": left <= right, ">=": left >= right,
    }  # fmt: skip
    return int(compared[operator])
