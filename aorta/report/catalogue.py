"""The catalogue of mistakes as pages: for `aorta explain` and `docs/mistakes/`."""

from __future__ import annotations

from aorta.diagnosis.mistake import MistakeSpec
from aorta.diagnosis.mistakes import CATALOGUE
from aorta.diagnosis.plugins import Plugin
from aorta.report.blocks import Block, Bullet, Bullets, Code, Heading, Link, Listing, Paragraph, coded
from aorta.report.markdown import to_markdown

_FROM_RECORDS = (
    "Without traces, the step records show how long the mistake takes. If the replay of the recorded steps "
    "is reliable, it predicts the step without this time. Otherwise the time is subtracted from the step."
)


def mistake_blocks(plugin: Plugin[MistakeSpec], *, level: int = 1) -> list[Block]:
    """Returns the page of one mistake."""
    spec, page = plugin.spec, plugin.page
    captures = ", ".join(spec.captures) if spec.captures else "none yet"
    return [
        Heading(f"{spec.id}: {page.title}", level),
        Heading("How it shows", level + 1),
        Paragraph(coded(page.finds)),
        Paragraph(f"Seen in: {spec.shown_by}."),
        Heading("Why it costs time", level + 1),
        Paragraph(coded(page.costs)),
        Heading("What to do", level + 1),
        Paragraph(coded(page.remedy)),
        Paragraph("Before:"),
        Listing(spec.before.rstrip("\n")),
        Paragraph("After:"),
        Listing(spec.after.rstrip("\n")),
        Heading("How the gain is predicted", level + 1),
        Paragraph(f"{spec.predicted_by[0].upper()}{spec.predicted_by[1:]}."),
        *([Paragraph(_FROM_RECORDS)] if spec.look is not None and spec.observe is not None else []),
        Paragraph(f"Real captures that show this mistake: {captures}."),
        Paragraph(("Intended? Add ", Code(spec.id), " to ", Code("profiling.intended_mistakes"), ".")),
    ]


def mistake_pages() -> dict[str, str]:
    """Returns the files of `docs/mistakes/`, by name."""
    entries = tuple(
        Bullet((Link(id_, f"{id_}.md"), f": {plugin.page.title} (seen in: {plugin.spec.shown_by})"))
        for id_, plugin in CATALOGUE.items()
    )
    index: list[Block] = [
        Heading("Mistakes", 1),
        Paragraph(
            "Mistakes that people really make. Each page says how to recognise a mistake and how to fix it. "
            "The pages are generated from the code."
        ),
        Bullets(entries),
        Paragraph(("On a terminal: ", Code("aorta explain fp32_matmul"))),
    ]
    pages = {f"{id_}.md": to_markdown(mistake_blocks(plugin)) for id_, plugin in CATALOGUE.items()}
    return {"README.md": to_markdown(index), **pages}


def mistakes_overview() -> list[Block]:
    """Returns the list of mistakes."""
    return [
        Heading("Mistakes", 1),
        Bullets(tuple(Bullet((Code(id_), f": {plugin.page.title}")) for id_, plugin in CATALOGUE.items())),
    ]
