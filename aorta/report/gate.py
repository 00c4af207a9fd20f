"""The gate's answer: a sentence, Markdown and JUnit XML."""

from __future__ import annotations

import math
from collections.abc import Iterator
from xml.etree import ElementTree

from aorta.artefacts.clean import plain
from aorta.artefacts.gate import GateResult
from aorta.report.blocks import Block, Code, FactList, Folded, Heading, Line, Paragraph, Strong
from aorta.report.markdown import to_markdown
from aorta.report.tables import Table
from aorta.report.text import number, ranks


def sentence(found: GateResult) -> str:
    """`B is slower than A: 1.031×, more than the limit of 2 %.`, or that it is not."""
    limit = f"{100 * found.limit:g} %"
    ratio = f"{found.ratio:.3f}×"
    blocks = f"{len(found.log_ratios)} blocks of four runs"
    if found.slower:
        return (
            f"B is slower than A: {ratio} ({found.measured}; found against a limit of {limit} in {blocks})."
        )
    if not found.decided:
        return (
            f"No slowdown of {limit} was found, but {blocks} do not rule it out: {ratio} ({found.measured})."
        )
    return f"B is not slower than A by {limit}: {ratio} ({found.measured}; {blocks})."


def cause_words(found: GateResult) -> str | None:
    """Sentence on what takes longer, on which ranks and where; None where it is not known."""
    cause = found.cause
    if cause is None:
        return None
    said = f"{cause.part} grew from {number(cause.before_ms)} to {number(cause.after_ms)} ms per step"
    said += f"; B's verdict is {cause.verdict}"
    if cause.ranks:
        said += f" on {ranks(cause.ranks)}"
    return said + (f", in {cause.where}" if cause.where else "")


def markdown(found: GateResult) -> str:
    """The answer and every run."""
    return to_markdown(_blocks(found))


def _blocks(found: GateResult) -> Iterator[Block]:
    yield Heading("Gate", 1)
    yield Paragraph(Strong(sentence(found)))
    pairs: list[tuple[str, Line]] = [("A", Code(found.a)), ("B", Code(found.b))]
    if (cause := cause_words(found)) is not None:
        pairs.append(("Cause", cause))
    yield FactList(tuple(pairs))
    rows = tuple(
        (str(place), f"{math.exp(value):.4f}×") for place, value in enumerate(found.log_ratios, start=1)
    )
    runs = tuple((str(run.block), run.side, number(run.value), run.folder) for run in found.runs)
    yield Folded(
        "Blocks and runs",
        (
            Table((">block", ">B over A"), rows),
            Paragraph("Block 0 warms up caches and does not count."),
            Table((">block", "side", f">{found.measured}", "folder"), runs),
        ),
    )


def junit(found: GateResult) -> str:
    """One test case, failed where B is slower."""
    said = sentence(found)
    suite, case = _suite(failures=int(found.slower), errors=0)
    if found.slower:
        failure = ElementTree.SubElement(case, "failure", message=said, type="slower")
        failure.text = plain(cause_words(found) or said)
    return _written(suite, case, f"A: {found.a}; B: {found.b}; {said}")


def unfinished(a: str, b: str, reason: str) -> str:
    """One test case with an error: a run failed, so that nothing is known of B."""
    suite, case = _suite(failures=0, errors=1)
    ElementTree.SubElement(case, "error", message=plain(reason), type="run failed")
    return _written(suite, case, f"A: {a}; B: {b}; {reason}")


def _suite(*, failures: int, errors: int) -> tuple[ElementTree.Element, ElementTree.Element]:
    counts = {"tests": "1", "failures": str(failures), "errors": str(errors)}
    suite = ElementTree.Element("testsuite", {"name": "aorta gate", **counts})
    name = "B is not slower than A"
    return suite, ElementTree.SubElement(suite, "testcase", {"classname": "aorta.gate", "name": name})


def _written(suite: ElementTree.Element, case: ElementTree.Element, printed: str) -> str:
    ElementTree.SubElement(case, "system-out").text = plain(printed)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"
