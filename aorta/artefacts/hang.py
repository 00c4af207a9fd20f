"""A job that stood still: who held it up, in what, and who waited."""

from __future__ import annotations

from msgspec import field

from aorta.artefacts.records import Record


class SourceLine(Record, frozen=True, kw_only=True):
    """A line of a program."""

    function: str
    file: str
    line: int


class HeldUp(Record, frozen=True, kw_only=True):
    """One rank that holds the others up."""

    rank: int
    kind: str
    """See `Hang.kind`."""
    collective: str | None = None
    """The call that it missed, did not end or made differently; null: not known."""
    where: SourceLine | None = None
    """Place where its host was; null: not known."""


class Hang(Record, frozen=True, kw_only=True):
    """Why no rank went on."""

    kind: str
    """`host_stuck`: a host did not make the call. `gpu_stuck`: a GPU does not end what other GPUs have ended.
    `other_collective`, `other_size`, `other_dtype`: a rank made another call. `dead_peer`: a rank left no
    sign. `deadlock`: ranks wait for each other in a circle. `loader_stuck`: a data loader does not deliver.
    `transfer_stuck`: all ranks made the call and none of them ends it.
    """
    collective: str | None
    """The call that the waiting ranks are in; null: not known."""
    group: str | None = None
    """The process group of that call, as the program calls it."""
    waiting_ranks: list[int]
    where: SourceLine | None
    """Place where the first guilty rank's host was; null: not known."""
    ranks: list[HeldUp] = field(default_factory=list)
    after_step: int | None = None
    """The last step that a rank has recorded; null: none, or not known."""
    source: str
    """Sources of the answer."""
