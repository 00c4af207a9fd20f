"""Numbers and texts at many places at once are what they are one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.readers.fast.kineto_words import Slot, Template, number_to, rows

PADDING = b"x" * 24


def test_rows_are_words_by_column() -> None:
    found = rows(b"abcdefghijklmnopqrstuvwxyz", np.array([0, 2]), 2)
    texts = [found[:, place].astype("<u8").tobytes() for place in range(2)]
    assert texts == [b"abcdefghijklmnop", b"cdefghijklmnopqr"]


@given(
    st.lists(
        st.tuples(st.integers(0, 10**8 - 1), st.sampled_from([" ", ".", "é", "-", "\x80", ":"])), min_size=1
    )
)
def test_numbers_that_end_somewhere(cases: list[tuple[int, str]]) -> None:
    text, ends, starts = PADDING, [], []
    for number, before in cases:
        text += before.encode()
        starts.append(len(text))
        text += str(number).encode()
        ends.append(len(text))
    found, start, good = number_to(text + PADDING, np.array(ends))
    assert good.all()
    assert found.tolist() == [number for number, _ in cases]
    assert start.tolist() == starts


@pytest.mark.parametrize("text", ["007", "00", "", "x", "12345678x"])
def test_what_is_no_number(text: str) -> None:
    _, _, good = number_to(PADDING + text.encode() + PADDING, np.array([len(PADDING) + len(text)]))
    assert not good[0]


digits = st.text("0123456789", min_size=1, max_size=16)


@given(st.lists(st.tuples(st.text("ab,: ", max_size=12), digits), min_size=1, max_size=5), st.data())
def test_a_template_is_its_text_with_any_digits(parts: list[tuple[str, str]], data: st.DataObject) -> None:
    text, slots = "", []
    for before, number in parts:
        text += before
        slots.append(Slot(len(text), len(number), whole=False))
        text += number
    others = [
        "".join(
            before + data.draw(st.text("0123456789", min_size=len(number), max_size=len(number)))
            for before, number in parts
        )
        for _ in range(3)
    ]
    template = Template(text.encode(), slots)
    whole = PADDING + PADDING.join(other.encode() for other in others) + PADDING
    places = np.array([len(PADDING) + row * (len(text) + len(PADDING)) for row in range(3)])
    found = rows(whole, places, template.count)
    assert template.matches(found).all()
    for slot in slots:
        expected = [int(other[slot.offset : slot.offset + slot.width]) for other in others]
        assert template.number(found, slot).tolist() == expected


@given(st.integers(0, 20), st.integers(0, 255))
def test_any_other_byte_is_another_text(place: int, byte: int) -> None:
    text = b'"ts": 123.456, "x": 7'
    template = Template(text, [Slot(6, 3), Slot(10, 3, whole=False), Slot(20, 1)])
    changed = bytearray(text)
    changed[place] = byte
    is_digit = chr(byte) in "0123456789" and 1 - (place == 6 and byte == ord("0"))
    same = changed == text or (place in {6, 7, 8, 10, 11, 12, 20} and is_digit)
    found = rows(bytes(changed) + PADDING, np.array([0]), template.count)
    assert bool(template.matches(found)[0]) == same
