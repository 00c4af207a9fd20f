"""A run's page: everything that its figure and its section show, as one record."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.page import Excerpt, RunPage
from aorta.readers.run import RunData
from aorta.readers.run_identity import clocks
from aorta.report import series
from aorta.report.bare import bare_page
from aorta.report.excerpt import chosen_steps, cut, excerpt, timed_steps


def run_timelines(
    analysis: Analysis, data: RunData, traced: Sequence[Excerpt] = ()
) -> tuple[tuple[Excerpt, ...], str]:
    """The longest step of all ranks and a typical one, from traces if there are any; or none, and the reason.

    Args:
        analysis: of the run.
        data: the records of the run.
        traced: the traced steps, by `traced_excerpts`. Empty if there are none.
    """
    if traced:
        return tuple(traced), ""
    by_rank = data.records.by_rank
    every = clocks(data, by_rank)
    steps = chosen_steps(timed_steps(series.step_times(by_rank)))
    tried = [excerpt(by_rank, every, chosen, analysis.verdict.ranks) for chosen in steps or (None,)]
    found = tuple(shown for shown, _ in tried if shown is not None)
    return found, "" if found else tried[0][1]


def run_page(
    analysis: Analysis, data: RunData, timelines: tuple[tuple[Excerpt, ...], str] | None = None
) -> RunPage:
    """The page of a run, from its analysis, step records and samples.

    Args:
        analysis: of the run.
        data: the records and samples of the run.
        timelines: as `run_timelines` returns them; None: of the records.
    """
    times = series.step_times(data.records.by_rank)
    shown, absent = timelines or run_timelines(analysis, data)
    return msgspec.structs.replace(
        bare_page(analysis),
        excerpt=cut(shown[0], analysis.verdict.ranks) if shown else None,
        excerpt_absent=absent,
        steps=series.thinned(times) if times is not None else None,
        utilization=series.utilization_over_time(data),
    )
