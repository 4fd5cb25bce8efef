"""Levels of the network: what is known of the error of each (docs/transport.md)."""

from __future__ import annotations

from typing import Any

KNOWN_ERROR = {
    "flows": (
        "links are divided max-min fairly. Against packets the last message of strides and incasts "
        "ends 0 to 2 % early, of permutations on one way each 0 to 21 % with PFC or credits, of "
        "sprayed ones 13 to 18 %, of all-to-alls 9 to 24 %, and up to 68 % where DCQCN cuts rates; "
        "a message in the middle 0 to 12 %, single ones by far more, where queues are not fair"
    ),
    "packets": (
        "switches store packets and have one queue a link; a lone message and an incast take their "
        "closed forms. Against NDP's last arrivals -6 to +8 %; where a link is slow, rates of "
        "adaptive routing are below NDP's, those of DCQCN above DCTCP's "
        "(ridgeline reproduce transport)"
    ),
}
"""In words, by level."""

AT_FLOWS: dict[str, Any] = {"level": "flows", "known_error": KNOWN_ERROR["flows"]}
"""What a result at the level of flows says of its network."""
