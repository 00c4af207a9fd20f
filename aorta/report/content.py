"""Tables and sentences about one run, from its `Analysis`; every document takes them from here."""

from __future__ import annotations

import time
from collections.abc import Sequence

from aorta.artefacts.analysis import Analysis, DataQuality, Finding, RuleMeasurement
from aorta.artefacts.clean import plain
from aorta.artefacts.measured import DetailCost, RankBreakdown
from aorta.artefacts.page import Confidence
from aorta.diagnosis.finding import saved_words
from aorta.diagnosis.findings import FINDINGS, kind_name
from aorta.report.palette import LEAST_PCT, PARTS, PaletteEntry
from aorta.report.parts import mean_parts
from aorta.report.selection import shown_ranks
from aorta.report.tables import Table
from aorta.report.text import ABSENT, host, listing, number, quantity, ranks, share
from aorta.units import plural

LEAST = LEAST_PCT / 100.0
_DOUBTS = 2
"""Maximum number of doubts in a line of the first screen."""

MAX_TEXT_RANKS = 32
"""Rows of a breakdown table; more ranks are chosen from."""

TIMINGS = {
    "host": "Times come from host timers around each piece of work.",
    "event_window": "Times are event windows from ready to done: they include launching and queueing.",
    "kernel": "Times are those of the kernels themselves.",
}
"""Meaning of a time, by how it was taken."""


MAX_HOSTS = 3
"""Maximum number of node names in the heading."""


def heading(analysis: Analysis) -> str:
    """Scenario, job, size, date and nodes in one line; what is not known is left out."""
    parts = [plain(analysis.scenario or ("traces" if analysis.traces is not None else "run"))]
    if analysis.job_id:
        parts.append(f"job {plain(analysis.job_id)}")
    for count, noun in ((analysis.nodes, "node"), (analysis.world_size, "rank")):
        if count is not None:
            parts.append(plural(count, noun))
    if analysis.device:
        parts.append(plain(analysis.device))
    if spreads_one_machine(analysis):
        parts.append("nodes share one machine")
    if analysis.started_wall_ns is not None:
        parts.append(_date(analysis.started_wall_ns))
    if names := list(dict.fromkeys(host(row.host, 30) for row in analysis.breakdown.per_rank if row.host)):
        parts.append(f"on {listing(names, MAX_HOSTS)}")
    return " · ".join(parts)


def headings(analyses: Sequence[Analysis]) -> str:
    """The heading of one run; of several, how many they are, and when they began."""
    if len(analyses) == 1:
        return heading(analyses[0])
    began = sorted(at for item in analyses if (at := item.started_wall_ns) is not None)
    dates = list(dict.fromkeys(_date(at) for at in began))
    when = [" to ".join(dates[:1] + dates[1:][-1:])] if dates else []
    return " · ".join([plural(len(analyses), "scenario"), *when])


def _date(wall_ns: int) -> str:
    """`2026-11-29 07:16 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(wall_ns // 1_000_000_000))


def spreads_one_machine(analysis: Analysis) -> bool:
    """True if several nodes of the run were one machine, so that it only shows how that machine scales."""
    return analysis.shared_machine and analysis.nodes != 1


def breakdown_table(analysis: Analysis) -> tuple[Table | None, str]:
    """Exclusive parts of a step by rank, in ms and in percent, and what a reader of it must know."""
    rows, note = shown_ranks(analysis.breakdown.per_rank, analysis.verdict.ranks, MAX_TEXT_RANKS)
    if not rows:
        return None, ""
    notes = [f"{note}."] if note else []
    notes.append(
        "Exposed comm is communication that compute does not overlap, including waits for late ranks. All "
        "comm also has the overlapped part; overlapped is its share."
    )
    if all(row.exposed_copy_ms is None for row in rows):
        notes.append("Copies were not timed separately and count as host time.")
    hosts = any(row.host for row in rows)
    parts = [
        part
        for part in PARTS
        if any((getattr(row, part.field) or 0.0) >= LEAST * row.step_ms for row in rows)
    ]
    header = (
        ">rank",
        *(("node",) if hosts else ()),
        ">step ms",
        *(f">{part.short}" for part in parts),
        ">all comm, ms",
        ">overlapped",
    )
    return Table(header, tuple(_rank_row(row, parts, hosts) for row in rows)), " ".join(notes)


def is_cut(analysis: Analysis) -> bool:
    """True if some ranks are not in `breakdown_table`."""
    return len(analysis.breakdown.per_rank) > MAX_TEXT_RANKS


def _rank_row(row: RankBreakdown, parts: Sequence[PaletteEntry], hosts: bool) -> tuple[str, ...]:
    return (
        str(row.rank),
        *((host(row.host or ABSENT, 15),) if hosts else ()),
        number(row.step_ms),
        *(share(getattr(row, part.field), row.step_ms) for part in parts),
        number(row.comm_ms),
        ABSENT if row.overlap_ratio is None else f"{100 * row.overlap_ratio:.0f} %",
    )


def changed_thresholds(analysis: Analysis) -> str:
    """Returns each threshold that was changed for an analysis, from what to what."""
    return ", ".join(
        f"{key} from {change.before:g} to {change.now:g}"
        for key, change in analysis.thresholds_changed.items()
    )


def measured_table(measured: list[RuleMeasurement]) -> Table:
    """Each rule's value beside its threshold, and its answer."""
    rows = []
    for rule in measured:
        spec = FINDINGS.get(rule.kind)
        sign = "below" if spec is not None and spec.fires_below else "above"
        answer = (
            "FOUND"
            if rule.fired
            else plain(rule.reason)
            if rule.reason
            else "ok"
            if rule.value is not None
            else "not measurable"
        )
        limit = f"{sign} {quantity(rule.threshold, rule.unit)}"
        rows.append((kind_name(rule.kind), quantity(rule.value, rule.unit), limit, answer))
    return Table(("finding", ">measured", "reported if", "result"), tuple(rows))


def counted_steps(analysis: Analysis) -> str:
    """The steps that the breakdown is of: `30 steady steps`, or `20 detailed of 80 steady steps`."""
    count, quality = analysis.breakdown.steps, analysis.data_quality
    if quality.detailed_steps is None or count != quality.detailed_steps:
        return plural(count, "steady step")
    return f"{count:,} detailed of {plural(quality.steady_steps, 'steady step')}"


def steady_words(quality: DataQuality) -> str:
    """Returns how many steps are steady, and how many of them were timed part by part if not all."""
    detailed = quality.detailed_steps
    return str(quality.steady_steps) + ("" if detailed is None else f" ({detailed} detailed)")


def _cost_of_detail(found: DetailCost) -> str:
    """`1.04× (1.02× to 1.06×): 78.0 ms in 20 detailed steps, 75.0 ms in 30 others`, or the reason."""
    if found.ratio is None:
        return f"{ABSENT} ({plain(found.reason or 'not measured')})"
    detailed = f"{quantity(found.detailed_ms, 'ms')} in {found.detailed_steps:,} detailed steps"
    whole = f"{quantity(found.whole_ms, 'ms')} in {found.whole_steps:,} others"
    interval = found.ratio_interval
    between = "" if interval is None else f" ({interval.low:.2f}× to {interval.high:.2f}×)"
    return f"{found.ratio:.2f}×{between}: {detailed}, {whole}"


def quality_table(analysis: Analysis) -> Table:
    """The data that the findings rest on."""
    quality, cost_of = analysis.data_quality, analysis.detail_cost
    rows = (
        ("job state", plain(quality.state or f"{ABSENT} (no marker says)")),
        (
            "ranks with records",
            _of(quality.ranks_seen, None if quality.ranks_assumed else quality.ranks_expected),
        ),
        ("nodes with data", _of(quality.nodes_seen, quality.nodes_expected)),
        ("steady steps", steady_words(quality)),
        *(
            (("step time, detailed over other steps", _cost_of_detail(cost_of)),)
            if cost_of is not None
            else ()
        ),
        ("sources", listing(quality.sources, 12) or "none"),
    )
    return Table(("data", "available"), rows)


def _of(seen: int, expected: int | None) -> str:
    return f"{seen} of {expected if expected is not None else 'an unknown number'}"


def utilization_rows(analysis: Analysis) -> list[tuple[str, str]]:
    """Names and values of the steady window's monitor samples and of the throughput."""
    rows: list[tuple[str, str]] = []
    if (run := analysis.throughput) is not None:
        rows += [
            ("samples/s, all ranks", number(run.samples_per_s)),
            ("step time (mean over ranks), median of steps", quantity(run.step_ms_median, "ms")),
            ("step time (mean over ranks), 95th percentile", quantity(run.step_ms_p95, "ms")),
            ("step time of the slowest rank, median of steps", quantity(run.slowest_rank_ms_median, "ms")),
            ("step time of the slowest rank, 95th percentile", quantity(run.slowest_rank_ms_p95, "ms")),
            ("batch size, per rank / over all ranks", f"{run.per_rank_batch} / {run.global_batch}"),
            (
                "check: samples/s × median step time / batch",
                f"{number(run.cross_check_ratio)} (1 if they agree)",
            ),
        ]
    absent: dict[str, list[str]] = {}
    if (use := analysis.utilization) is not None:
        gpu = "no GPU in the job" if analysis.device == "cpu" else "not sampled"
        no_cgroup, no_limit = "no cgroup of its own, or not sampled", "no limit, or not sampled"
        found = (
            ("GPU time with a compute kernel running", use.effective_gpu_util_pct, "%", gpu),
            ("GPU utilisation by the driver's counter", use.gpu_util_pct, "%", gpu),
            ("GPU memory used", use.gpu_memory_used_pct, "%", gpu),
            ("GPU power", use.gpu_power_w, "W", gpu),
            ("GPU energy per sample", use.energy_per_sample_j, "J", gpu),
            ("SM activity", use.sm_active_pct, "%", gpu),
            ("tensor core activity (of its peak)", use.tensor_active_pct, "%", gpu),
            ("GPU memory bandwidth in use", use.dram_active_pct, "%", gpu),
            ("CPU use of the whole node (100 % is all cores)", use.cpu_pct, "%", "not sampled"),
            ("CPU use of the job (100 % is one core)", use.job_cpu_pct, "%", no_cgroup),
            ("memory used on the node", use.host_memory_used_pct, "%", "not sampled"),
            ("memory of the job (of its limit)", use.job_memory_used_pct, "%", no_limit),
        )
        rows += [(name, quantity(value, unit)) for name, value, unit, _ in found if value is not None]
        rows.append(("monitor samples in the steady steps", str(use.samples)))
        for name, value, _, reason in found:
            if value is None:
                absent.setdefault(reason, []).append(name)
    words = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in absent.items())
    return [*rows, *((("not measured", words),) if words else ())]


def scope(finding: Finding) -> str:
    """The ranks and nodes that a finding is about."""
    return ranks(finding.ranks) + (f" on {listing(finding.nodes)}" if finding.nodes else "")


def sub_cause_name(finding: Finding) -> str:
    """Name of the sub-cause, in a word or two; `—` for kinds that have none."""
    return ABSENT if finding.sub_cause is None else plain(finding.sub_cause).replace("_", " ")


def main_finding(analysis: Analysis) -> Finding | None:
    """The finding that the verdict states; None when healthy or when the data does not suffice."""
    same = [item for item in analysis.findings if item.kind == analysis.verdict.kind]
    causes = [item for item in same if item.symptom_of is None]
    return next(iter(causes or same), None)


def step_ms(analysis: Analysis) -> float | None:
    """The mean step over ranks, in ms, to which predicted gains refer; None without one."""
    return mean_parts(analysis).get("step_ms")


def cost(analysis: Analysis, finding: Finding) -> tuple[float, float] | None:
    """Cost of a cause: ms per step and percent of the step; None where no gain was predicted.

    Without it a step of T takes T / s: it costs T · (1 − 1/s), s the predicted speed-up, or its upper bound
    where only bounds are known.
    """
    whole, gained = step_ms(analysis), finding.estimated_speedup
    if whole is None or gained is None:
        return None
    factor = gained.high if gained.expected is None else gained.expected
    if factor < 1:
        return None
    return whole * (1 - 1 / factor), 100 * (1 - 1 / factor)


def cost_words(analysis: Analysis, finding: Finding) -> str:
    """`up to 31.6 of 75.5 ms per step (42 %)`, with the bounds that are known; else why it is not known."""
    whole, gained = step_ms(analysis), finding.estimated_speedup
    said = saved_words(whole, gained) if whole is not None and gained is not None else None
    return said or "not predicted: the measurements give no bound"


def confidence_words(found: Confidence) -> str:
    """Returns how far the cause can be trusted, the main doubt if there is one, and what it stands on."""
    return _level_words(found.level, found.doubts, found.basis)


def gain_confidence_words(found: Confidence) -> str:
    """Returns how far the expected speed-up can be trusted, and the main doubt if there is one."""
    return _level_words(found.gain, found.gain_doubts, [])


def _level_words(level: str, doubts: Sequence[str], basis: Sequence[str]) -> str:
    said = f"{level}: {'; '.join(map(plain, doubts[:_DOUBTS]))}" if doubts else level
    if len(doubts) > _DOUBTS:
        said += f"; and {len(doubts) - _DOUBTS} more"
    return f"{said}. Measured: {'; '.join(map(plain, basis))}" if basis else said
