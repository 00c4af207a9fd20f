"""The evidence of a run as tables: its parts, its worst ranks, what a replay says, what traces say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.clean import plain
from aorta.artefacts.measured import Interval, RankBreakdown
from aorta.artefacts.page import RankLoss, RunPage
from aorta.artefacts.replayed import ClockFit, Replay
from aorta.artefacts.traced import RankTrace, TraceTable
from aorta.metrics.lateness import LATE_SHARE
from aorta.report.parts import charged, shown_parts, spread
from aorta.report.tables import Table
from aorta.report.text import ABSENT, host, listing, number, ranks, share, short
from aorta.units import NS_PER_MS, plural


def parts_table(page: RunPage) -> Table | None:
    """The parts of the mean step, with their sum; None without a breakdown."""
    parts = shown_parts(page.parts)
    if not parts:
        return None
    whole = sum(part.ms or 0.0 for part in parts)
    rows = [(part.name, number(part.ms), share(part.ms, whole)) for part in parts]
    return Table(
        ("part of the step", ">ms per step", ">share of the step"),
        (*rows, ("whole step", number(whole), share(whole, whole))),
    )


def worst_table(page: RunPage, analysis: Analysis) -> tuple[Table | None, str]:
    """Returns the table of ranks that cost time, worst first, and a note on the ranks that it leaves out."""
    worst = page.worst_ranks
    if not worst:
        return None, ""
    rows = tuple(
        (
            str(item.rank),
            host(item.host or ABSENT, 15),
            number(item.own_ms),
            number(item.above_median_ms),
            number(item.charged_ms),
            plain(item.mostly),
        )
        for item in worst
    )
    others = page.ranks - page.costly_ranks
    longer = _than_median(worst, analysis)
    header = (">rank", "node", ">own time, ms", f">{longer}, ms", ">wait caused, ms", "main cause")
    note = ""
    if page.costly_ranks > len(worst):
        note = f"{len(worst):,} of {page.ranks:,} ranks are shown, worst first. "
    elif others:
        left = _left_out([item.rank for item in worst], analysis) if others == 1 else f"{others:,} ranks"
        one = others == 1
        why = f"no rank waits for {'it' if one else 'them'}"
        if not charged(analysis):
            why = f"{'its own time is' if one else 'their own times are'} not longer"
        note = f"{left} {'is' if one else 'are'} not shown, because {why}. "
        note = f"{note[0].upper()}{note[1:]}"
    if any(item.kind == "straggler" and not item.ranks for item in analysis.findings):
        note += (
            "Different ranks are last in different steps, each by a little, so no single rank is the cause. "
        )
    return Table(header, rows), f"{note}{_WORST}"


_WORST = (
    "All times are per step. Own time: the rank's step without exposed communication. Wait caused: how long "
    "the other ranks wait for this rank, on average, for any reason."
)


def _left_out(named: list[int], analysis: Analysis) -> str:
    """The only rank that is not named: `rank 0`."""
    return ranks([row.rank for row in analysis.breakdown.per_rank if row.rank not in named])


def _than_median(worst: Sequence[RankLoss], analysis: Analysis) -> str:
    """The column of the ranks' extra time; of two ranks, the faster one is the median."""
    if len(analysis.breakdown.per_rank) != 2:
        return "excess over median rank"
    alone = len(worst) == 1 and worst[0].above_median_ms > 0
    return f"excess over {_left_out([worst[0].rank], analysis) if alone else 'the faster rank'}"


def lateness_table(analysis: Analysis, page: RunPage, limit: int = 6) -> tuple[Table | None, str]:
    """Returns how often ranks came last, worst first, and what a reader of it must know."""
    late = analysis.lateness
    if late is None or not late.ranks:
        return None, ""
    first = _first_steady(page)
    rows = tuple(
        (
            str(item.rank),
            host(item.host or ABSENT, 15),
            item.pattern.replace("_", "-"),
            f"{item.late_steps:,} ({100 * item.share_of_steps:.0f} %)",
            f"{item.since_step:,}" + (" (the first steady step)" if item.since_step == first else ""),
            number(item.late_ms),
        )
        for item in late.ranks[:limit]
    )
    two = len(analysis.breakdown.per_rank) == 2
    than = "the other rank" if two else "the median rank"
    notes = [
        f"A rank is late in a step if it reaches a collective more than {number(late.threshold_ms)} ms "
        f"({100 * LATE_SHARE:.0f} % of the step) after {than}."
    ]
    patterns = {item.pattern for item in late.ranks[:limit]}
    notes += [words for pattern, words in _PATTERNS.items() if pattern in patterns]
    if late.steps == analysis.data_quality.detailed_steps:
        notes.append("Lateness is known only for detailed steps.")
    if len(late.ranks) > limit:
        notes.insert(0, f"{limit} of {len(late.ranks):,} late ranks are shown, worst first.")
    if late.nodes:
        nodes = [f"{plain(node.host)} (by {number(node.late_ms)} ms)" for node in late.nodes]
        notes.append(f"All ranks of a node are late together: {listing(nodes)}.")
    elif late.scope == "not_determined":
        notes.append("With one rank per node, a slow rank cannot be told from a slow node.")
    header = (
        ">rank",
        "node",
        "pattern",
        f">late steps (of {late.steps:,})",
        ">first late step",
        ">late by, ms (mean)",
    )
    return Table(header, rows), " ".join(notes)


_PATTERNS = {
    "persistent": "Persistent: late in at least 80 % of the steps since the first late one.",
    "intermittent": "Intermittent: late again and again, but in fewer steps.",
    "one_off": "One-off: late in a single short stretch of steps.",
}


def _first_steady(page: RunPage) -> int | None:
    """The first steady step; None where the page shows no single steps."""
    times = page.steps
    if times is None or times.steps_a_point > 1:
        return None
    return next((at for at, steady in zip(times.global_step, times.steady, strict=True) if steady), None)


def spread_table(rows: list[RankBreakdown]) -> Table:
    """Spread of the ranks, in ms per step: of all ranks, where a table shows some."""
    cells = tuple((name, *(number(value) for value in values)) for name, values in spread(rows))
    return Table(("ms per step, over ranks", ">lowest", ">5 %", ">median", ">95 %", ">highest"), cells)


def what_if_table(analysis: Analysis) -> Table | None:
    """Each cause removed in a replay of the steps; None without predictions."""
    replay = analysis.replay
    if replay is None or not replay.predictions:
        return None
    rows = tuple(
        (
            plain(item.removed),
            ranks(item.ranks).removeprefix("ranks ").removeprefix("rank "),
            ("at least " if item.bound else "")
            + number(item.step_ms)
            + _between(item.step_ms_interval, number),
            ("at most " if item.bound else "")
            + f"{item.speedup:.2f}×"
            + _between(item.speedup_interval, "{:.2f}×".format),
        )
        for item in replay.predictions
    )
    return Table(("if this were removed", "rank", ">predicted step time, ms", ">predicted speed-up"), rows)


def _between(interval: Interval | None, form: Callable[[float], str]) -> str:
    """` (1.20× to 1.30×)`; empty where there is none."""
    return "" if interval is None else f" ({form(interval.low)} to {form(interval.high)})"


def replay_words(analysis: Analysis) -> str:
    """Sentences on how well the model of the steps reproduces them and how sure its clocks are; empty where
    nothing was replayed.
    """
    replay = analysis.replay
    if replay is None:
        return ""
    return " ".join(said for said in (_replayed(replay), _clocks(analysis.clocks)) if said)


def _clocks(clocks: Sequence[ClockFit]) -> str:
    if not clocks:
        return ""
    most = max(item.uncertainty_ms for item in clocks)
    apart = number(most) if most >= 0.001 else "0.001"
    drift = max(abs(item.fast_ppm) for item in clocks)
    drifts = f", drift of up to {number(drift)} ppm removed" if drift else ""
    return f"Clocks are aligned by the ends of collectives{drifts}: they agree to within {apart} ms (median)."


def _replayed(replay: Replay) -> str:
    if replay.withheld:
        return f"No prediction: {plain(replay.withheld)}."
    steps = f"aorta replayed {plural(replay.steps, 'step')} without removing anything."
    if replay.error_pct is None:
        return f"{steps} The steps contain no collective that could check the replay."
    error = "0.1" if replay.error_pct < 0.1 else f"{replay.error_pct:.1f}"
    return (
        f"Check of the prediction: {steps} So that the check is independent, the transfer times for each "
        "half of the steps were taken from the other half. The replayed step time was within "
        f"{error} % of the measured {number(replay.measured_step_ms)} ms (the mean step plus the time "
        "between steps)."
    )


MAX_KERNELS = 8
MAX_TRACED = 8


def trace_tables(analysis: Analysis) -> list[tuple[str, Table]]:
    """Tables from traces beyond the breakdown: idle GPU time by rank, and the longest kernels of one rank."""
    traces = analysis.traces
    if traces is None or not traces.per_rank:
        return []
    shown = _traced_ranks(analysis, traces)
    cut = f"; {len(shown)} of {len(traces.per_rank):,} ranks" if len(shown) < len(traces.per_rank) else ""
    rows = tuple(
        (
            str(item.rank),
            number(item.idle_loader_ms),
            number(item.idle_sync_ms),
            number(item.idle_launch_ms),
            number(item.idle_elsewhere_ms),
            ABSENT if item.queue_depth is None else f"{100 * item.queue_depth.empty_share:.0f} %",
            ABSENT if item.contention is None else number(item.contention.ns_per_step / NS_PER_MS),
        )
        for item in shown
    )
    header = (
        ">rank",
        ">loading data",
        ">synchronising",
        ">launching",
        ">other work",
        ">launches on empty queue",
        ">compute slowed by comm, ms",
    )
    found = [
        (
            f"GPU idle time by what the host did meanwhile, ms per step ({traces.format} traces{cut})",
            Table(header, rows),
        )
    ]
    kernels = shown[0].kernels
    if kernels:
        longest = sorted(kernels, key=lambda item: -item.total_ns)[:MAX_KERNELS]
        lines = tuple(
            (
                short(item.name, 60),
                item.kind,
                f"{item.count:,}",
                number(item.total_ns / NS_PER_MS),
                f"{100 * item.share:.1f} %",
            )
            for item in longest
        )
        title = f"Costliest kernels of rank {shown[0].rank} ({len(longest)} of the {len(kernels):,} kept)"
        found.append(
            (title, Table(("kernel", "kind", ">calls", ">total ms", ">share of kernel time"), lines))
        )
    return found


def _traced_ranks(analysis: Analysis, traces: TraceTable) -> list[RankTrace]:
    """At most `MAX_TRACED` traced ranks, those of the verdict first, then by rank."""
    named = set(analysis.verdict.ranks)
    ordered = sorted(traces.per_rank, key=lambda item: (item.rank not in named, item.rank))
    return ordered[:MAX_TRACED]


def overhead_words(analysis: Analysis) -> str:
    """Sentence on the profiler's cost; empty where none captured steps."""
    found = analysis.profiler_overhead
    if found is None:
        return ""
    if found.ratio is None:
        return f"Profiler overhead: {ABSENT} ({plain(found.reason or 'not measured')})."
    return (
        f"Profiler overhead: steps under the profiler take {found.ratio:.2f}× as long as other steps "
        f"({found.inside_steps:,} steps with the profiler, {found.outside_steps:,} without)."
    )
