"""Compares and reads the same text at many places of a larger one: eight bytes are one number.

The rows of a text are its words at many places, as columns: what is done to one is done to all. A `Template`
is a text of which some bytes are digits. Exclusive or with it leaves 0 where a text agrees, and the values of
its digits. Eight of them become one number by three multiplications (D. Lemire, "Quickly parsing eight
digits", 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Mask = NDArray[np.bool_]
Words = NDArray[Any]
"""Unsigned, of 64 bits."""

_ONES = 0x0101010101010101
_HIGH = 0x8080808080808080
_LOW = 0x7F7F7F7F7F7F7F7F
_ZEROS = 0x3030303030303030
_ABOVE_NINE = 0x7676767676767676
"""Added to a byte it sets the highest bit if the byte is above nine."""
_LEAST = np.array([(1 << 64) - 1, 0, *(10**digits for digits in range(1, 8))], dtype=np.uint64)
"""The least number of so many digits: JSON has none with a zero before them, and none without digits."""


def word(text: bytes | bytearray) -> int:
    """At most eight bytes as a number."""
    return int.from_bytes(text, "little")


def rows(text: bytes, places: Positions, count: int) -> Words:
    """The `count` words from each place on, shape (count, places). Places below 0 count from the end."""
    size = 8 * count
    sliding: NDArray[np.void] = np.ndarray(
        (len(text) - size + 1,), dtype=f"V{size}", buffer=text, strides=(1,)
    )
    return np.ascontiguousarray(sliding[places].view("<u8").reshape(-1, count).T)


def number_to(text: bytes, end: Positions) -> tuple[Words, Positions, Mask]:
    """The number of at most eight digits that ends before each place, its start, and whether there is one."""
    value = rows(text, end - 8, 1)[0] ^ _ZEROS
    other = _above_nine(value)
    for shift in (8, 16, 32):
        other |= other >> shift
    other >>= 7
    number = _eight_digits(value & ~(other * 0xFF))
    count = 8 - ((other * _ONES) >> 56).astype(np.int64)
    return number, end - count, number >= _LEAST[count]


class Slot(Struct, frozen=True):
    """Digits of a template."""

    offset: int
    width: int
    whole: bool = True
    """A number of its own, which has no zero before it; not decimals."""


class Template:
    """A text in which some bytes may be any digits. Of a number only its width counts.

    Args:
        text: As it is found in one place.
        slots: Where its digits are.
    """

    def __init__(self, text: bytes, slots: Sequence[Slot]) -> None:
        self.slots = slots
        self.length = len(text)
        self.count = (len(text) + 15) // 8
        """Words in its rows: one more than it has, for digits that reach into it."""
        digits = bytearray(len(text))
        expected = bytearray(text)
        for slot in slots:
            expected[slot.offset : slot.offset + slot.width] = b"0" * slot.width
            digits[slot.offset : slot.offset + slot.width] = b"\x01" * slot.width
        self._words: list[tuple[int, int, int]] = []
        for start in range(0, len(text), 8):
            piece = digits[start : start + 8]
            # A byte that is no digit must be 0, which any more than that sets the highest bit of.
            above = bytes(0x76 if digit else 0x7F for digit in piece)
            known = (1 << 8 * len(piece)) - 1
            self._words.append((word(expected[start : start + 8]), known, word(above) if any(piece) else 0))

    def matches(self, found: Words) -> Mask:
        """Returns which of the rows are this text but for the digits."""
        other = np.zeros(found.shape[1], dtype=np.uint64)
        for column, (expected, known, above) in zip(found, self._words, strict=False):
            value = column ^ expected
            if known != (1 << 64) - 1:
                value &= known
            other |= value if above == 0 else (((value & _LOW) + above) | value) & _HIGH
        good: Mask = other == 0
        for slot in self.slots:
            if slot.whole and slot.width > 1:
                good &= (found[slot.offset // 8] >> (8 * (slot.offset % 8))) & 0xFF != ord("0")
        return good

    def number(self, found: Words, slot: Slot) -> Words:
        """The number that the digits of a slot are in each row."""
        if slot.width > 8:
            high = Slot(slot.offset, slot.width - 8)
            low = Slot(slot.offset + slot.width - 8, 8)
            return self.number(found, high) * 10**8 + self.number(found, low)
        place, shift = divmod(8 * slot.offset, 64)
        value = found[place] >> shift
        if shift + 8 * slot.width > 64:
            value |= found[place + 1] << (64 - shift)
        return _eight_digits((value ^ _ZEROS) << (64 - 8 * slot.width))


def _above_nine(value: Words) -> Words:
    """The highest bit of each byte that is above nine."""
    return (((value & _LOW) + _ABOVE_NINE) | value) & _HIGH


def _eight_digits(value: Words) -> Words:
    """The number whose digits are the bytes of a value, the lowest byte first."""
    pairs = value * 10 + (value >> 8)
    even, odd = pairs & 0xFF000000FF, (pairs >> 16) & 0xFF000000FF
    number: Words = (even * 0x000F424000000064 + odd * 0x0000271000000001) >> 32
    return number
