"""Blocks as text and as Markdown: one source, two forms."""

from __future__ import annotations

from aorta.report.blocks import (
    Block,
    Bullet,
    Bullets,
    Code,
    FactList,
    Folded,
    Heading,
    Link,
    Paragraph,
    Picture,
    Strong,
)
from aorta.report.markdown import to_markdown
from aorta.report.render import to_text
from aorta.report.tables import Table

BLOCKS: list[Block] = [
    Heading("Title", 1),
    Paragraph(("All ", Strong("well"), ", see ", Link("here", "a b.md"), ".")),
    FactList((("Fix", "change it"), ("Try it", Code("aorta sweep --over a.b=1")))),
    Bullets((Bullet("one", ("below",)), Bullet("two")), numbered=True),
    Picture("a chart", "plots/x y"),
    Folded("More", (Table(("name", ">ms"), (("a", "1"),)),)),
]


def test_text_has_everything_but_pictures() -> None:
    assert to_text(BLOCKS) == (
        "Title\n=====\n\n  All well, see here.\n\n  Fix     change it\n  Try it  aorta sweep --over a.b=1\n\n"
        "  1. one\n     - below\n  2. two\n\nMORE\n  name  ms\n  ----  --\n  a      1\n"
    )


def test_markdown_links_folds_and_shows_pictures() -> None:
    assert to_markdown(BLOCKS) == (
        "# Title\n\nAll **well**, see [here](a%20b.md).\n\n"
        "- **Fix**: change it\n- **Try it**: `aorta sweep --over a.b=1`\n\n"
        "1. one\n   - below\n2. two\n\n![a chart](plots/x%20y.png) ([as SVG](plots/x%20y.svg))\n\n"
        "<details><summary>More</summary>\n\n| name | ms |\n| --- | ---: |\n| a | 1 |\n\n</details>\n"
    )


def test_a_command_stays_on_one_line_and_words_are_wrapped() -> None:
    command = "aorta sweep " + "--over key=1 " * 12 + "end"
    text = to_text([FactList((("Try it", Code(command)), ("Why", "because " * 20)))])
    assert f"  Try it  {command}\n" in text
    assert max(len(line) for line in text.splitlines() if command not in line) <= 100


def test_words_of_the_data_stay_words_in_both_forms() -> None:
    hostile = "<script>|`[x](javascript:1)\x1b[2J\n# big"
    blocks: list[Block] = [
        Paragraph((hostile, Strong(hostile), Code(hostile), Link(hostile, "x"))),
        FactList(((hostile, hostile),)),
        Bullets((Bullet(hostile, (hostile,)),)),
        Folded(hostile, (Heading(hostile, 4),)),
    ]
    shown, printed = to_markdown(blocks), to_text(blocks)
    assert "<script" not in shown
    assert "\n# big" not in shown
    assert "](javascript" not in shown.replace("\\](", "")
    assert "\x1b" not in shown + printed
