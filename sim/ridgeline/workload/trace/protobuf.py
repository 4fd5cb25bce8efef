"""Reads an ONNX file without its weights, however large it is.

A file is nested fields: a tag, a length, bytes (Protocol Buffers, encoding). The large data of
initializers is left out on the way and its place in the file is kept; what remains is small enough
to be parsed as a whole. Nothing is ever unpickled or executed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ridgeline.bounded_files import opened
from ridgeline.errors import ConfigError

KEEP_BYTES = 2**16
"""Data of initializers up to this size is kept: shapes, axes and constants are small."""
MAX_REST_BYTES = 2**28
"""What a file may hold besides weights."""

# Field numbers of onnx.proto3.
_GRAPH, _INITIALIZER, _RAW, _NAME, _LOCATION = 7, 5, 9, 8, 14
_DATA = frozenset({4, 5, 6, 7, _RAW, 10, 11})
_EXTERNAL = bytes([_LOCATION << 3, 1])  # data_location = EXTERNAL


class Place(NamedTuple):
    """Where the data of an initializer lies in the file."""

    offset: int
    size: int
    raw: bool


class _Field(NamedTuple):
    number: int
    whole: tuple[int, int]  # tag included
    content: tuple[int, int]  # bytes of a length-delimited field, else empty


def slim(path: Path) -> tuple[bytes, dict[str, Place]]:
    """Return the serialized model without large data, and where that data is.

    Raises
    ------
    ConfigError
        If the file cannot be read, is cut off, or is no ONNX model.
    """
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise ConfigError("the file is empty", file=str(path))
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from error
        with data:
            return _slim_model(_Reader(data, path))


class _Reader:
    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.kept = data, path, 0

    def error(self, what: str, at: int) -> ConfigError:
        return ConfigError(f"not a whole ONNX file: {what} at byte {at}", file=str(self.path))

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """Return a number and where it ends."""
        value = shift = 0
        while at < end and shift < 64:
            byte = self.data[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value, at
        raise self.error("a number is cut off", at)

    def fields(self, start: int, end: int) -> Iterator[_Field]:
        """Iterate over the fields of a message."""
        at = start
        while at < end:
            tag, content = self.varint(at, end)
            match tag & 7:
                case 0:
                    _, stop = self.varint(content, end)
                    content = stop
                case 1:
                    content = stop = content + 8
                case 2:
                    size, content = self.varint(content, end)
                    stop = content + size
                case 5:
                    content = stop = content + 4
                case wire:
                    raise self.error(f"wire type {wire}", at)
            if stop > end:
                raise self.error(f"a field of {stop - content} bytes is cut off", at)
            yield _Field(tag >> 3, (at, stop), (content, stop))
            at = stop

    def take(self, start: int, end: int) -> bytes:
        """Copy a part that is kept."""
        self.kept += end - start
        if self.kept > MAX_REST_BYTES:
            raise ConfigError(
                f"over {MAX_REST_BYTES} bytes besides the data of initializers", file=str(self.path)
            )
        return self.data[start:end]


def _slim_model(reader: _Reader) -> tuple[bytes, dict[str, Place]]:
    out = bytearray()
    places: dict[str, Place] = {}
    for field in reader.fields(0, len(reader.data)):
        if field.number == _GRAPH:
            graph = bytearray()
            for part in reader.fields(*field.content):
                small = part.content[1] - part.content[0] <= KEEP_BYTES
                if part.number == _INITIALIZER and not small:
                    tensor = _slim_tensor(reader, part, places)
                    graph += _delimited(_INITIALIZER, tensor)
                else:
                    graph += reader.take(*part.whole)
            out += _delimited(_GRAPH, bytes(graph))
        else:
            out += reader.take(*field.whole)
    return bytes(out), places


def _slim_tensor(reader: _Reader, tensor: _Field, places: dict[str, Place]) -> bytes:
    out, name, place = bytearray(), "", None
    for field in reader.fields(*tensor.content):
        if field.number in _DATA:
            start, end = field.content
            place = Place(start, end - start, field.number == _RAW)
        else:
            out += reader.take(*field.whole)
            if field.number == _NAME:
                name = reader.data[slice(*field.content)].decode("utf-8", "replace")
    if place is not None:
        places[name] = place
        out += _EXTERNAL
    return bytes(out)


def _delimited(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
