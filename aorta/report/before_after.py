"""Before and after as blocks: the answer of each scenario, then what changed."""

from __future__ import annotations

from collections.abc import Iterator

from aorta.artefacts.before_after import BeforeAfter, Pair
from aorta.artefacts.measured import Interval
from aorta.report.blocks import Block, FactList, Heading, Line, Paragraph, Strong, bullets
from aorta.report.tables import Table
from aorta.report.text import ABSENT, number, quantity

MAX_SETTINGS = 8


def blocks(found: BeforeAfter) -> Iterator[Block]:
    """The whole comparison."""
    yield Heading("Before and after", 1)
    yield FactList((("Before", found.before), ("After", found.after)))
    for pair in found.pairs:
        yield Heading(pair.name, 3)
        yield Paragraph(Strong(sentence(pair)))
        if pair.differences:
            yield Paragraph(f"Note: {'; '.join(pair.differences)}. The change may not be the cause.")
        yield Table(("quantity", ">before", ">after", ">change"), tuple(_rows(pair)))
        yield Paragraph(f"{pair.reason[:1].upper()}{pair.reason[1:]}.")
        if pair.settings:
            more = len(pair.settings) - MAX_SETTINGS
            said = "; ".join(pair.settings[:MAX_SETTINGS]) + (f"; and {more} more" if more > 0 else "")
            yield Paragraph(f"Changed settings: {said}.")
    if found.alone:
        lines: list[Line] = [f"only on one side: {name}" for name in found.alone]
        yield bullets(lines)


def sentence(pair: Pair) -> str:
    """`Slower: the step takes 110 ms instead of 90.0 ms (1.22×, 1.20× to 1.25×).`"""
    answer = f"{pair.answer[:1].upper()}{pair.answer[1:]}"
    if pair.ratio is None:
        return f"{answer}."
    times = f"{quantity(pair.after_ms, 'ms')} instead of {quantity(pair.before_ms, 'ms')}"
    return f"{answer}: the step takes {times} ({pair.ratio:.3f}×{_between(pair.ratio_interval)})."


def _between(found: Interval | None) -> str:
    return "" if found is None else f", {found.low:.3f}× to {found.high:.3f}×"


def _rows(pair: Pair) -> Iterator[tuple[str, str, str, str]]:
    yield "step, ms", number(pair.before_ms), number(pair.after_ms), _ratio(pair.before_ms, pair.after_ms)
    rates = pair.before_samples_per_s, pair.after_samples_per_s
    if rates != (None, None):
        yield "samples/s, all ranks", number(rates[0]), number(rates[1]), _ratio(*rates)
    if pair.before_efficiency is not None or pair.after_efficiency is not None:
        yield "efficiency", _percent(pair.before_efficiency), _percent(pair.after_efficiency), ""
    yield "verdict", pair.before_verdict, pair.after_verdict, ""
    for part in pair.parts:
        change = part.difference_ms
        words = f"{change.low:+.2f} to {change.high:+.2f} ms" if change is not None else ""
        if change is None and part.before_ms is not None and part.after_ms is not None:
            words = f"{part.after_ms - part.before_ms:+.2f} ms"
        yield f"{part.name}, ms", number(part.before_ms), number(part.after_ms), words


def _ratio(before: float | None, after: float | None) -> str:
    return f"{100.0 * (after / before - 1.0):+.1f} %" if before and after is not None else ""


def _percent(value: float | None) -> str:
    return ABSENT if value is None else f"{100.0 * value:.1f} %"
