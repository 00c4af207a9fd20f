"""The command that torchrun runs on a node, and the environment of the ranks. Pure."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

import aorta
from aorta.artefacts import names
from aorta.artefacts.launchers import called_by_script, launcher
from aorta.artefacts.own_program import AORTAS, OwnProgram
from aorta.artefacts.records import Manifest, NodeInfo, Session
from aorta.config.schema import CaptureConfig
from aorta.errors import PlanError
from aorta.runner.options import NodeOptions

HOOKS = Path(aorta.__file__).parent / "inject" / "site"
"""The folder whose `sitecustomize` puts step records into a program."""


def rank_command(
    user: Sequence[str],
    config: Path,
    which: Callable[[str], str | None] = shutil.which,
    *,
    own: OwnProgram = AORTAS,
) -> list[str]:
    """The program of one rank: the user's, or the trainer with the run's configuration.

    `script.py ...` and `-m package ...` run under the interpreter that was chosen, or that of the agent; any
    other first word is a program.

    Raises:
        PlanError: the program is not there, or is a launcher itself.
    """
    if not user:
        return [own.python or sys.executable, "-u", "-m", "aorta.workloads.trainer", "--config", str(config)]
    words = list(user)
    if own.launcher == "aorta":
        script = called_by_script(words, Path.cwd())
        found = launcher(words) or (script[1] if script is not None else None)
        if found is not None:
            raise PlanError(
                f"the command starts {found}, but the agent already starts one process per rank",
                "give only the script and its arguments; --procs-per-node sets the number of ranks per node",
            )
    if words[0] == "-m" or words[0].endswith(".py"):
        if words[0] != "-m" and not Path(words[0]).is_file():
            raise PlanError(
                f"the program {words[0]} does not exist in {Path.cwd()}", "name an existing script"
            )
        return [own.python or sys.executable, "-u", *words]
    if which(words[0]) is None:
        raise PlanError(
            f"the program {words[0]} is not in PATH", "name an existing program or a Python script"
        )
    return words


def workload_name(user: Sequence[str], workload: str) -> str:
    """A name for files: the configured workload, or the stem of the user's program."""
    if not user:
        return workload
    script = next((word for word in user if word.endswith(".py")), None)
    if script is None:
        script = user[1] if user[0] == "-m" and len(user) > 1 else user[0]
    stem = Path(script).name.removesuffix(".py")
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in stem) or "program"


def torchrun_argv(
    command: Sequence[str],
    session: Session,
    own: NodeInfo,
    *,
    nodes: int,
    logs: Path,
    timeout_s: float,
    python: str | None = None,
) -> list[str]:
    """torchrun with static ranks: node and rank numbers are those that the run recorded.

    Args:
        command: complete program of one rank, the profiler's prefix included.
        session: node 0's word to start.
        own: this node's record.
        nodes: of the run.
        logs: folder that gets each rank's output, which is shown too.
        timeout_s: how long torchrun waits for the other nodes'.
        python: the interpreter that has torch. None means that of the agent.
    """
    # Without the two dashes torchrun would look at the program's options too, and refuse one that begins
    # several of its own, such as --log or --n.
    return [
        *(python or sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(nodes), "--nproc-per-node", str(own.processes), "--node-rank", str(own.node_index)),
        *("--master-addr", str(session.master_address), "--master-port", str(session.master_port)),
        *("--rdzv-id", session.token, "--rdzv-conf", f"timeout={math.ceil(timeout_s)}"),
        *("--max-restarts", "0", "--log-dir", str(logs), "--tee", "3"),
        *("--no-python", "--", *command),
    ]


def launcher_environment(session: Session, own: NodeInfo, *, nodes: int) -> dict[str, str]:
    """Return what a program needs to know that starts the ranks of its node itself.

    torchrun takes the variables that begin with `PET_` for options that are not given.
    """
    address, port = str(session.master_address), str(session.master_port)
    shared = {"MASTER_ADDR": address, "MASTER_PORT": port}
    counts = {"NNODES": str(nodes), "NODE_RANK": str(own.node_index), "NPROC_PER_NODE": str(own.processes)}
    options = {f"PET_{name}": value for name, value in (shared | counts).items()}
    return {**shared, **counts, **options}


def ranks_on_machine(own: NodeInfo, manifest: Manifest, environ: Mapping[str, str]) -> int:
    """Ranks that share this node's CPUs.

    AORTA_SHARED_NODES says how many nodes are processes of one machine; without it, nodes of the same
    machine count where each may use all of the machine's CPUs.
    """
    shared = environ.get(names.SHARED_NODES, "")
    if shared.isdigit() and int(shared) > 0:
        return int(shared) * own.processes
    if own.machine is None or own.cpus_usable < (os.cpu_count() or 1):
        return own.processes
    return sum(node.processes for node in manifest.nodes if node.machine == own.machine)


def rank_environment(
    environ: Mapping[str, str],
    options: NodeOptions,
    own: NodeInfo,
    manifest: Manifest,
    *,
    interface: str | None,
    capture: CaptureConfig,
) -> dict[str, str]:
    """The environment of torchrun and of its ranks; what the user has set stays.

    Args:
        environ: the agent's own environment.
        options: of the agent.
        own: this node's record.
        manifest: of the run.
        interface: network interface that leads to node 0; gloo would otherwise look its address up by host
            name, which on many systems is a loopback address. None on one node.
        capture: the configuration's block, which a recorder in the ranks follows.
    """
    threads = max(1, own.cpus_usable // ranks_on_machine(own, manifest, environ))
    defaults = {
        "OMP_NUM_THREADS": str(threads),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}] ",
    }
    if interface is not None:
        defaults["GLOO_SOCKET_IFNAME"] = interface
    fixed = {
        "PYTHONUNBUFFERED": "1",
        names.RUN_DIR: str(options.run_dir.root.resolve()),
        names.JOB_ID: options.job_id,
        names.RUN_ID: manifest.run_id,
        names.ATTEMPT: str(options.attempt),
        names.SCENARIO: options.scenario.name,
        names.NODE_INDEX: str(options.node_index),
        names.PROFILER: own.profiler.resolved,
        names.CAPTURE: msgspec.json.encode(capture).decode(),
    }
    if options.command and options.own.steps is not None:
        fixed[names.STEPS] = str(options.own.steps)
    if options.command and options.own.instrument == "auto":
        fixed[names.INSTRUMENT] = "auto"
        # An empty entry would be the current folder.
        fixed["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HOOKS), environ.get("PYTHONPATH"))))
    return {**defaults, **environ, **fixed}
