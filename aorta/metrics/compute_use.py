"""Adds up what GPUs computed in traced steps: time by kind, reached rates, model FLOP utilisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.artefacts.compute import ComputeUse, KindUse
from aorta.artefacts.events import ABSENT, among
from aorta.artefacts.hostline import ComputeKind, Item, LineTable, Tag
from aorta.averages import fmean
from aorta.metrics.cards import Card, card_of
from aorta.metrics.known_work import PRODUCTS
from aorta.metrics.profiler_weight import Lines
from aorta.units import NS_PER_MS

Mask = NDArray[np.bool_]
COUNTED_PCT = 95.0
"""Model FLOP utilisation is reported if the FLOPs are recorded for at least this share of the time in matrix
products.
"""
_NS_PER_S = 1e9
_RECOMPUTED = "recomputation"
_WORDS: dict[str, tuple[ComputeKind, ...]] = {
    "matrix products on tensor cores": (ComputeKind.TENSOR_MATMUL,),
    "other matrix products": (ComputeKind.PLAIN_MATMUL, ComputeKind.OTHER_MATMUL),
    "attention": (ComputeKind.ATTENTION, ComputeKind.SOFTMAX),
    "normalisation and elementwise": (ComputeKind.ELEMENTWISE, ComputeKind.POINTWISE),
    "optimizer": (ComputeKind.OPTIMIZER,),
    "communication": (ComputeKind.COMMUNICATION,),
    "copies from pageable memory": (ComputeKind.PAGEABLE_COPY,),
    "copies to the host": (ComputeKind.READ_COPY,),
    "other copies": (ComputeKind.COPY,),
    "other kernels": (ComputeKind.OTHER,),
}
_OVER_LINK = ("copies from pageable memory", "copies to the host")
_COPIES = (*_OVER_LINK, "other copies")


def compute_use(lines: Lines, step_ms: float | None) -> ComputeUse | None:
    """Time by kind, per step, as the mean over ranks; None where nothing ran on a GPU.

    Args:
        lines: of the ranks.
        step_ms: the step without the profiler. None if it is not known, since traces of ranks are missing.
    """
    tables = list(lines.tables.values())
    if not any((table.item == Item.LAUNCH).any() for table in tables):
        return None
    names = {line.census.gpu for line in lines.lines.values()}
    gpu = names.pop() if len(names) == 1 else None
    card = card_of(gpu)
    ranks = [_Launches.of(table) for table in tables]
    kinds = [
        _use(name, [(rank, rank.of_kind(name)) for rank in ranks], card) for name in (*_WORDS, _RECOMPUTED)
    ]
    model, reason = _model_tflop(ranks)
    if card is None and reason is None:
        reason = "this GPU is not in the table of cards" if gpu else "the traces do not name the GPU"
    if step_ms is None and reason is None:
        reason = "traces of ranks are missing, so the step time without the profiler is not known"
    known = None if model is None or card is None or not step_ms else model / step_ms * 1e3
    return ComputeUse(
        gpu=gpu,
        peak_tflops=card.tensor_tflops if card else None,
        memory_gb_s=card.memory_gb_s if card else None,
        link_gb_s=card.link_gb_s if card else None,
        source=card.source if card else None,
        kinds=sorted((use for use in kinds if use.launches > 0), key=lambda use: -use.ms),
        model_tflop=model,
        mfu_pct=None if known is None or card is None else 100.0 * known / card.tensor_tflops,
        reason=reason,
    )


class _Launches(Struct, frozen=True, eq=False):
    """Launches of a rank; work that is computed again or belongs to the optimizer is of no other kind."""

    table: LineTable
    steps: int
    launched: Mask
    again: Mask
    optimizer: Mask

    @classmethod
    def of(cls, table: LineTable) -> _Launches:
        """Returns the launches of a line."""
        computes, launched = _computes(table), table.item == Item.LAUNCH
        optimizer = _has(table, Tag.OPTIMIZER) & computes | (table.kind == ComputeKind.OPTIMIZER)
        again = launched & _has(table, Tag.RECOMPUTE) & computes
        return cls(table, max(len(np.unique(table.step)), 1), launched, again, optimizer)

    def of_kind(self, name: str) -> Mask:
        """Returns a mask of the launches of a kind."""
        if name == _RECOMPUTED:
            return self.again
        chosen = (
            self.optimizer if name == "optimizer" else among(self.table.kind, _WORDS[name]) & ~self.optimizer
        )
        return np.asarray(self.launched & chosen & ~self.again, dtype=np.bool_)

    def per_step(self, values: NDArray[np.generic]) -> float:
        """Returns the sum per step."""
        return float(values.sum()) / self.steps


def _has(table: LineTable, tag: Tag) -> Mask:
    return np.asarray((table.tags & int(tag)) != 0, dtype=np.bool_)


def _computes(table: LineTable) -> Mask:
    others = (ComputeKind.NONE, ComputeKind.COMMUNICATION, ComputeKind.COPY, ComputeKind.PAGEABLE_COPY)
    return np.asarray(~among(table.kind, (*others, ComputeKind.READ_COPY)), dtype=np.bool_)


def _use(name: str, rows: Sequence[tuple[_Launches, Mask]], card: Card | None) -> KindUse:
    copies = name in _COPIES
    sized = [mask & ((rank.table.bytes > 0) if copies else rank.table.flops != ABSENT) for rank, mask in rows]
    known = [(rank.table, mask) for (rank, _), mask in zip(rows, sized, strict=True)]
    known_ns = [rank.per_step(rank.table.gpu_ns[mask]) for (rank, _), mask in zip(rows, sized, strict=True)]
    seconds = sum(float(table.gpu_ns[mask].sum()) for table, mask in known) / _NS_PER_S
    reached = _rate(known, copies, seconds)
    return KindUse(
        kind=name,
        ms=fmean(rank.per_step(rank.table.gpu_ns[mask]) / NS_PER_MS for rank, mask in rows),
        launches=fmean(rank.per_step(mask) for rank, mask in rows),
        known_ms=fmean(ns / NS_PER_MS for ns in known_ns) if seconds else None,
        tflops=None if copies else reached,
        gb_s=reached if copies else None,
        attainable_pct=_attainable(name, reached, known, card, seconds),
    )


def _rate(known: Sequence[tuple[LineTable, Mask]], copies: bool, seconds: float) -> float | None:
    """TFLOP/s, or GB/s of copies; None where nothing is known."""
    if not seconds:
        return None
    if copies:
        return sum(float(table.bytes[mask].sum()) for table, mask in known) / seconds / 1e9
    return sum(float(table.flops[mask].sum()) for table, mask in known) / seconds / 1e12


def _attainable(
    name: str,
    reached: float | None,
    known: Sequence[tuple[LineTable, Mask]],
    card: Card | None,
    seconds: float,
) -> float | None:
    """The share of the time that the work takes at the peak rate. None if the peak is not known."""
    if card is None or reached is None:
        return None
    if name in _COPIES:
        return 100.0 * reached / card.link_gb_s if name in _OVER_LINK else None
    ideal = 0.0
    for table, mask in known:
        plain = among(table.kind, (ComputeKind.PLAIN_MATMUL, ComputeKind.OTHER_MATMUL))
        for item in np.unique(table.item_bytes[mask]).tolist():
            for on_tensor_cores in (True, False):
                rows = mask & (table.item_bytes == item) & (plain != on_tensor_cores)
                peak = peak_tflops(card, item, tensor=on_tensor_cores)
                if rows.any() and peak is None:
                    return None
                ideal += float(table.flops[rows].sum()) / 1e12 / (peak or 1.0)
    return 100.0 * ideal / seconds


def peak_tflops(card: Card, item_bytes: int, *, tensor: bool) -> float | None:
    """Dense peak for numbers of so many bytes. None if the table does not tell.

    Tensor cores compute with fp32 numbers as TF32 at half of the rate of bf16.
    """
    if not tensor:
        return card.fp32_tflops if item_bytes == 4 else None
    return {2: card.tensor_tflops, 4: card.tensor_tflops / 2}.get(item_bytes)


def _model_tflop(ranks: Sequence[_Launches]) -> tuple[float | None, str | None]:
    """Operations of the model per step and rank, and why they are not known."""
    products, counted, work = 0.0, 0.0, []
    for rank in ranks:
        table = rank.table
        once = ~_has(table, Tag.RECOMPUTE) & rank.launched
        mask = once & among(table.kind, PRODUCTS)
        known = once & (table.flops != ABSENT)
        products += float(table.gpu_ns[mask].sum())
        counted += float(table.gpu_ns[mask & known].sum())
        work.append(rank.per_step(table.flops[known]) / 1e12)
    if products == 0:
        return None, "no matrix product was recorded"
    if counted == 0:
        return None, "the traces contain no shapes (profiling.record_shapes=true records them)"
    if 100.0 * counted < COUNTED_PCT * products:
        share = 100.0 * counted / products
        return None, f"FLOPs are known for only {share:.0f} % of the time in matrix products"
    return fmean(work), None
