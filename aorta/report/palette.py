"""The parts of a step: key, name, field and colour, one row each. Every chart and table takes them from here.

Colours are those of Okabe and Ito, which stay apart for colour-blind readers.
"""

from __future__ import annotations

from typing import NamedTuple

from aorta.artefacts.page import Doing

COMPUTE, EXPOSED_COMM, EXPOSED_COPY = "#0072B2", "#D55E00", "#CC79A7"
DATA_WAIT, HOST, HIDDEN_COMM = "#E69F00", "#A6A6A6", "#56B4E9"
WAITING, OWN_HOST, UNCLASSIFIED, UNSEEN, OTHER = "#CBBFE0", "#CFCFCF", "#555555", "#2B2B2B", "#E4E4E4"
HOST_CPU, JOB_CPU, GPU = "#999999", "#0072B2", "#009E73"
INK, FAINT, STEADY = "#222222", "#767676", "#EAF3E6"


class PaletteEntry(NamedTuple):
    """One exclusive part of a step."""

    key: str
    name: str
    short: str
    """The name as the head of a column."""
    field: str
    """The field of `RankBreakdown` that holds it."""
    colour: str


PARTS = (
    PaletteEntry("compute", "compute", "compute", "compute_ms", COMPUTE),
    PaletteEntry("exposed_comm", "exposed communication", "exposed comm", "exposed_comm_ms", EXPOSED_COMM),
    PaletteEntry("exposed_copy", "exposed copy", "exposed copy", "exposed_copy_ms", EXPOSED_COPY),
    PaletteEntry("data_wait", "data wait", "data wait", "data_wait_ms", DATA_WAIT),
    PaletteEntry("host", "host work", "host work", "host_ms", HOST),
    PaletteEntry("unclassified", "unclassified GPU time", "unclassified", "unclassified_ms", UNCLASSIFIED),
    PaletteEntry("unseen", "unseen", "unseen", "unseen_ms", UNSEEN),
)
"""The parts that sum to a step, in the order in which they are stacked. A further part is a further row."""

EXPOSED = next(part.short for part in PARTS if part.key == "exposed_comm")
"""The column of waits and transfers: an effect of other ranks, so maps show it in grey."""

WAITS = {
    "data_loading": ("waiting for another rank's loader", "#F6CF8B"),
    "compute": ("waiting for another rank's compute", "#F0C9A8"),
    "host": ("waiting for another rank's host work", "#C9B8AC"),
    "communication": ("waiting that an earlier slow transfer causes", "#EBA07A"),
    "own_host": ("waiting, but its own host work is not done either", OWN_HOST),
}
"""Parts of exposed communication: waits for other ranks, by what the late rank did. The last row is the part
of the waits that would remain, because the waiting rank's own host work takes as long.
"""

LEAST_PCT = 0.5
"""Parts below this share of the step are shown together as `other`."""

_COLOURS = {part.key: part.colour for part in PARTS} | {"other": OTHER}


def part_colour(key: str) -> str:
    """The colour of a `StepPart`."""
    known = WAITS.get(key.removeprefix("wait_"))
    return _COLOURS.get(key) or (known[1] if known else WAITING)


DOING: dict[Doing, tuple[str, str]] = {
    "compute": ("compute", COMPUTE),
    "transfer": ("exposed transfer", EXPOSED_COMM),
    "wait": ("waiting for another rank (not split by cause here)", WAITING),
    "data_wait": ("data wait", DATA_WAIT),
    "host": ("host work", HOST),
    "hidden": ("overlapped communication", HIDDEN_COMM),
}
"""Names and colours of the things that a rank does in a timeline."""

CURVES: dict[str, tuple[str, str]] = {
    "gpu": ("GPU, driver counter", GPU),
    "job_cpu": ("CPU, this job (% of the cores it may use)", JOB_CPU),
    "cpu": ("CPU, whole node (% of all cores)", HOST_CPU),
}
"""Curves of the monitors: names and colours."""
