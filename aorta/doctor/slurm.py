"""Slurm: its programs, its controller, its partitions, its accounting, and what of it is this machine."""

from __future__ import annotations

import getpass
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from aorta.doctor.records import Check
from aorta.errors import PlanError, SchedulerError
from aorta.launch import checks, site
from aorta.launch.durations import show
from aorta.launch.site import Partition, Site
from aorta.launch.storage import probe as probe_storage
from aorta.launch.tools import Caller, call

CALL_S = 8.0
CLIENTS = ("sbatch", "squeue", "sinfo", "scontrol", "scancel")
"""Programs that submitting and waiting call; sacct is checked separately, as it may be missing."""

NAMES = ("slurm programs", "slurm controller", "partitions", "accounting", "results on the nodes")

_AWAY = ("down", "drain", "fail", "maint", "unknown", "power")
"""Beginnings of the states in which a node starts no job."""

bounded: Caller = partial(call, timeout_s=CALL_S)


def slurm(results: Path, run: Caller = bounded) -> list[Check]:
    """A check for each of `NAMES`; what cannot be asked without the one before it says so."""
    absent = [program for program in CLIENTS if shutil.which(program) is None]
    if absent:
        hint = "run aorta doctor where sbatch works; `aorta profile` and `make cluster-up` need no cluster"
        text = "no Slurm here" if len(absent) == len(CLIENTS) else f"not in PATH: {', '.join(absent)}"
        first = Check(NAMES[0], "missing", text, hint, {"missing": absent})
        return [first, *(Check(name, "missing", "no Slurm programs") for name in NAMES[1:])]
    version = run(["sinfo", "--version"])
    programs = Check(NAMES[0], "ok", version.out.strip() or "in PATH", value={"missing": []})
    try:
        partitions = site.ask_partitions(run)
    except SchedulerError as error:
        hint = "check SLURM_CONF, and run `scontrol ping` to see if slurmctld runs"
        silent = Check(NAMES[1], "missing", error.message, hint)
        return [
            programs,
            silent,
            *(Check(name, "missing", "the controller does not answer") for name in NAMES[2:]),
        ]
    known = Site(partitions, site.ask_accounts(getpass.getuser(), run), site.ask_nodes_here(run))
    controller = Check(NAMES[1], "ok", "answers", value={"nodes_here": sorted(known.nodes_here)})
    return [programs, controller, _partitions(known, run), _accounting(known, run), _visible(results, known)]


def _partitions(known: Site, run: Caller) -> Check:
    up = [part for part in known.partitions.values() if part.up and part.nodes]
    counts = _node_states(run)
    value = {
        "partitions": {
            part.name: {"nodes": len(part.nodes), "gpus": part.gpus, "limit_s": part.limit_s, "up": part.up}
            for part in known.partitions.values()
        },
        "node_states": counts,
    }
    if not up:
        return Check(
            NAMES[2],
            "missing",
            "no partition is up and has nodes",
            "ask the administrators of the cluster",
            value,
        )
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    text = "; ".join(map(_partition, up)) + (f". Nodes: {states}" if states else "")
    if known.default_partition is None:
        return Check(NAMES[2], "note", text, "give --partition: there is no default partition", value)
    if counts and all(state.startswith(_AWAY) for state in counts):
        hint = "run `sinfo -R` to see why no node accepts jobs now; jobs would wait"
        return Check(NAMES[2], "note", text, hint, value)
    return Check(NAMES[2], "ok", text, value=value)


def _partition(part: Partition) -> str:
    limit = f"up to {show(part.limit_s)}" if part.limit_s is not None else "no time limit"
    gpus = f", {part.gpus} GPUs each" if part.gpus else ", no GPUs"
    return f"{part.name}{' (default)' if part.default else ''}: {len(part.nodes)} nodes{gpus}, {limit}"


def _node_states(run: Caller) -> dict[str, int]:
    """Nodes by state; empty where sinfo does not say."""
    answer = run(["sinfo", "-h", "-N", "-o", "%N %T"])
    rows = [line.split() for line in answer.out.splitlines()] if answer.ok else []
    states = {row[0]: row[1].rstrip("*~#!%$@^-+") for row in rows if len(row) == 2}
    return {state: list(states.values()).count(state) for state in set(states.values())}


def _accounting(known: Site, run: Caller) -> Check:
    answer = run(["sacct", "-n", "-X", "-P", "-S", "now", "-o", "JobID"])
    accounts = sorted(known.accounts or ())
    value = {"works": answer.ok, "accounts": accounts}
    if not answer.ok:
        hint = "ignore this if you need no memory figures: runs work without accounting"
        return Check(NAMES[3], "note", f"not available: {answer.complaint}", hint, value)
    said = f"works; your accounts: {', '.join(accounts)}" if accounts else "works, but you have no account"
    return Check(NAMES[3], "ok", said, value=value)


def _visible(results: Path, known: Site) -> Check:
    """Checks that the nodes of the default partition (else all that are up) see the results folder."""
    default = known.default_partition
    chosen: Sequence[Partition] = [default] if default else [p for p in known.partitions.values() if p.up]
    storage = probe_storage(results)
    try:
        checks.shared(storage, chosen, known, assume_shared=False)
    except PlanError as error:
        return Check(NAMES[4], "missing", error.message, error.hint, {"visible": False})
    if storage.shared is None and not known.is_one_machine(None):
        text = f"{storage.fs_type or 'its file system'}: not known to be shared; treated as shared"
        return Check(NAMES[4], "note", text, "check that every node sees the folder", {"visible": None})
    why = "the nodes are this machine" if known.is_one_machine(None) else f"{storage.fs_type} is shared"
    return Check(NAMES[4], "ok", why, value={"visible": True})
