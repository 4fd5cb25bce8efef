"""The syntax of shell scripts: words, commands, conditions and loops. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.errors import ConfigError
from ridgeline.study.launch.sources import MARK

_OPERATORS = ("&&", "||", ";;", ";", "&", "|", "(", ")")
_REDIRECTION = re.compile(r"(?:\d*|&)(?:<<<|<<-?|>>|>&|<&|>\||&>|>|<)")
_ARRAY = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=$")
_DEEPEST = 50


@dataclass(frozen=True)
class Token:
    """A word as it is written, an operator, or the end of a line."""

    text: str
    line: int
    kind: str
    """word, operator, newline, redirection."""


@dataclass(frozen=True)
class Simple:
    """A command with its words as they are written, and what is redirected."""

    words: tuple[Token, ...]
    redirections: tuple[tuple[str, Token], ...] = ()
    documents: tuple[tuple[str, bool], ...] = ()
    """Here-documents, and whether variables in them are replaced."""
    line: int = 0


@dataclass(frozen=True)
class Listed:
    """Commands one after the other, each with what joins it to the one before."""

    parts: tuple[tuple[str, Node], ...]


@dataclass(frozen=True)
class ShellConditional:
    """Conditions with what is done if they hold; the last condition may be None (else)."""

    cases: tuple[tuple[Listed | None, Listed], ...]


@dataclass(frozen=True)
class ShellCase:
    """A word and, by patterns, what is done (case)."""

    word: Token
    cases: tuple[tuple[tuple[Token, ...], Listed], ...]


@dataclass(frozen=True)
class ShellLoop:
    """What is done for each of some words (for), or again and again (while; no name)."""

    name: str
    words: tuple[Token, ...]
    condition: Listed | None
    body: Listed


@dataclass(frozen=True)
class ShellFunction:
    """A name for commands."""

    name: str
    body: Listed


@dataclass(frozen=True)
class ShellGroup:
    """Commands in braces or parentheses."""

    body: Listed


Node = Simple | Listed | ShellConditional | ShellCase | ShellLoop | ShellFunction | ShellGroup


def parse(text: str, file: str, line: int = 1) -> Listed:
    """Parse a script.

    Raises
    ------
    ConfigError
        If quotes, brackets or keywords do not match.
    """
    return _Parser(text, file, line).parse()


class _Scanner:
    """Cuts a script into tokens."""

    def __init__(self, text: str, file: str, line: int) -> None:
        self.text, self.file, self.line, self.at = text, file, line, 0
        self.waiting: list[tuple[str, bool, bool]] = []
        self.documents: list[tuple[str, bool]] = []

    def error(self, message: str) -> ConfigError:
        return ConfigError(f"shell: {message}", file=self.file, line=self.line)

    def tokens(self) -> Iterator[Token]:
        text = self.text
        while self.at < len(text):
            sign = text[self.at]
            if (mark := MARK.match(text, self.at)) is not None:
                self.line, self.at = int(mark[0][1:-1]), mark.end()
            elif text.startswith("\\\n", self.at):
                self.line, self.at = self.line + 1, self.at + 2
            elif sign in " \t\r":
                self.at += 1
            elif sign == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            elif sign == "\n":
                yield Token("\n", self.line, "newline")
                self.line, self.at = self.line + 1, self.at + 1
                self._read_documents()
            elif text.startswith("((", self.at) and (whole := self._arithmetic()) is not None:
                yield whole
            elif (found := _REDIRECTION.match(text, self.at)) is not None:
                self.at = found.end()
                yield Token(found[0].lstrip("0123456789"), self.line, "redirection")
                if found[0].lstrip("0123456789") in {"<<", "<<-"}:
                    self._open_document(found[0].endswith("-"))
            elif (
                operator := next((o for o in _OPERATORS if text.startswith(o, self.at)), "")
            ) != "":
                self.at += len(operator)
                yield Token(operator, self.line, "operator")
            else:
                yield self._word()

    def _arithmetic(self) -> Token | None:
        end = self.text.find("))", self.at)
        if end < 0 or "\n" in self.text[self.at : end]:
            return None
        token = Token(self.text[self.at : end + 2], self.line, "word")
        self.at = end + 2
        return token

    def _open_document(self, dashed: bool) -> None:
        found = re.compile(r"[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([\w.]+))").match(
            self.text, self.at
        )
        if found is None:
            raise self.error("a here-document needs the word that ends it")
        self.at = found.end()
        quoted = found[3] is None or "\\" in found[0]
        self.waiting.append((found[1] or found[2] or found[3], quoted, dashed))

    def _read_documents(self) -> None:
        for word, quoted, dashed in self.waiting:
            lines = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at, self.line = end + 1, self.line + 1
                if (line.lstrip("\t") if dashed else line).rstrip() == word:
                    break
                lines.append(f"\ue000{self.line - 1}\ue001{line}")
            self.documents.append(("\n".join(lines), not quoted))
        self.waiting = []

    def _word(self) -> Token:
        text, start, line = self.text, self.at, self.line
        while self.at < len(text):
            sign = text[self.at]
            if sign == "(" and _ARRAY.search(MARK.sub("", text[start : self.at])):
                self._skip_bracket("(", ")")
            elif sign in " \t\r\n;&|()<>":
                break
            else:
                self._step()
        return Token(text[start : self.at], line, "word")

    def _step(self) -> None:
        """Move past a sign of a word, or past what it opens."""
        text, sign = self.text, self.text[self.at]
        if sign == "\\":
            self.line += text.startswith("\n", self.at + 1)
            self.at += 2
        elif sign == "'":
            end = text.find("'", self.at + 1)
            if end < 0:
                raise self.error("a single quote is not closed")
            self.line += text.count("\n", self.at, end)
            self.at = end + 1
        elif sign == '"':
            self._skip_quotes()
        elif sign == "`":
            end = text.find("`", self.at + 1)
            if end < 0:
                raise self.error("a backquote is not closed")
            self.line += text.count("\n", self.at, end)
            self.at = end + 1
        elif text.startswith("$(", self.at):
            self.at += 1
            self._skip_bracket("(", ")")
        elif text.startswith("${", self.at):
            self.at += 1
            self._skip_bracket("{", "}")
        else:
            self.line += sign == "\n"
            self.at += 1

    def _skip_quotes(self) -> None:
        start = self.line
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            if self.text[self.at] == "'":
                self.at += 1
            else:
                self._step()
        if self.at >= len(self.text):
            self.line = start
            raise self.error("a double quote is not closed")
        self.at += 1

    def _skip_bracket(self, opening: str, closing: str) -> None:
        start, depth = self.line, 0
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == opening:
                depth += 1
                self.at += 1
            elif sign == closing:
                depth -= 1
                self.at += 1
                if not depth:
                    return
            elif sign == "#" and opening == "(" and self.text[self.at - 1] in " \t\n":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                self._step()
        self.line = start
        raise self.error(f"{opening!r} is not closed")


class _Parser:
    """Puts tokens together."""

    def __init__(self, text: str, file: str, line: int) -> None:
        self.scanner = _Scanner(text, file, line)
        self.tokens = list(self.scanner.tokens())
        self.documents = iter(self.scanner.documents)
        self.at = self.depth = 0

    def parse(self) -> Listed:
        listed = self._listed(())
        if self.at < len(self.tokens):
            raise self._error(f"{self.tokens[self.at].text!r} is not expected here")
        return listed

    def _error(self, message: str) -> ConfigError:
        place = min(self.at, len(self.tokens) - 1)
        line = self.tokens[place].line if self.tokens else 1
        return ConfigError(f"shell: {message}", file=self.scanner.file, line=line)

    def _peek(self, kind: str = "") -> str:
        if self.at < len(self.tokens) and kind in {"", self.tokens[self.at].kind}:
            return self.tokens[self.at].text
        return ""

    def _expect(self, text: str) -> None:
        self._skip_newlines()
        if self._peek() != text:
            raise self._error(f"{text!r} is missing")
        self.at += 1

    def _skip_newlines(self) -> None:
        while self._peek("newline") or self._peek("operator") == ";":
            self.at += 1

    def _listed(self, ends: tuple[str, ...]) -> Listed:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self._error("nested too deeply")
        parts: list[tuple[str, Node]] = []
        joint = ";"
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.kind == "newline" or token.text in {";", "&", "&&", "||", "|"}:
                if token.kind == "operator":
                    joint = token.text
                elif joint not in {"&&", "||", "|"}:
                    joint = ";"
                self.at += 1
                continue
            if token.text in ends:
                break
            if token.text in {")", ";;", "}", "fi", "done", "esac", "then", "do", "else", "elif"}:
                break
            parts.append((joint, self._command()))
            joint = ";"
        self.depth -= 1
        return Listed(tuple(parts))

    def _command(self) -> Node:  # noqa: PLR0911 - a case each
        match self._peek():
            case "if":
                return self._if()
            case "for" | "select":
                return self._for()
            case "while" | "until":
                return self._while()
            case "case":
                return self._case()
            case "{":
                return self._group("}")
            case "(":
                return self._group(")")
            case "function":
                self.at += 1
                return self._function()
        if self.tokens[self.at].kind == "word" and self._after(1) == "(" and self._after(2) == ")":
            return self._function()
        return self._simple()

    def _after(self, count: int) -> str:
        place = self.at + count
        return self.tokens[place].text if place < len(self.tokens) else ""

    def _group(self, end: str) -> ShellGroup:
        self.at += 1
        body = self._listed((end,))
        self._expect(end)
        self._redirected()
        return ShellGroup(body)

    def _redirected(self) -> None:
        while self._peek("redirection"):
            self.at += 2

    def _function(self) -> ShellFunction:
        name = self._peek()
        self.at += 1
        if self._peek() == "(":
            self.at += 2
        self._skip_newlines()
        body = self._command()
        return ShellFunction(name, Listed(((";", body),)))

    def _if(self) -> ShellConditional:
        cases: list[tuple[Listed | None, Listed]] = []
        self.at += 1
        while True:
            condition = self._listed(("then",))
            self._expect("then")
            cases.append((condition, self._listed(("elif", "else", "fi"))))
            if self._peek() != "elif":
                break
            self.at += 1
        if self._peek() == "else":
            self.at += 1
            cases.append((None, self._listed(("fi",))))
        self._expect("fi")
        self._redirected()
        return ShellConditional(tuple(cases))

    def _for(self) -> ShellLoop:
        self.at += 1
        name = self._peek("word")
        if not name:
            raise self._error("a loop needs the name of a variable")
        self.at += 1
        words: list[Token] = []
        self._skip_newlines()
        if self._peek() == "in":
            self.at += 1
            while self._peek("word"):
                words.append(self.tokens[self.at])
                self.at += 1
        return ShellLoop(name, tuple(words), None, self._body())

    def _while(self) -> ShellLoop:
        self.at += 1
        condition = self._listed(("do",))
        return ShellLoop("", (), condition, self._body())

    def _body(self) -> Listed:
        self._expect("do")
        body = self._listed(("done",))
        self._expect("done")
        self._redirected()
        return body

    def _case(self) -> ShellCase:
        self.at += 1
        word = self.tokens[self.at]
        self.at += 1
        self._expect("in")
        cases: list[tuple[tuple[Token, ...], Listed]] = []
        self._skip_newlines()
        while self._peek() and self._peek() != "esac":
            patterns: list[Token] = []
            while self._peek() and self._peek() != ")":
                if self._peek("word"):
                    patterns.append(self.tokens[self.at])
                self.at += 1
            self._expect(")")
            cases.append((tuple(patterns), self._listed((";;", "esac"))))
            if self._peek() == ";;":
                self.at += 1
            self._skip_newlines()
        self._expect("esac")
        return ShellCase(word, tuple(cases))

    def _simple(self) -> Simple:
        words: list[Token] = []
        redirections: list[tuple[str, Token]] = []
        documents: list[tuple[str, bool]] = []
        line = self.tokens[self.at].line
        tests = self._peek() == "[["
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            inside = tests and "]]" not in {word.text for word in words}
            if token.kind == "redirection" and not inside:
                self.at += 1
                if token.text in {"<<", "<<-"}:
                    documents.append(next(self.documents, ("", False)))
                elif self._peek("word"):
                    redirections.append((token.text, self.tokens[self.at]))
                    self.at += 1
                continue
            if token.kind != "word" and not (inside and token.kind != "newline"):
                break
            words.append(token)
            self.at += 1
        if not words and not redirections:
            raise self._error(f"{self._peek()!r} is not expected here")
        return Simple(tuple(words), tuple(redirections), tuple(documents), line)
