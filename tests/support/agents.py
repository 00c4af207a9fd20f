"""Node agents as processes of a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.records import RunStatus
from tests.runner.test_processes import until

TOY = Path(__file__).parents[1] / "runner" / "toy.py"
LONG = 100_000
LIMIT_S = 120


class Job:
    """Agents of one run, ended with the test."""

    def __init__(self, folder, scenario="cpu_2node", **environ):
        self.folder, self.scenario, self.agents = folder, scenario, []
        self.environ = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "AORTA_"))
            },
            "AORTA_GATHER_TIMEOUT_S": "60",
            "AORTA_KILL_GRACE_S": "10",
            "AORTA_PEER_GRACE_S": "1",
            **environ,
        }

    def start(self, node_index, nodes, *extra, steps=5, behaviour="", options=()):
        argv = [sys.executable, "-m", "aorta", "run-node", "--scenario", self.scenario, "--executor", "local"]
        argv += ["--results", str(self.folder / "results"), "--job-id", "j", "--nodes", str(nodes)]
        argv += ["--node-index", str(node_index), *options]
        return self._launch([*argv, *self._program(steps, behaviour), *extra])

    def start_in_slurm(self, attempt, steps=5):
        """One node whose place comes from Slurm's variables alone."""
        self.environ |= {
            "SLURM_JOB_ID": "j",
            "SLURM_NODEID": "0",
            "SLURM_STEP_NUM_NODES": "1",
            "SLURM_STEP_NUM_TASKS": "1",
            "SLURM_RESTART_COUNT": str(attempt),
            "SLURMD_NODENAME": "n0",
        }
        argv = [sys.executable, "-m", "aorta", "run-node", "--scenario", self.scenario]
        return self._launch([*argv, "--results", str(self.folder / "results"), *self._program(steps, "")])

    def _program(self, steps, behaviour):
        return ["--", str(TOY), str(self.folder), str(steps), *([behaviour] if behaviour else [])]

    def _launch(self, argv):
        log = (self.folder / f"agent{len(self.agents)}.out").open("wb")
        with log:
            agent = subprocess.Popen(argv, env=self.environ, stdout=log, stderr=subprocess.STDOUT)
        self.agents.append(agent)
        return agent

    def running(self, ranks):
        """Wait until so many ranks are in their loop; their process ids."""
        files = [self.folder / f"pid{rank}" for rank in range(ranks)]
        until(
            lambda: (
                all(path.exists() for path in files) or any(agent.poll() is not None for agent in self.agents)
            )
        )
        assert all(path.exists() for path in files), self.output(0)
        return [int(path.read_text()) for path in files]

    def wait(self):
        return [agent.wait(LIMIT_S) for agent in self.agents]

    def output(self, index):
        return (self.folder / f"agent{index}.out").read_text()

    @property
    def run(self):
        return RunDir.of(self.folder / "results", Scenario(self.scenario), "j")

    @property
    def status(self):
        return read_json(self.run.status, RunStatus)
