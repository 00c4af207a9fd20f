"""Reads what step records and sampled stacks say of waits and of host work, which several mistakes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aorta.artefacts.weight import Estimate
from aorta.averages import median, median_low
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.records_alone import ObservedRecords
from aorta.metrics.node_load import FULL_PCT, NodeLoad
from aorta.metrics.places import FEWEST, FindingPlace, where
from aorta.metrics.replay_model import Part

if TYPE_CHECKING:
    from aorta.artefacts.instrument_record import InstrumentRecord, SampledFunction

LEAST_SHARE = 0.1
"""Anything that takes less than this share of the step is not reported as a mistake."""
_FEWEST = 10
"""Steps that records need to tell it."""
_AHEAD = 1.0
"""Batches that a loader has ready, where it is not the limit."""
_APART = 0.25
"""Waits of the other ranks over those of the ranks that are named."""
_SPREAD = 0.35
"""Half-width of the gain's range, as a share of the gain beyond 1."""
_LEAST_LEFT = 0.05
_MOSTLY = 0.5
"""Share of the step: a longer wait is more than a turn on a busy CPU takes."""


def recorded(seen: Observation) -> ObservedRecords | None:
    """Returns the records of a run where they hold enough steps of every rank. None if they do not."""
    records = seen.recorded
    if records is None or records.steps < _FEWEST or seen.job.ranks_missing or not records.rows:
        return None
    return records


def waiting(seen: Observation, records: ObservedRecords) -> tuple[list[int], bool]:
    """Returns the ranks whose loaders are late, and True if the other ranks wait for much less.

    A rank that waits for the slowest one in collectives meanwhile gets its own batch. Its loader is as slow
    if it has no batch ready when the rank asks.
    """
    waits = {row.rank: row.data_wait_ms for row in records.rows}
    ranks = [row.rank for row in records.rows if row.data_wait_ms >= LEAST_SHARE * row.step_ms]
    if not ranks:
        return [], False
    ready = {rank: one.loader_ready for rank, one in seen.host.stacks.items()}
    ranks = [rank for rank in waits if rank in ranks or _behind(ready.get(rank))]
    others = [ms for rank, ms in waits.items() if rank not in ranks]
    alone = bool(ranks and others) and max(others) <= _APART * median_low(waits[rank] for rank in ranks)
    return ranks, alone


def _behind(ready: float | None) -> bool:
    return ready is not None and ready < _AHEAD


def workers(seen: Observation, ranks: Sequence[int]) -> int | None:
    """Returns the workers of these ranks' loaders. None if not recorded, or ranks differ."""
    if seen.job.config is not None:
        return seen.job.config.dataloader.num_workers
    known = [seen.host.stacks[rank].loader_workers for rank in ranks if rank in seen.host.stacks]
    return known[0] if len(known) == len(ranks) and len(set(known)) == 1 else None


def alone_have_loaders(seen: Observation, ranks: Sequence[int]) -> bool:
    """Returns True if hooks saw a DataLoader on these ranks and on none of the others.

    The others get their batches from these ranks, or are later stages of a pipeline.
    """
    stacks = seen.host.stacks
    others = [one for rank, one in stacks.items() if rank not in ranks]
    mine = [stacks[rank] for rank in ranks if rank in stacks]
    return bool(
        others
        and len(mine) == len(ranks)
        and all(one.loader_workers is not None for one in mine)
        and all(one.loader_workers is None for one in others)
    )


def starts_ms(seen: Observation, ranks: Sequence[int]) -> float:
    """Returns the longest time per step that a rank waits for workers that start; 0.0: they started once."""
    found = [seen.host.stacks[rank] for rank in ranks if rank in seen.host.stacks]
    return max(
        (one.loader_start_ms / one.steps for one in found if one.loader_starts and one.steps), default=0.0
    )


def starved(seen: Observation, records: ObservedRecords) -> bool:
    """True if loaders may be late because they wait for a CPU.

    A node's CPUs are busy, or that is not known, and no rank waits for more than half of its step.
    """
    loads = list(seen.around.loads.values())
    if loads and not any(_full(load) for load in loads):
        return False
    return max(row.data_wait_ms / row.step_ms for row in records.rows) < _MOSTLY


def _full(load: NodeLoad) -> bool:
    if load.cpu_pct is None or load.job_cpu_pct is None or not load.cpus_usable:
        return True
    return load.cpu_pct >= FULL_PCT or load.job_cpu_pct >= FULL_PCT * load.cpus_usable


def gain_without(records: ObservedRecords, part: Part, ranks: Sequence[int] = ()) -> Estimate:
    """Returns the step now over the step without a part, by replay where the records allow one.

    Args:
        records: of the run.
        part: that goes: on `ranks`, what they take longer for it than the others; on every rank, all of it.
        ranks: empty for every rank.
    """
    replays = records.model.usable if records.model is not None else None
    if replays is not None:
        made = replays.as_the_others((part,), ranks) if ranks else replays.without({part: 1.0})
        ends = made.speedup_interval
        return spread(made.speedup, *(() if ends is None else (ends.low, ends.high)))
    step = max(row.step_ms for row in records.rows)
    took = {row.rank: row.data_wait_ms if part == "data_loading" else row.host_ms for row in records.rows}
    others = [ms for rank, ms in took.items() if rank not in ranks] if ranks else [0.0]
    saved = [max(took[rank] - median_low(others), 0.0) for rank in (ranks or took)]
    value, high = (step / max(step - ms, _LEAST_LEFT * step) for ms in (min(saved), max(saved)))
    # Without a replay, nothing tells what the other ranks need meanwhile.
    return Estimate(value=value, low=1.0, high=spread(value, high).high)


def spread(value: float, *ends: float) -> Estimate:
    """Returns a gain with its range: that of another run, and at least 35 % of the gain."""
    half = _SPREAD * max(value - 1.0, 0.0)
    low, high = min((value - half, *ends)), max((value + half, *ends))
    return Estimate(value=max(value, 1.0), low=max(low, 1.0), high=max(high, 1.0))


def without_share(share: float, *, once: bool) -> Estimate:
    """Returns the gain without a share (0 to 1) of the time.

    Args:
        share: of the whole time.
        once: it happened once, which tells no rate.
    """
    made = spread(1.0 / max(1.0 - share, _LEAST_LEFT))
    return Estimate(value=made.value, low=1.0, high=made.high) if once else made


def longer_hosts(records: ObservedRecords) -> dict[int, float]:
    """Returns the ranks whose hosts work longer than the typical one, with the share of the step.

    They work twice as long, and a tenth of the step longer. Empty if there are none, or they are the most.
    """
    hosts = {row.rank: row.host_ms for row in records.rows}
    typical = median_low(hosts.values())
    found = {
        row.rank: (row.host_ms - typical) / row.step_ms
        for row in records.rows
        if row.host_ms >= 2 * typical and row.host_ms - typical >= LEAST_SHARE * row.step_ms
    }
    return found if len(hosts) > 1 and 2 * len(found) <= len(hosts) else {}


def own_place(
    stacks: Mapping[int, InstrumentRecord], longer: Mapping[int, float], *, forward: bool
) -> FindingPlace | None:
    """Returns the place in which ranks spend at least half of what their hosts take longer. None if none
    does.

    Args:
        stacks: by rank.
        longer: ranks with the share of the step that their hosts take longer.
        forward: whether a model's forward pass is looked for, outside of the one that trains; or other code.
    """
    ranks = list(longer)
    if not ranks or not set(ranks) <= set(stacks) or len(stacks) == len(ranks):
        return None
    chosen = {rank: replace(one, places=_outside(one, forward)) for rank, one in stacks.items()}
    there = {rank: sum(place.samples for place in one.places) for rank, one in chosen.items()}
    shares = {rank: count / max(sum(stacks[rank].samples.values()), 1) for rank, count in there.items()}
    others = median(share for rank, share in shares.items() if rank not in ranks)
    if any(there[rank] < FEWEST or shares[rank] - others < longer[rank] / 2 for rank in ranks):
        return None
    found = where(chosen, ranks, ("other",))
    # All ranks are at a place that they share, and the one that comes first waits there.
    alone = found is not None and found.share - (found.longer or 0.0) <= _APART * found.share
    return found if alone else None


def _outside(record: InstrumentRecord, forward: bool) -> list[SampledFunction]:
    """Returns the places outside of all passes that are in a model's forward, or those that are not."""
    return [
        place
        for place in record.places
        if place.part == "other"
        and not place.package
        and (place.function.rsplit(".", 1)[-1] == "forward") is forward
    ]
