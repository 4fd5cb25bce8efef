"""Files that no reader may trust, made by code: what lies at a path, and what stands in a file."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import random
import socket
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

ESCAPES = "\x1b[31m\x07\u202e\u0000"
"""To the terminal: red, bell, right to left, NUL."""
MANY = "9" * 5000


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the whole path may be too long for one
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def _of_size(size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with path.open("wb") as stream:
            stream.truncate(size)  # takes no room on disk

    return make


PLACES: Mapping[str, Callable[[Path], None]] = {
    "nothing": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
    "link to itself": lambda path: path.symlink_to(path.name),
    "terabyte": _of_size(1 << 40),
    "three gigabytes": _of_size(3 << 30),
}
"""What lies where a file is due."""


def nested(opening: str, closing: str, depth: int = 6_000) -> bytes:
    """Return a value in a value in a value, that many levels."""
    return (opening * depth + closing * depth).encode()


TEXTS: Mapping[str, bytes] = {
    "empty": b"",
    "white space": b" \n\t\r\n",
    "mark alone": b"\xef\xbb\xbf",
    "NUL": b"\0" * 100,
    "random": random.Random(1).randbytes(3000),
    "UTF-16": "kind: model\nname: x\n".encode("utf-16"),
    "UTF-32": "kind: model\nname: x\n".encode("utf-32"),
    "Latin-1": "kind: mod\xe9l\n".encode("latin-1"),
    "cut letter": "kind: mod\u20ac".encode()[:-1],
    "escapes": (ESCAPES * 30).encode(),
    "long number": MANY.encode(),
    "deep lists": nested("[", "]"),
    "deep lists, open": b"[" * 6_000,
    "deep objects": nested('{"a":', "}"),
    "list of nothing": b"[]",
    "null": b"null",
    "text": json.dumps(ESCAPES).encode(),
    "half of a pair": b'{"kind": "\\ud800", "name": "x"}',
    "escapes as a key": b'{"\\u001b[31m\\u0007\\u202e": 1}',
}
"""Content that is a file of no kind."""

_HEAD = "kind: device\nname: x\n"


def _laughs() -> str:
    names = "abcdefghij"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for above, name in itertools.pairwise(names):
        lines.append(f"{name}: &{name} [{', '.join([f'*{above}'] * 9)}]")
    return "\n".join(lines)


YAML: Mapping[str, str] = {
    "a billion laughs": _laughs(),
    "a wide laugh": "a: &a [" + "x," * 2_000 + "x]\nb: [" + "*a," * 2_000 + "*a]",
    "python object": "x: !!python/object/apply:os.system ['touch pwned']",
    "unknown tag": "x: !foo bar",
    "binary": "x: !!binary aGVsbG8=",
    "set": "x: !!set {a, b}",
    "in itself": "x: &x [*x]",
    "mapping in itself": "x: &x {a: *x}",
    "merged into itself": "x: &x\n  <<: *x",
    "merge": "b: &b {c: 1}\nx:\n  <<: *b",
    "twice": "kind: model",
    "two documents": "---\nkind: device\nname: y",
    "unknown alias": "x: *nothing",
    "long number": f"x: {MANY}",
    "long hexadecimal number": f"x: 0x{'f' * 5000}",
    "long number with gaps": f"x: {'1_' * 5000}1",
    "list as a key": "[1, 2]: 3",
    "null as a key": "~: 3",
    "long key": "k" * 20_000 + ": 3",
    "escapes as a key": '"\\a\\e[31m\\u202e": 3',
    "half of a pair": 'x: "\\ud800"',
    "half of a quote": 'x: "' + "a" * 100_000,
    "tabs": "\tx: 1",
    "deep keys": "? " * 2000 + "x",
    "deep dashes": "x:\n  " + "- " * 3000 + "x",
    "YAML 1.1": "%YAML 1.1\n---\nx: yes",
    "huge exponent": "x: 1e999999999",
}
"""Behind the first lines of a file."""

JSON: Mapping[str, str] = {
    "twice": '{"a": 1, "a": 2}',
    "no number": '{"a": NaN, "b": -Infinity, "c": 1e400}',
    "long number": '{"a": ' + MANY + "}",
    "half of a quote": '{"a": "' + "x" * 100_000,
    "comment": '{"a": 1} // b',
    "two values": '{"a": 1} {"b": 2}',
    "trailing comma": '{"a": 1,}',
    "list of lists": "[[1, [2]], {}, null]",
    "key that is a number": "{1: 2}",
}


WIDE_JSON: Mapping[str, str] = {
    "numbers": "[" + "1," * 13_500_000 + "1]",
    "objects": "[" + "{}," * 2_500_000 + "{}]",
    "lists": "[" + "[]," * 6_000_000 + "[]]",
}
"""Small files of values that would fill the memory."""


@cache
def _bomb() -> bytes:
    return gzip.compress(b"[" + b" " * (1 << 28), compresslevel=1, mtime=0)


def packed(raw: bytes) -> Mapping[str, bytes]:
    """Return spoiled gzip files of some content."""
    whole = gzip.compress(raw, mtime=0)
    bomb = _bomb()
    return {
        "cut": whole[: len(whole) // 2],
        "not packed": raw,
        "with something behind": whole + b"more",
        "wrong sum": whole[:-8] + b"\0" * 8,
        "packed twice": gzip.compress(whole, mtime=0),
        "bomb": bomb,
        "bomb in a bomb": gzip.compress(bomb, mtime=0),
        "many empty ones": gzip.compress(b"", mtime=0) * 20_000,
    }


def rows(text: str) -> Mapping[str, str]:
    """Return spoiled tables made of the first lines of a good one."""
    header, first = text.splitlines()[:2]
    return {
        "header alone": header + "\n",
        "half of a quote": f'{header}\n"' + "x" * 2_000_000,
        "many columns": ",".join(f"c{i}" for i in range(100_000)) + "\n" + first,
        "many fields": f"{header}\n" + "1," * 200_000,
        "long field": f"{header}\n" + "x" * 2_000_000 + "\n",
        "long number": f"{header}\n" + MANY + first[first.index(",") :] + "\n",
        "column twice": f"{header},{header}\n{first},{first}\n",
        "short row": f"{header}\n{first.rpartition(',')[0]}\n",
        "long row": f"{header}\n{first},1\n",
    }


def _chunk(kind: bytes, content: bytes) -> bytes:
    sum_ = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", sum_)


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG file that states a size, with some chunks and few bytes of a picture."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), *chunks, (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def pictures() -> Mapping[str, bytes]:
    """Return PNG files that are not what they say."""
    text = zlib.compress(b"x" * (1 << 27), 1)
    return {
        "four billion pixels": png(2**16, 2**16),
        "widest": png(2**31 - 1, 1),
        "no size": png(0, 0),
        "cut": png(8, 8)[:-30],
        "long text": png(8, 8, (b"zTXt", b"Description\0\0" + text)),
        "head alone": b"\x89PNG\r\n\x1a\n",
        "length beyond the end": b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffIHDR",
    }


XML: Mapping[str, str] = {
    "entities": '<!DOCTYPE a [<!ENTITY b "' + "c" * 1000 + '">]><a>' + "&b;" * 1000 + "</a>",
    "entity of a file": '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
    "a billion laughs": '<!DOCTYPE a [<!ENTITY b "cccccccccc">'
    + "".join(f'<!ENTITY {y} "{f"&{x};" * 10}">' for x, y in zip("bdefgh", "defghi", strict=True))
    + "]><a>&i;</a>",
    "deep": "<a>" * 50_000 + "</a>" * 50_000,
    "open": "<a>" * 50_000,
    "not XML": "<a <b>",
    "other root": "<a/>",
    "long attribute": '<a b="' + "c" * 1_000_000 + '"/>',
    "many elements": "<a>" + "<b/>" * 20_000 + "</a>",
}


def parquet(made: Callable[[io.BytesIO, str], None]) -> Mapping[str, bytes]:
    """Return Parquet files; `made` writes one of a kind: "rows", "text", "lists" or "good"."""

    def of(kind: str) -> bytes:
        stream = io.BytesIO()
        made(stream, kind)
        return stream.getvalue()

    noise = random.Random(1).randbytes
    good = of("good")
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    return {
        "many rows": of("rows"),
        "long text": of("text"),
        "lists": of("lists"),
        "cut": good[: len(good) // 2],
        "no foot": b"PAR1" + b"\0" * 100 + b"PAR1",
        "random foot": good[:footer] + noise(len(good) - footer - 8) + good[-8:],
        "foot beyond the file": b"PAR1" + b"\xff" * 4 + b"PAR1",
        "random content": good[:4] + noise(footer - 4) + good[footer:],
    }  # fmt: skip
