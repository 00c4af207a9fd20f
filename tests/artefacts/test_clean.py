from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.artefacts.clean import escaped, lines, plain


@pytest.mark.parametrize(
    "bad", ["\x1b]0;owned\x07", "\x1b[2J", "\u202e", "\u2066", "\x9b1m", "\r", "\x00", "\u200f"]
)
def test_what_steers_a_terminal_is_taken_out(bad: str) -> None:
    for clean in (plain(f"a{bad}b"), lines(f"a{bad}b")):
        assert not any(sign in clean for sign in "\x1b\x07\u202e\u2066\x9b\r\x00\u200f")
        assert clean.startswith("a")
        assert clean.endswith("b")


def test_lines_stay_and_tabs_are_spaces() -> None:
    assert lines("a\tb\n\n  c") == "a       b\n\n  c"
    assert plain("a\nb") == "a b"


def test_bytes_that_are_no_text_are_escaped() -> None:
    assert escaped("caf\udce9") == "caf\\xe9"
    assert escaped(Path("run_\udcff")) == "run_\\xff"
    assert escaped("\ud800") == "\\ud800"
    assert escaped("café") == "café"


@given(st.text(alphabet=st.characters(), max_size=40))
def test_clean_text_is_utf8_and_printable(text: str) -> None:
    assert lines(text).encode().decode() == lines(text)
    assert plain(plain(text)) == plain(text)
