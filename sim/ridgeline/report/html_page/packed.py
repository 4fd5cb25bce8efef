"""Packed columns of a report: numbers as compressed bytes in base64, which ``report.js`` reads."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

_CODES = {"int32": "i4", "uint8": "u1", "uint16": "u2", "uint32": "u4", "float32": "f4"}


def packed(values: npt.NDArray[Any]) -> dict[str, str]:
    """Pack numbers of 1 to 4 bytes: all first bytes, then all second ones, ..., deflated.

    Equal bytes stand together that way, so that times of repeated ops take little.

    Returns
    -------
    dict
        ``type`` (i4, u1, u2, u4 or f4) and ``data`` in base64.
    """
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    planes = little.view(np.uint8).reshape(len(values), values.dtype.itemsize).T
    data = base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode("ascii")
    return {"type": _CODES[values.dtype.name], "data": data}


def smallest(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return whole numbers from 0 on in the narrowest type that holds them."""
    most = int(values.max(initial=0))
    kind = np.uint8 if most < 2**8 else np.uint16 if most < 2**16 else np.uint32
    return values.astype(kind)
