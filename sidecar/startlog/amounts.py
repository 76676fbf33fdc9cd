"""Sizes and counts as logs write them.

vLLM divides by 2**30 in every release, also where it writes "GB" (weights up to 0.8.2, the KV
memory of the message on the model length up to 0.8.2). PyTorch's KiB, MiB and GiB are powers of
1024 as well. So every unit here is a power of 1024.
"""

from __future__ import annotations

import math
from typing import TypeVar

_Number = TypeVar("_Number", int, float)

GIB = 1024**3

_UNIT_BYTES = {
    "bytes": 1,
    "kib": 1024,
    "kb": 1024,
    "mib": 1024**2,
    "mb": 1024**2,
    "gib": GIB,
    "gb": GIB,
    "tib": 1024**4,
    "tb": 1024**4,
}
# No device holds this much: a driver that does not know a process's memory says -1, which
# PyTorch prints as 17179869184.00 GiB.
_NONSENSE_BYTES = 1024**5

# A size with its unit, as two groups of a regular expression; a number alone.
SIZE = r"(-?\d+(?:\.\d+)?) ?(bytes|[KMGT]i?[Bb])"
NUMBER = r"(-?\d+(?:\.\d+)?)"
COUNT = r"(\d+(?:,\d+)*)"

# Longer numbers are garbage, and converting them takes time.
_LONGEST_NUMBER = 24


def to_bytes(number: str, unit: str = "GiB") -> int | None:
    """Bytes of a size such as `("1.63", "GiB")`; None where it cannot be true."""
    value = to_number(number)
    factor = _UNIT_BYTES.get(unit.lower())
    if value is None or factor is None:
        return None
    size = round(value * factor)
    return size if abs(size) < _NONSENSE_BYTES else None


def to_count(number: str) -> int | None:
    """A count with or without thousands separators, such as `439,728`."""
    digits = number.replace(",", "")
    if not digits or len(digits) > _LONGEST_NUMBER:
        return None
    try:
        return int(digits)
    except ValueError:
        return None


def to_number(number: str) -> float | None:
    """A decimal number; None where the text is none."""
    if len(number) > _LONGEST_NUMBER:
        return None
    try:
        value = float(number)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def most(known: _Number | None, new: _Number | None) -> _Number | None:
    """The larger of two figures of which either may be missing."""
    if known is None or new is None:
        return new if known is None else known
    return max(known, new)


def least(known: _Number | None, new: _Number | None) -> _Number | None:
    """The smaller of two figures of which either may be missing."""
    if known is None or new is None:
        return new if known is None else known
    return min(known, new)
