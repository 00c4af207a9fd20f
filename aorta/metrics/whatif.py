"""Predictions of the steps without a cause, by replay, with their intervals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.artefacts.measured import Interval
from aorta.metrics import another_run, replay_check
from aorta.metrics.bootstrap import ratio_interval
from aorta.metrics.collectives import MatchedCollectives
from aorta.metrics.replay import Removal, replay
from aorta.metrics.replay_model import PARTS, Floats, Part, ReplayModel, build
from aorta.units import plural

TOLERANCE_PCT = 3.0
"""Largest accepted error of a replay with nothing removed, on steps that did not supply its transfer times.
"""
_TRIED_PLACES = 8
_NS_PER_MS = 1e6


class Prediction(Struct, frozen=True):
    """The mean step without something, and the mean step now over it; no intervals of fewer than 10 steps."""

    step_ms: float
    step_ms_interval: Interval | None
    """Interval of another run's mean step."""
    speedup: float
    speedup_interval: Interval | None
    """Interval of the mean step now over another run's."""
    effect_interval: Interval | None
    """Interval of the speed-up of these very steps, resampled: above 1, the gain is more than their noise."""
    hosts_ms: float | None = None
    """Time that the hosts need for a step, where that is the next limit."""
    bound: bool = False
    """True where the traces lack the hosts' time, which may be the next limit: the step is this or longer."""


class _Hosts(Struct, frozen=True):
    """Work of the hosts per step."""

    least_ns: float = 0.0
    """Least work of the hosts per step, as far as it is known."""
    known: bool = True


class CollectiveSlot(Struct, frozen=True):
    """A collective's place in the step."""

    op: str
    group: str
    number: int
    """Place among its group's calls in the step, from 0."""
    bytes: int | None
    transfer_ms: float
    """Mean over members and steps."""
    fastest_ms: float
    """Time that one in ten of its calls stays below: the link at its best."""


class Replays:
    """The models of a run, and what they make of it unchanged."""

    def __init__(self, models: Sequence[ReplayModel], host_ns: Mapping[int, float] | None = None) -> None:
        self._models = tuple(models)
        self._host_ns = host_ns
        self.measured_ns = np.concatenate([model.measured.step_ns() for model in models])
        self.modelled_ns = self._steps(lambda _: Removal())
        edges = np.cumsum([0, *(len(model.steps) for model in models)]).tolist()
        self.runs = list(itertools.pairwise(edges))
        self.ranks = models[0].ranks
        self.error_pct = replay_check.error_pct(models)
        """Returns how far the model misses steps that its transfers are not of.

        None: no call can be checked.
        """

    @classmethod
    def of(
        cls,
        collectives: MatchedCollectives,
        steady: Sequence[int],
        host_ns: Mapping[int, float] | None = None,
    ) -> Replays | str:
        """The models of the steps `steady`, or in words why there are none.

        Args:
            collectives: of all ranks.
            steady: the steps.
            host_ns: what each rank's host works in a step, of ranks whose trace tells; None where it is none
                of traces. Of a GPU that waits for another rank it shows nowhere else, and becomes the next
                limit.
        """
        wanted = np.asarray(steady, dtype=np.int64)
        lacking = [
            rank
            for rank, timeline in collectives.timelines.items()
            if not timeline.ends.has(wanted) or not timeline.starts.has(wanted)
        ]
        if lacking:
            return f"{plural(len(lacking), 'rank')} did not record what they did in every step"
        if not len(steady):
            return "there are no steady steps"
        return cls(build(collectives, steady), host_ns)

    @property
    def doubt(self) -> str | None:
        """Why the model may predict nothing; None where it holds, or the ranks exchange nothing."""
        if self.error_pct is None:
            calls = any(len(model.group) for model in self._models)
            return (
                "no collective is called in more than one step, so the replay cannot be checked"
                if calls
                else None
            )
        if self.error_pct > TOLERANCE_PCT:
            missed = f"{self.error_pct:.1f} % off the measured step"
            return (
                f"the replay, with transfer times from other steps, is {missed} (limit {TOLERANCE_PCT:g} %)"
            )
        return None

    @property
    def measured_ms(self) -> float:
        """Mean step, from start to start."""
        return float(self.measured_ns.mean()) / _NS_PER_MS

    @property
    def modelled_ms(self) -> float:
        """The same by the replay with nothing removed."""
        return float(self.modelled_ns.mean()) / _NS_PER_MS

    def as_the_others(self, parts: Sequence[Part], ranks: Sequence[int]) -> Prediction:
        """Without what `ranks` take longer for `parts` than the other ranks do.

        Steps are ordered by length, and each of these ranks' steps takes as long as the other ranks' step at
        the same position. A delay of some steps disappears, and the variation on every rank stays. `ranks`
        empty: every rank takes the mean over ranks of each step.
        """

        def removal(model: ReplayModel) -> Removal:
            chosen = np.isin(model.ranks, list(ranks))
            return Removal({part: _shares(model.totals[PARTS.index(part)], chosen) for part in parts})

        faster = ranks if "host" in parts else ()
        return self._predict(removal, self._hosts(faster, every="host" in parts and not len(ranks)))

    def hidden_by(self, parts: Sequence[Part], ranks: Sequence[int]) -> list[int]:
        """Other ranks that would hold the step up by something else, were `ranks` not slow in `parts`.

        Those whose other parts take longer than the typical rank's by half of what `ranks` take longer
        for `parts`, or more.
        """
        every = np.array(self.ranks)
        rest = [part for part in PARTS if part not in parts]
        slow, other = self._mean(parts), self._mean(rest)
        chosen = np.isin(every, list(ranks))
        if chosen.all() or not chosen.any():
            return []
        excess = float(slow[chosen].mean() - slow[~chosen].mean())
        late = other - np.percentile(other, 50, method="lower") >= max(excess, 1.0) / 2
        return [int(rank) for rank in every[late & ~chosen]]

    def together(self, parts: Sequence[Part], ranks: Sequence[int], hiding: Sequence[int]) -> Prediction:
        """Without what `ranks` take longer for `parts`, and what `hiding` take longer for the other parts."""

        def removal(model: ReplayModel) -> Removal:
            shares = {}
            for part in PARTS:
                chosen = np.isin(model.ranks, list(ranks if part in parts else hiding))
                shares[part] = _shares(model.totals[PARTS.index(part)], chosen)
            return Removal(shares)

        return self._predict(removal, self._hosts(ranks if "host" in parts else hiding))

    def _hosts(self, without: Sequence[int] = (), *, every: bool = False) -> _Hosts:
        """Work of the hosts per step: the longest of the ranks that are not to become faster, or the mean
        of `every` one.
        """
        if self._host_ns is None:
            return _Hosts()
        staying = [rank for rank in self.ranks if rank not in without]
        told = [self._host_ns[rank] for rank in staying if rank in self._host_ns]
        least = float(np.mean(told) if every else max(told)) if told else 0.0
        return _Hosts(least, known=len(told) == len(staying))

    def _mean(self, parts: Sequence[Part]) -> Floats:
        """Mean time of each rank in `parts`, ns per step."""
        steps = sum(len(model.steps) for model in self._models)
        totals = [model.totals[PARTS.index(part)].sum(axis=1) for model in self._models for part in parts]
        return np.asarray(np.sum(totals, axis=0) / steps, dtype=np.float64)

    def without(self, shares: Mapping[Part, float]) -> Prediction:
        """Without these shares of every rank's parts. Hosts that work less than they do bound no step."""
        hosts = self._hosts() if set(shares) == {"data_loading"} else _Hosts()
        return self._predict(
            lambda _: Removal({part: np.array([[share]]) for part, share in shares.items()}), hosts
        )

    def without_each(self, part: Part, shares: Mapping[int, float]) -> Prediction:
        """Replays without a share of one part, by rank; ranks that are not named keep all of it."""
        column = np.array([[shares.get(rank, 0.0)] for rank in self.ranks])
        return self._predict(lambda _: Removal({part: column}), _Hosts())

    def without_transfer(self) -> Prediction:
        """Replays with transfers that take no time: the ideal network. Waits for late ranks stay."""
        return self._predict(lambda _: Removal(transfer=0.0), self._hosts())

    def with_transfers(self, factors: Mapping[tuple[str, int], float]) -> Prediction:
        """Replays with other transfers.

        Args:
            factors: of the transfers of calls, by group and place among its calls in the step.
        """
        return self._predict(
            lambda model: Removal(
                transfer=np.array([factors.get((group, number), 1.0) for group, number, _ in model.places])
            ),
            self._hosts(),
        )

    def ideal_ratio(self) -> float:
        """The step with an ideal network over the step as modelled."""
        return float(self._steps(lambda _: Removal(transfer=0.0)).sum() / self.modelled_ns.sum())

    def costliest_place(self) -> tuple[CollectiveSlot, Prediction] | None:
        """The collective of a step without which the step would gain most; None without collectives."""
        places = self._transfers()
        tried = sorted(places, key=lambda name: -places[name].transfer_ms)[:_TRIED_PLACES]
        best: tuple[CollectiveSlot, Prediction] | None = None
        for name in tried:
            found = self._predict(
                lambda model, name=name: Removal(transfer=_except(model, name)),  # type: ignore[misc]
                self._hosts(),
            )
            if best is None or found.step_ms < best[1].step_ms:
                best = places[name], found
        return best

    def places(self) -> list[CollectiveSlot]:
        """The collectives of a step, the longest transfer first."""
        return sorted(self._transfers().values(), key=lambda place: -place.transfer_ms)

    def _transfers(self) -> dict[tuple[str, int, str], CollectiveSlot]:
        sums: dict[tuple[str, int, str], float] = {}
        sizes: dict[tuple[str, int, str], int] = {}
        best: dict[tuple[str, int, str], float] = {}
        steps = sum(len(model.steps) for model in self._models)
        for model in self._models:
            of_row = model.place_of_row
            total = np.bincount(of_row, np.maximum(model.transfer, 0), minlength=len(model.places))
            members = np.bincount(model.place, np.diff(model.first), minlength=len(model.places))
            calls = np.bincount(model.place, minlength=len(model.places))
            fastest = _fastest(model)
            mean = total / np.maximum(members / np.maximum(calls, 1), 1)
            for index, name in enumerate(model.places):
                sums[name] = sums.get(name, 0.0) + float(mean[index])
                best[name] = min(best.get(name, np.inf), float(fastest[index]))
                if model.bytes[index] >= 0:
                    sizes[name] = max(sizes.get(name, 0), int(model.bytes[index]))
        return {
            name: CollectiveSlot(
                name[2],
                name[0],
                name[1],
                sizes.get(name),
                total / steps / _NS_PER_MS,
                best[name] / _NS_PER_MS,
            )
            for name, total in sums.items()
        }

    def _steps(self, removal: Callable[[ReplayModel], Removal]) -> Floats:
        return np.concatenate([replay(model, removal(model)).step_ns() for model in self._models])

    def _predict(self, removal: Callable[[ReplayModel], Removal], hosts: _Hosts) -> Prediction:
        now, least_ns = self.modelled_ns, hosts.least_ns
        gpus = self._steps(removal)
        # No step becomes longer by what it loses, nor shorter than its hosts need for it.
        left = np.maximum(gpus, np.maximum(np.minimum(least_ns, now), 1.0))
        limited = float(left.sum()) > (1.0 + TOLERANCE_PCT / 100.0) * float(np.maximum(gpus, 1.0).sum())
        speedup, step = float(now.sum() / left.sum()), float(left.mean()) / _NS_PER_MS
        spread = another_run.spread(left, (self.error_pct or 0.0) / 100.0)
        return Prediction(
            step_ms=step,
            step_ms_interval=another_run.around(step, spread),
            speedup=speedup,
            speedup_interval=another_run.around(speedup, spread),
            effect_interval=ratio_interval(now, left, self.runs),
            hosts_ms=least_ns / _NS_PER_MS if limited else None,
            bound=not hosts.known,
        )


def _fastest(model: ReplayModel) -> Floats:
    """The first decile of the transfers of each place, ns."""
    of_row = model.place_of_row
    order = np.argsort(of_row, kind="stable")
    edges = np.searchsorted(of_row[order], np.arange(1, len(model.places)))
    parts = np.split(model.transfer[order], edges)[: len(model.places)]
    return np.array([np.percentile(np.maximum(part, 0), 10) if len(part) else 0.0 for part in parts])


def _except(model: ReplayModel, name: tuple[str, int, str]) -> Floats:
    return np.array([0.0 if place == name else 1.0 for place in model.places])


def _shares(total: NDArray[np.int64], chosen: NDArray[np.bool_]) -> Floats:
    """Shares of each (ranks, steps) to remove so that `chosen` ranks take what the others take."""
    wanted = total.astype(np.float64)
    if not chosen.any():
        wanted[:] = total.mean(axis=0)
    elif not chosen.all():
        others = np.sort(total[~chosen], axis=1).mean(axis=0)
        place = np.argsort(np.argsort(total[chosen], axis=1, kind="stable"), axis=1)
        wanted[chosen] = others[place]
    return np.where(total > 0, 1.0 - wanted / np.maximum(total, 1), 0.0)
