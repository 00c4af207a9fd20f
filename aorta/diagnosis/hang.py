"""A job that stood still: from stacks or from flight recorders to a verdict."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath

from msgspec import structs

from aorta.artefacts.analysis import Finding, Verdict
from aorta.artefacts.attached import NodeStandstill
from aorta.artefacts.flight import Recording
from aorta.artefacts.hang import Hang, HeldUp, SourceLine
from aorta.metrics.stacks import Frame, line_of
from aorta.metrics.standstill import Guilty, standstill
from aorta.metrics.still_stacks import StillRank, still_ranks
from aorta.units import rank_words

KIND = "hang"
_DOES = {
    "host_stuck": "{who} did not reach it",
    "loader_stuck": "{who} {wait} for the data loader",
    "gpu_stuck": "the GPU of {who} does not finish it, while other GPUs have",
    "other_collective": "{who} made another call",
    "other_size": "{who} made the call with another size",
    "other_dtype": "{who} made the call with another data type",
    "dead_peer": "{who} left no sign of life",
    "deadlock": "{who} wait for each other in a circle",
    "transfer_stuck": "all ranks made the call, and none of them finishes it; nothing shows which rank is "
    "stuck",
}
_ACTIONS = {
    "host_stuck": "check the line that the rank is executing: a lock, a file system, or a call that never "
    "returns",
    "loader_stuck": "set a timeout for the DataLoader, and find out what its workers wait for",
    "gpu_stuck": "look for Xid errors of that GPU (dmesg, nvidia-smi -q), and exclude its node",
    "other_collective": "make every rank call the same collectives in the same order",
    "other_dtype": "give every rank tensors of one data type: look for a cast that is missing on one rank",
    "other_size": "give every rank tensors of one shape, or use the form of the call that allows several",
    "dead_peer": "look at the output of that rank: the rank ended, or its node failed",
    "deadlock": "order sends and receives so that one side sends first, or use batch_isend_irecv",
    "transfer_stuck": "check the network (NCCL_DEBUG=INFO), and look for a GPU that another kernel keeps "
    "busy: with TORCH_NCCL_ENABLE_TIMING=1, flight recorders say which GPU did not start the call",
}


def hang_of_run(
    told: Sequence[NodeStandstill],
    recordings: Sequence[Recording] = (),
    *,
    nodes: int,
    state: str | None,
    last_steps: Mapping[int, int],
) -> Hang | None:
    """Returns why a run stood still until it ended; None if it did not, or went on and completed.

    Args:
        told: of each node whose ranks stood still.
        recordings: flight recorders of its ranks; they decide where every rank waits in a call.
        nodes: of the job.
        state: how the job ended.
        last_steps: by rank: the last step that it has recorded.
    """
    if not told or state == "completed":
        return None
    stacks = {
        item.rank: tuple(item.stacks[0].frames)
        for node in told
        for item in node.view.processes
        if item.role == "rank" and item.rank is not None and item.stacks
    }
    ranks = still_ranks(stacks)
    guilty = [item for _, item in sorted(ranks.items()) if item.kind != "waiting"]
    waiting = sorted(rank for rank, item in ranks.items() if item.kind == "waiting")
    calls = [item.call for item in ranks.values() if item.kind == "waiting" and item.call is not None]
    if not guilty and (not waiting or len(told) < nodes):
        return None  # ranks of another node may have worked
    held = [HeldUp(rank=item.rank, kind=item.kind, where=_place(item.line)) for item in guilty]
    source = "the stacks of the ranks while they stood still"
    recorded = hang_of_recordings(recordings) if not guilty or guilty[0].kind == "other_collective" else None
    if recorded is not None and recorded.ranks:
        held = [structs.replace(item, where=_line_of(ranks.get(item.rank))) for item in recorded.ranks]
        named = {item.rank for item in held}
        waiting = sorted(set(ranks) - named)
        calls = [item.call for rank, item in ranks.items() if rank in waiting and item.call is not None]
        source += ", and their flight recorders"
    return Hang(
        kind=held[0].kind if held else "transfer_stuck",
        collective=calls[0] if calls else None,
        waiting_ranks=waiting,
        where=held[0].where if held else _place(ranks[waiting[0]].line),
        ranks=held,
        after_step=min(last_steps.values(), default=None),
        source=source,
    )


def hang_of_recordings(recordings: Sequence[Recording], unread: Collection[int] = ()) -> Hang | None:
    """Returns why the ranks of flight recorders do not go on; None if every call that was made has ended.

    Args:
        recordings: one per rank.
        unread: ranks whose dump cannot be used.
    """
    found = standstill(recordings, unread)
    if found is None:
        return None
    held = [_held(item) for item in found.guilty]
    group = found.group
    return Hang(
        kind=found.kind,
        collective=found.call.operation,
        group=(group.about or group.name) if group is not None else None,
        waiting_ranks=sorted(found.waiting),
        where=held[0].where if held else None,
        ranks=held,
        source="flight recorders",
    )


def _held(item: Guilty) -> HeldUp:
    # The missing call's stack is that of a rank that made it: where this rank's host is, nothing says.
    own = item.call.where if item.call is not None and item.kind not in ("host_stuck", "dead_peer") else ()
    return HeldUp(
        rank=item.rank,
        kind=item.kind,
        collective=item.call.operation if item.call is not None else None,
        where=_place(line_of(tuple(reversed(own)))) if own else None,
    )


def _line_of(rank: StillRank | None) -> SourceLine | None:
    return _place(rank.line) if rank is not None else None


def _place(frame: Frame) -> SourceLine:
    function, file, line = frame
    return SourceLine(function=function, file=file, line=line)


def hang_verdict(hang: Hang, ending: str) -> Verdict:
    """Returns the verdict; `ending` says how the job ended, and may be empty."""
    ranks = [item.rank for item in hang.ranks]
    return Verdict(kind=KIND, statement=_statement(hang) + ending, ranks=ranks)


def hang_finding(hang: Hang, nodes: list[str]) -> Finding:
    """Returns the finding that belongs to the verdict."""
    return Finding(
        kind=KIND,
        severity="critical",
        cause=_cause(hang),
        ranks=[item.rank for item in hang.ranks],
        nodes=nodes,
        value=None,
        threshold=None,
        unit="",
        evidence={
            "waiting_ranks": hang.waiting_ranks,
            "collective": hang.collective,
            "after_step": hang.after_step,
            "source": hang.source,
        },
        estimated_speedup=None,
        actions=list(dict.fromkeys(_ACTIONS[item.kind] for item in hang.ranks)) or [_ACTIONS[hang.kind]],
    )


def _statement(hang: Hang) -> str:
    since = f" after step {hang.after_step}" if hang.after_step is not None else ""
    return f"The job stood still{since}: {_cause(hang)}."


def _cause(hang: Hang) -> str:
    kinds = dict.fromkeys(item.kind for item in hang.ranks) or {hang.kind: None}
    said = [_of_kind(hang, kind) for kind in kinds]
    waiting = rank_words(hang.waiting_ranks) if hang.waiting_ranks else ""
    call = hang.collective or "a collective"
    group = f" of {hang.group}" if hang.group else ""
    waits = (
        f"{waiting} {'wait' if len(hang.waiting_ranks) > 1 else 'waits'} in {call}{group}; "
        if waiting
        else ""
    )
    return waits + "; ".join(said)


def _of_kind(hang: Hang, kind: str) -> str:
    those = [item for item in hang.ranks if item.kind == kind]
    who = rank_words([item.rank for item in those]) if those else ""
    text = _DOES[kind].format(who=who, wait="wait" if len(those) > 1 else "waits")
    places = list(dict.fromkeys(_words(item.where) for item in those if item.where is not None))
    return text + (f" ({', '.join(places[:3])})" if places else "")


def _words(place: SourceLine) -> str:
    return f"{place.function}, {PurePath(place.file).name}:{place.line}"
