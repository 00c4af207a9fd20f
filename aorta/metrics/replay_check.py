"""Check that the model of the steps holds for steps that it was not made of.

A step replayed with its own transfers is the measured step by construction, and proves nothing. What every
prediction rests on is that a collective ends so long after its last member came, whatever made that one
late. The steps are therefore split into two halves, and each half is replayed with the transfer times of the
other. For every place in the step and every rank, this is the mean over the other half's calls. Ranks' own
work stays what it was, since it is what predictions take away. Steps in which the network did what it does
in no others, or whose transfers depend on who comes when, are then missed.

The halves follow the Thue-Morse sequence, ABBABAAB... Of any 2^k consecutive steps, each half has as many
with an odd number as with an even number, and a steady drift affects both equally. A collective in every
second step, or a machine that warms up, therefore does not count as an error of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.metrics.replay import replay
from aorta.metrics.replay_model import Floats, Ints, ReplayModel


def error_pct(models: Sequence[ReplayModel]) -> float | None:
    """Returns how far one half of the steps, replayed with the other's transfers, misses its measured mean.

    Args:
        models: the unbroken runs of steps, in order.

    Returns:
        |modelled - measured| / measured in percent, the larger one of both halves; None where no call has one
        of its place in the other half.
    """
    halves = _halves(sum(len(model.steps) for model in models))
    held = _with_the_others(models, halves)
    if held is None:
        return None
    modelled = np.concatenate([replay(model).step_ns() for model in held])
    measured = np.concatenate([model.measured.step_ns() for model in models])
    return max(_apart(modelled[halves == half], measured[halves == half]) for half in (0, 1))


def _halves(count: int) -> Ints:
    """(count,) of 0 and 1."""
    return np.array([number.bit_count() & 1 for number in range(count)], dtype=np.int64)


def _with_the_others(models: Sequence[ReplayModel], halves: Ints) -> list[ReplayModel] | None:
    """The models with each transfer as it was in the other half; None where there is none to take."""
    names: dict[tuple[str, int, str], int] = {}
    ranks, keys, of_rows = len(models[0].ranks), [], []
    begin = 0
    for model in models:
        numbers = np.array([names.setdefault(name, len(names)) for name in model.places], dtype=np.int64)
        keys.append(numbers[model.place_of_row] * ranks + model.post.rank)
        of_rows.append(halves[begin + model.post.step])
        begin += len(model.steps)
    size = 2 * len(names) * ranks
    sums, counts = np.zeros(size), np.zeros(size, dtype=np.int64)
    for model, key, half in zip(models, keys, of_rows, strict=True):
        counted = model.transfer >= 0
        at = (2 * key + half)[counted]
        sums += np.bincount(at, model.transfer[counted], minlength=size)
        counts += np.bincount(at, minlength=size)
    held, known = [], False
    for model, key, half in zip(models, keys, of_rows, strict=True):
        at = 2 * key + (1 - half)
        taken: NDArray[np.bool_] = (model.transfer >= 0) & (counts[at] > 0)
        known = known or bool(taken.any())
        means = np.rint(sums[at] / np.maximum(counts[at], 1)).astype(np.int64)
        held.append(replace(model, transfer=np.where(taken, means, model.transfer)))
    return held if known else None


def _apart(modelled: Floats, measured: Floats) -> float:
    whole = float(measured.sum())
    return 100.0 * abs(float(modelled.sum()) - whole) / whole if whole else 0.0
