"""Shows what the GPUs computed: time by kind, reached rates and model FLOP utilisation."""

from __future__ import annotations

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.compute import ComputeUse, KindUse
from aorta.report.blocks import Block, Paragraph
from aorta.report.tables import Table
from aorta.report.text import number


def compute_blocks(analysis: Analysis) -> list[Block]:
    """A table of kinds and two sentences; nothing where no traces tell."""
    found = analysis.compute_use
    if found is None or not found.kinds:
        return []
    return [_table(found), Paragraph(_peaks(found)), Paragraph(_utilisation(found))]


def _table(found: ComputeUse) -> Table:
    columns = ("kind of work", ">ms per step", ">launches", ">reached", ">of the peak")
    rows = tuple(
        (use.kind, number(use.ms), number(use.launches), _reached(use), _percent(use.attainable_pct))
        for use in found.kinds
    )
    return Table(columns, rows)


def _reached(use: KindUse) -> str:
    if use.tflops is not None:
        return f"{number(use.tflops)} TFLOP/s"
    return number(None) if use.gb_s is None else f"{number(use.gb_s)} GB/s"


def _percent(value: float | None) -> str:
    return number(value) if value is None else f"{number(value)} %"


def _peaks(found: ComputeUse) -> str:
    if found.peak_tflops is None:
        return f"Peaks of {found.gpu or 'this GPU'} are not known, so rates are not compared with peaks."
    return (
        f"Peaks of {found.gpu}, dense: {number(found.peak_tflops)} TFLOP/s in bf16 on tensor cores, memory "
        f"{number(found.memory_gb_s)} GB/s, link to the host {number(found.link_gb_s)} GB/s (source: "
        f"{found.source}). Rates cover only work with recorded shapes or bytes."
    )


def _utilisation(found: ComputeUse) -> str:
    if found.mfu_pct is None:
        return f"Model FLOP utilisation is not known: {found.reason}."
    return (
        f"Model FLOP utilisation: {_percent(found.mfu_pct)} of the dense peak in bf16. The model needs "
        f"{number(found.model_tflop)} TFLOP per step and rank, according to the recorded shapes and without "
        "recomputation."
    )
