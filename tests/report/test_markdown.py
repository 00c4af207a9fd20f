from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.artefacts.clean import plain
from aorta.report.markdown import code, md


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("void k<float>(a & b)", "void k&lt;float&gt;(a &amp; b)"),
        ("a|b", "a\\|b"),
        ("`rm`", "\\`rm\\`"),
        ("**b** _i_ ~~s~~", "\\*\\*b\\*\\* \\_i\\_ \\~\\~s\\~\\~"),
        ("[x](http://e.org)", "\\[x\\](http\\://e.org)"),
        ("node_1_a", "node_1_a"),
        ("$x$", "&#36;x&#36;"),
        ("# title", "\\# title"),
        ("1. item", "1\\. item"),
        ("30.0 ms", "30.0 ms"),
        ("- item", "\\- item"),
        ("-5", "-5"),
        ("---", "\\---"),
        ("two\nlines\n\n# x", "two lines # x"),
    ],
)
def test_markdown_shows_what_the_data_says(value: str, shown: str) -> None:
    assert md(value) == shown


@given(st.text(max_size=60))
def test_escaped_markdown_reads_back_as_the_text(value: str) -> None:
    escaped = str(md(value))
    # What a Markdown reader does: a backslash before punctuation goes, then entities are decoded.
    read = html.unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", escaped))
    assert read == plain(value)
    assert "\n" not in escaped
    assert not re.search(r"(?<!\\)[|`*\[\]~<>]", escaped.replace("\\\\", ""))


def test_code_spans_hold_only_what_means_nothing_inside_one() -> None:
    assert code("results/2node/run_7") == "`results/2node/run_7`"
    assert code("a`b|c") == "a\\`b\\|c"
    assert code("é<") == "é&lt;"
