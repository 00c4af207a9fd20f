"""A tiny job of ranks and groups that hangs on purpose, and the flight recorders that it leaves.

Each rank has a host that enqueues calls in order, and a GPU that runs them in order. A collective ends once
the GPU of every member has come to it and all made the same call. A send ends with its receive.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field

START_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000_000
FILE, LINE = "/home/user/train.py", 10


@dataclass
class Op:
    """One call of one rank; a batch holds sends and receives that end together."""

    group: str
    name: str
    size: int = 8
    dtype: str = "Float"
    peer: int | None = None
    batch: int | None = None
    number: int = 0
    created: int = 0
    done: bool = False
    started: bool = False
    stuck: bool = False

    @property
    def p2p(self):
        return self.peer is not None


@dataclass
class Rank:
    """One rank's program, and how far its host and GPU are."""

    rank: int
    program: list
    made: list = field(default_factory=list)
    stops_at: int | None = None
    """The host stops before this call."""
    ahead: int = 3
    """Calls that the host may be ahead of the GPU."""

    def head(self):
        return next((op for op in self.made if not op.done), None)


def _frames(record):
    c10d = "/x/torch/distributed/distributed_c10d.py"
    return [
        {"name": "all_reduce", "filename": c10d, "line": 3},
        {"name": "step", "filename": FILE, "line": LINE + record % 5},
        {"name": "<module>", "filename": FILE, "line": 99},
    ]


class Job:
    """All ranks, run until nothing moves."""

    def __init__(self, world, groups, programs):
        self.groups = {"0": ("default_pg", list(range(world)))} | groups
        self.ranks = [Rank(rank, [Op(**op) for op in programs[rank]]) for rank in range(world)]
        self.clock = START_NS
        self._stuck_in = None

    def run(self):
        while self._enqueue() | self._progress():
            pass
        return self

    def run_until_stuck(self, stuck):
        """Run, and let one GPU stop in `stuck` after the other members have ended it."""
        self._stuck_in = stuck
        return self.run()

    def _enqueue(self):
        moved = False
        for rank in self.ranks:
            place = len(rank.made)
            open_calls = sum(not op.done for op in rank.made)
            whole_batch = place and rank.made[-1].batch is not None and place < len(rank.program)
            whole_batch = whole_batch and rank.program[place].batch == rank.made[-1].batch
            if place == len(rank.program) or rank.stops_at == place:
                continue
            if open_calls >= rank.ahead and not whole_batch:
                continue
            op = rank.program[place]
            before = [other for other in rank.made if other.group == op.group and other.p2p == op.p2p]
            if op.batch is not None and before and before[-1].batch == op.batch:
                op.number = before[-1].number
            else:
                op.number = 1 + max((other.number for other in before), default=0)
            self.clock += STEP_NS
            op.created = self.clock
            rank.made.append(op)
            moved = True
        return moved

    def _heads(self, rank):
        """The call, or the calls of the batch, that the GPU has come to."""
        head = rank.head()
        if head is None:
            return []
        if head.batch is None:
            return [head]
        return [op for op in rank.made if op.batch == head.batch and not op.done]

    def _progress(self):
        moved = False
        for rank in self.ranks:
            for op in self._heads(rank):
                if not op.started and not op.stuck:
                    op.started = moved = True
        for rank in self.ranks:
            heads = self._heads(rank)
            if heads and self._stuck_in not in heads and all(self._ends(rank, op) for op in heads):
                for op in heads:
                    for other in self._partners(rank, op):
                        if other is not self._stuck_in:
                            other.done = True
                    moved = True
        return moved

    def _partners(self, rank, op):
        if not op.p2p:
            members = self.groups[op.group][1]
            found = [
                other
                for member in members
                for other in self.ranks[member].made
                if (other.group, other.number, other.p2p) == (op.group, op.number, False)
            ]
            return found if len(found) == len(members) else []
        members = self.groups[op.group][1]
        self_place, peer_rank = members.index(rank.rank), self.ranks[members[op.peer]]
        answer = "recv" if op.name == "send" else "send"
        mine = [
            o for o in rank.made if o.p2p and o.group == op.group and o.peer == op.peer and o.name == op.name
        ]
        theirs = [
            o
            for o in peer_rank.made
            if o.p2p and o.group == op.group and o.peer == self_place and o.name == answer
        ]
        place = next(number for number, other in enumerate(mine) if other is op)
        return [op, theirs[place]] if place < len(theirs) else []

    def _ends(self, rank, op):
        partners = self._partners(rank, op)
        same = op.p2p or len({(o.name, o.size, o.dtype) for o in partners}) == 1
        ready = all(o.started and (not o.stuck or o is not op) for o in partners)
        return bool(partners) and same and ready and not op.stuck

    def dumps(
        self, *, form="pickle", timing=False, buffer=2000, status=True, backend="nccl", config=True, lost=()
    ):
        """The content of each rank's dump, by rank."""
        return {
            rank.rank: self._dump(rank, form, timing, buffer, status, backend, config)
            for rank in self.ranks
            if rank.rank not in lost
        }

    def _dump(self, rank, form, timing, buffer, status, backend, config):
        own = {name: group for name, group in self.groups.items() if rank.rank in group[1]}
        uids = {name: number for number, name in enumerate(own)}
        ops = self._with_ends(rank)
        entries = [
            self._entry(rank, ops[: record + 1], uids, form=form, timing=timing, gloo=backend == "gloo")
            for record in range(len(ops))
        ]
        found = {"version": "2.10", "entries": entries[-buffer:]}
        known = {"": {"name": "", "desc": "", "ranks": "[]"}}
        if config:
            known = {
                name: {"name": name, "desc": desc, "ranks": str(members)}
                for name, (desc, members) in own.items()
            }
        found["pg_config"] = known
        if status:
            number = str if form == "json" else int
            found["pg_status"] = {
                str(uids[name]): {
                    "last_enqueued_collective": number(self._last(rank, name, done=False)),
                    "last_started_collective": number(-1),
                    "last_completed_collective": number(self._last(rank, name, done=True)),
                }
                for name in own
            }
        return json.dumps(dict(sorted(found.items()))).encode() if form == "json" else pickle.dumps(found, 2)

    def _entry(self, rank, ops, uids, *, form, timing, gloo):
        """The entry of the last of these calls."""
        op, record, none = ops[-1], len(ops) - 1, 0 if form == "json" else None
        made = max((o.number for o in ops if o.group == op.group and not o.p2p), default=0)
        hidden = op.batch is not None and op.name != "coalesced"
        started = op.done or (timing and op.started)
        done = op.done and not hidden and not gloo
        state = "started" if started and not hidden and not gloo else "scheduled"
        desc, members = self.groups[op.group]
        arrow = {"send": "->", "recv": "<-"}.get(op.name, "")
        ends = f" {members.index(rank.rank)}{arrow}{op.peer}" if arrow else ""
        bare = op.name in ("barrier", "coalesced")
        return {
            "record_id": record,
            "pg_id": uids[op.group],
            "process_group": (op.group, desc),
            "collective_seq_id": made,
            "p2p_seq_id": op.number if op.p2p else 0,
            "op_id": made if gloo else record + 1,
            "profiling_name": f"{'gloo' if gloo else 'nccl'}:{op.name}{ends}",
            "time_created_ns": op.created,
            "input_sizes": [] if bare else [[op.size, 2]],
            "input_dtypes": [] if bare else [op.dtype],
            "output_sizes": [[op.size, 2]],
            "output_dtypes": [op.dtype],
            "state": "completed" if done else state,
            "time_discovered_started_ns": op.created + 1 if timing and started and not hidden else none,
            "time_discovered_completed_ns": op.created + 2 if done else none,
            "retired": op.done and not hidden,
            "timeout_ms": 600000,
            "is_p2p": op.p2p,
            "frames": _frames(record),
        }

    def _with_ends(self, rank):
        """The calls, with the entry that ends each batch."""
        found = []
        for place, op in enumerate(rank.made):
            found.append(op)
            following = rank.made[place + 1] if place + 1 < len(rank.made) else None
            if op.batch is not None and (following is None or following.batch != op.batch):
                last = following is not None or all(o.batch != op.batch for o in rank.program[place + 1 :])
                if last:
                    found.append(
                        Op(
                            op.group,
                            "coalesced",
                            peer=-1,
                            batch=op.batch,
                            number=op.number,
                            created=op.created,
                            done=op.done,
                            started=op.started,
                        )
                    )
        return found

    def _last(self, rank, group, *, done):
        return max((op.number for op in rank.made if op.group == group and (op.done or not done)), default=-1)
