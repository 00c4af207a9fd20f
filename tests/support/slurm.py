"""A stand-in for Slurm's programs: answers by argv[0], refuses the unknown, keeps what was asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aorta.launch.plan import LaunchPlan
from aorta.launch.tools import ToolAnswer

Reply = ToolAnswer | Callable[[Sequence[str]], ToolAnswer]

NODE_ROWS = "".join(
    f"NodeName=node{index} NodeAddr=127.0.0.1 NodeHostName=node{index}\n" for index in range(1, 5)
)

PLAN = LaunchPlan(
    scenario="2node",
    nodes=2,
    aorta=("/venv/bin/aorta",),
    project="/project",
    results="/shared/results",
    config="/shared/results/run_1/2node.yaml",
    output="/shared/results/profile_2node_%j.out",
    time_limit="00:30:00",
    time_limit_s=1800,
)
"""A plain job of two nodes."""


@dataclass
class FakeSlurm:
    """Called like `aorta.launch.tools.call`."""

    replies: dict[str, Reply]
    asked: list[list[str]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str]) -> ToolAnswer:
        self.asked.append(list(argv))
        reply = self.replies.get(argv[0])
        if reply is None:
            raise AssertionError(f"unexpected program: {argv}")
        return reply if isinstance(reply, ToolAnswer) else reply(argv)

    def programs(self) -> list[str]:
        return [argv[0] for argv in self.asked]


MISSING = ToolAnswer(None, err="not installed here")


def cluster(**changes: Reply) -> FakeSlurm:
    """Four nodes of this machine in partition `debug`, two others with four GPUs in `gpu`; account `lab`."""

    def scontrol(argv: Sequence[str]) -> ToolAnswer:
        if argv[1:3] == ["show", "hostnames"]:
            return MISSING
        if argv[1:3] == ["show", "node"]:
            return ToolAnswer(0, NODE_ROWS)
        if argv[1:3] == ["show", "job"]:
            return ToolAnswer(1, err="slurm_load_jobs error: Invalid job id specified")
        raise AssertionError(f"unexpected question: {argv}")

    ids = iter(range(101, 200))
    replies: dict[str, Reply] = {
        "sinfo": ToolAnswer(
            0, "debug*|up|1:00:00|4|(null)|node[1-4]\ngpu|up|infinite|64|gpu:a100:4(S:0-1)|g[1-2]\n"
        ),
        "sacctmgr": ToolAnswer(0, "Lab\n"),
        "scontrol": scontrol,
        "sbatch": lambda argv: ToolAnswer(0, f"{next(ids)}\n"),
        "squeue": ToolAnswer(0, ""),
        "sacct": ToolAnswer(0, ""),
        "scancel": ToolAnswer(0),
    }
    return FakeSlurm(replies | changes)
