"""Host lines made of a few rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aorta.artefacts.events import ABSENT, build
from aorta.artefacts.hostline import Item, LineTable

Row = Mapping[str, int]
_MAY_BE_ABSENT = {"stream", "group", "order", "bytes", "flops", "item_bytes"}


def launch(work: int, gpu: int, **more: int) -> Row:
    """A launch after `work` ns of the host, of `gpu` ns on the GPU."""
    return {"item": int(Item.LAUNCH), "work_ns": work, "gpu_ns": gpu, "stream": 7, **more}


def line(steps: Sequence[Sequence[Row]], tail: int = 0) -> LineTable:
    """A line of these steps, which begin without work; the last one ends after `tail`."""
    rows: list[Row] = [
        {**row, "step": number}
        for number, step in enumerate(steps)
        for row in ({"item": int(Item.STEP)}, *step)
    ]
    rows.append({"item": int(Item.END), "work_ns": tail, "step": len(steps) - 1})
    columns = {
        name: [row.get(name, ABSENT if name in _MAY_BE_ABSENT else 0) for row in rows]
        for name in LineTable.__struct_fields__
    }
    return build(LineTable, len(rows), **columns)
