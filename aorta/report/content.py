"""Tables and sentences about one run, from its `Analysis`; every document takes them from here."""

from __future__ import annotations

import time
from collections.abc import Sequence

from aorta.artefacts.analysis import Analysis, DataQuality, Finding, RuleMeasurement
from aorta.artefacts.clean import plain
from aorta.artefacts.measured import DetailCost, RankBreakdown, Utilization
from aorta.artefacts.page import Confidence
from aorta.diagnosis.finding import STEP_SHARE, saved_share, saved_words
from aorta.diagnosis.findings import FINDINGS, kind_name
from aorta.report.confidence import TOLERANCE, is_consistent
from aorta.report.palette import LEAST_PCT, PARTS, PaletteEntry
from aorta.report.parts import mean_parts
from aorta.report.selection import shown_ranks
from aorta.report.tables import Table
from aorta.report.text import ABSENT, gain, host, listing, number, quantity, ranks, share
from aorta.units import plural

LEAST = LEAST_PCT / 100.0
_DOUBTS = 2
"""Maximum number of doubts in a line of the first screen."""

MAX_TEXT_RANKS = 32
"""Rows of a breakdown table; more ranks are chosen from."""

TIMINGS = {
    "host": "All times are wall-clock times taken on the CPU, so compute includes time in which the process "
    "sleeps or waits for a core.",
    "event_window": "Times on the GPU were measured with CUDA events, so they include launching and "
    "queueing.",
    "kernel": "Times on the GPU are the kernels' own times.",
}
"""Meaning of a time, by how it was taken."""


_SUB_CAUSES = {"no_workers": "num_workers = 0", "not_determined": "not determined"}
"""Sub-causes whose code does not read well."""
MAX_HOSTS = 3
"""Maximum number of node names in the heading."""


def heading(analysis: Analysis) -> str:
    """Scenario, job, size, date and nodes in one line; what is not known is left out."""
    unnamed = "traces" if analysis.traces is not None else "run"
    parts = [f"scenario {plain(analysis.scenario)}" if analysis.scenario else unnamed]
    if analysis.job_id:
        parts.append(f"job {plain(analysis.job_id)}")
    counts = ((analysis.nodes, "node"), (analysis.world_size, "rank"))
    size = [plural(count, noun) for count, noun in counts if count is not None]
    if analysis.device:
        size.append("CPU only" if analysis.device == "cpu" else plain(analysis.device))
    parts += [", ".join(size)] if size else []
    if spreads_one_machine(analysis):
        parts.append("nodes share one machine")
    if analysis.started_wall_ns is not None:
        parts.append(_date(analysis.started_wall_ns))
    if names := list(dict.fromkeys(host(row.host, 30) for row in analysis.breakdown.per_rank if row.host)):
        parts.append(f"host{'s' if len(names) > 1 else ''} {listing(names, MAX_HOSTS)}")
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
        "Exposed comm: communication that is not overlapped with compute, including waits for late ranks. "
        "All comm: exposed and overlapped communication together. Comm overlap: the share of communication "
        "that runs at the same time as compute."
    )
    if any((row.host_ms or 0.0) >= LEAST * row.step_ms for row in rows):
        notes.append(
            "Host work: Python and other CPU work that is not compute, data loading or communication."
        )
    if analysis.device != "cpu" and all(row.exposed_copy_ms is None for row in rows):
        notes.append("Copies between CPU and GPU were not timed separately; they are part of host work.")
    hosts = any(row.host for row in rows)
    parts = [
        part
        for part in PARTS
        if any((getattr(row, part.field) or 0.0) >= LEAST * row.step_ms for row in rows)
    ]
    header = (
        ">rank",
        *(("node",) if hosts else ()),
        ">step, ms",
        *(f">{part.short}" for part in parts),
        ">all comm, ms",
        ">comm overlap",
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


def measured_table(analysis: Analysis) -> Table:
    """Each rule's value, its threshold and its answer; a symptom says whose."""
    rows = []
    for rule in analysis.measured:
        spec = FINDINGS.get(rule.kind)
        sign = "below" if spec is not None and spec.fires_below else "above"
        limit = f"{sign} {quantity(rule.threshold, rule.unit)}"
        rows.append((kind_name(rule.kind), _value(analysis, rule), limit, _answer(analysis, rule)))
    return Table(("finding", ">measured", "reported if", "result"), tuple(rows))


def _answer(analysis: Analysis, rule: RuleMeasurement) -> str:
    """`FOUND`, `symptom of data loading`, `ok`, or why there is no answer."""
    if rule.fired:
        same = [item for item in analysis.findings if item.kind == rule.kind]
        cause = same[0].symptom_of if same else None
        return f"symptom of {kind_name(cause)}" if cause else "FOUND"
    return plain(rule.reason) if rule.reason else "ok" if rule.value is not None else "not measured"


def _value(analysis: Analysis, rule: RuleMeasurement) -> str:
    """The value, and of whose step it is where that is known: of the worst rank's, or of the mean step."""
    return measured_words(analysis, rule)


def measured_words(analysis: Analysis, rule: RuleMeasurement | Finding) -> str:
    """The value of a finding or its measurement: `42.3 % of the worst rank's step`."""
    said, spec = quantity(rule.value, rule.unit), FINDINGS.get(rule.kind)
    if rule.value is None or spec is None or rule.unit != STEP_SHARE or len(analysis.breakdown.per_rank) < 2:
        return said
    if not spec.value_of or analysis.mesh is not None:
        return said
    return said.replace("the step", spec.value_of)


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
            (("step time: detailed steps ÷ other steps", _cost_of_detail(cost_of)),)
            if cost_of is not None
            else ()
        ),
        ("sources", listing(quality.sources, 12) or "none"),
    )
    return Table(("item", "value"), rows)


def _of(seen: int, expected: int | None) -> str:
    return f"{seen} of {expected if expected is not None else 'an unknown number'}"


def utilization_rows(analysis: Analysis) -> list[tuple[str, str]]:
    """Returns what was measured of throughput and utilisation in the steady steps: names and values."""
    rows: list[tuple[str, str]] = []
    if (run := analysis.throughput) is not None:
        rows += [
            ("samples/s, all ranks", number(run.samples_per_s)),
            ("median step time, mean over ranks", quantity(run.step_ms_median, "ms")),
            ("95th percentile of the step time, mean over ranks", quantity(run.step_ms_p95, "ms")),
            ("median step time of the slowest rank", quantity(run.slowest_rank_ms_median, "ms")),
            ("95th percentile of the step time of the slowest rank", quantity(run.slowest_rank_ms_p95, "ms")),
            ("batch size per rank", str(run.per_rank_batch)),
            ("batch size over all ranks", str(run.global_batch)),
            (
                "consistency check: samples/s × median step time ÷ batch size over all ranks",
                _checked(run.cross_check_ratio),
            ),
        ]
    if (use := analysis.utilization) is not None:
        known = [(name, value, unit) for name, value, unit, _ in _sampled(analysis, use)]
        rows += _cores(use, alone=not spreads_one_machine(analysis))
        rows += [(name, quantity(value, unit)) for name, value, unit in known if value is not None]
        rows.append(("monitor samples during the steady steps", str(use.samples)))
    return rows


def _checked(ratio: float | None) -> str:
    """The ratio of throughput and step time, and the answer of the check; `—` where it is unknown."""
    if ratio is None:
        return ABSENT
    answer = "consistent" if is_consistent(ratio) else "not consistent"
    return f"{number(ratio)} ({answer}; should be {1 - TOLERANCE:g} to {1 + TOLERANCE:g})"


def unmeasured_words(analysis: Analysis) -> str:
    """Returns which quantities of the utilisation are unknown, by reason; empty where all are known."""
    use = analysis.utilization
    if use is None:
        return ""
    absent: dict[str, list[str]] = {}
    if use.cpu_pct is None:
        absent.setdefault(_UNSAMPLED, []).append("CPU cores in use on the node")
    if use.job_cpu_pct is None:
        absent.setdefault(f"either the job does not have its own cgroup or {_UNSAMPLED}", []).append(
            "CPU cores in use by the job"
        )
    for name, value, _, reason in _sampled(analysis, use):
        if value is None:
            absent.setdefault(reason, []).append(name)
    return " ".join(
        f"Not measured, because {reason}: {', '.join(names)}." for reason, names in absent.items()
    )


_UNSAMPLED = "there are no monitor samples"


def _sampled(analysis: Analysis, use: Utilization) -> tuple[tuple[str, float | None, str, str], ...]:
    """Returns name, value, unit and the reason if the value is absent, of what monitors sample."""
    gpu = "the job has no GPU" if analysis.device == "cpu" else _UNSAMPLED
    no_limit = _UNSAMPLED if use.host_memory_used_pct is None else "the job has no cgroup with a memory limit"
    return (
        ("GPU time with a compute kernel running", use.effective_gpu_util_pct, "%", gpu),
        ("GPU utilisation according to the driver", use.gpu_util_pct, "%", gpu),
        ("GPU memory used", use.gpu_memory_used_pct, "%", gpu),
        ("GPU power", use.gpu_power_w, "W", gpu),
        ("GPU energy per sample", use.energy_per_sample_j, "J", gpu),
        ("SM activity", use.sm_active_pct, "%", gpu),
        ("tensor core activity (% of peak)", use.tensor_active_pct, "%", gpu),
        ("GPU memory bandwidth in use", use.dram_active_pct, "%", gpu),
        ("memory used on the node", use.host_memory_used_pct, "%", _UNSAMPLED),
        ("job memory (% of the job's limit)", use.job_memory_used_pct, "%", no_limit),
    )


def _cores(use: Utilization, *, alone: bool) -> list[tuple[str, str]]:
    """CPU cores in use, mean over nodes: of the node, by the job and by other programs, all in cores.

    Args:
        use: means over the samples of the steady steps.
        alone: each node is a machine of its own, so that what the job does not use is used by others.
    """
    rows: list[tuple[str, str]] = []
    cores = use.node_cores
    node = None if use.cpu_pct is None or cores is None else use.cpu_pct / 100.0 * cores
    job = None if use.job_cpu_pct is None else use.job_cpu_pct / 100.0
    if node is not None and cores is not None:
        rows.append(("CPU cores in use on the node", f"{number(node)} of {cores:g} ({use.cpu_pct:.0f} %)"))
    elif use.cpu_pct is not None:
        rows.append(("CPU cores in use on the node", f"{number(use.cpu_pct)} % of all cores"))
    if job is not None:
        rows.append(("CPU cores in use by the job", number(job)))
    if node is not None and job is not None and cores is not None and alone:
        free = f"{number(max(cores - node, 0.0))} cores were free"
        rows.append(("CPU cores in use by other programs", f"{number(max(node - job, 0.0))} ({free})"))
    return rows


def scope(finding: Finding) -> str:
    """The ranks and nodes that a finding is about."""
    nodes = f", node{'s' if len(finding.nodes) > 1 else ''} {listing(finding.nodes)}" if finding.nodes else ""
    return ranks(finding.ranks) + nodes


def sub_cause_name(finding: Finding) -> str:
    """Name of the sub-cause, in a word or two; `—` for kinds that have none."""
    if finding.sub_cause is None:
        return ABSENT
    return _SUB_CAUSES.get(finding.sub_cause) or plain(finding.sub_cause).replace("_", " ")


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

    Without the cause, a step of T takes T / s, so the cause costs T · (1 − 1/s). Here s is the predicted
    speed-up, or its upper bound if only bounds are known.
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
    if whole is not None and gained is not None and (said := saved_words(whole, gained)):
        return f"{said} ({saved_share(gained)})"
    return "not predicted: the measurements give no limit"


def gain_words(finding: Finding) -> str:
    """`1.69× to 1.73×, if the fix removes the whole cost`: of a replay; otherwise its bounds."""
    said, gained = gain(finding.estimated_speedup), finding.estimated_speedup
    all_of_it = gained is not None and gained.basis == "replay" and gained.expected is not None
    return f"{said}, if the fix removes the whole cost" if all_of_it else said


def confidence_words(found: Confidence) -> str:
    """Returns how far the cause can be trusted, the main doubt if there is one, and what it stands on."""
    return _level_words(found.level, found.doubts, found.basis)


def gain_confidence_words(found: Confidence, analysis: Analysis) -> str:
    """Returns how far the predicted speed-up can be trusted, the main doubt if any, and the check."""
    replay, finding, basis = analysis.replay, main_finding(analysis), list[str]()
    gained = finding.estimated_speedup if finding is not None else None
    simulated = gained is not None and gained.basis == "replay"
    if simulated and replay is not None and not replay.withheld and replay.error_pct is not None:
        off = max(replay.error_pct, 0.1)
        basis.append(f"the replay reproduces the measured steps to within {off:.1f} %")
    return _level_words(found.gain, found.gain_doubts, basis)


def _level_words(level: str, doubts: Sequence[str], basis: Sequence[str]) -> str:
    said = f"{level}: {'; '.join(map(plain, doubts[:_DOUBTS]))}" if doubts else level
    if len(doubts) > _DOUBTS:
        said += f"; and {len(doubts) - _DOUBTS} more"
    return f"{said} ({'; '.join(map(plain, basis))})" if basis else said
