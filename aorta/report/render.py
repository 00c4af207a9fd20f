"""Templates: strict about missing names, escaping by default in Markdown."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from aorta.report import content, tables, text
from aorta.report.text import KIND_NAMES


def render(template: str, /, **names: Any) -> str:
    """The text of `aorta/templates/<template>`.

    In `.md.j2` everything printed is escaped for HTML unless it went through `md`, `code` or `md_table`,
    which escape for Markdown too; in `.txt.j2` nothing is.
    """
    return _environment(markdown=template.endswith(".md.j2")).get_template(template).render(**names)


def _environment(*, markdown: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("aorta", "templates"),
        undefined=StrictUndefined,
        autoescape=markdown,  # noqa: S701 - plain text has no markup to escape
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        code=text.code,
        evidence=text.evidence,
        gain=text.gain,
        kind=lambda value: KIND_NAMES[value],
        listing=text.listing,
        md=text.md,
        md_table=tables.md_table,
        number=text.number,
        quantity=text.quantity,
        scope=content.scope,
        text_table=tables.text_table,
        wrap=text.wrap,
    )
    return environment
