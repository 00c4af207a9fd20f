"""One run as the HTML page shows it; light to import, as not every analysis makes a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aorta.artefacts.analysis import Analysis
    from aorta.artefacts.page import Excerpt, RunPage
    from aorta.report.redact import Redactor


class WebRun(NamedTuple):
    """One run on the page."""

    name: str
    analysis: Analysis
    page: RunPage
    timelines: tuple[Excerpt, ...]
    """The longest step and a typical one, as far as they are known."""
    folder: str | None
    """Path of the run directory; None for raw traces."""

    def redacted(self, redactor: Redactor) -> WebRun:
        """The same without names of hosts, users and paths."""
        return WebRun(
            self.name,
            redactor.record(self.analysis),
            redactor.record(self.page),
            tuple(map(redactor.record, self.timelines)),
            redactor.text(self.folder) if self.folder is not None else None,
        )
