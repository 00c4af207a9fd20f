"""Brings the nodes of a run together: node 0 prepares and publishes, the others wait for its word."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from aorta.artefacts.files import is_file, read_regular
from aorta.artefacts.io import read_json, write_exact, write_json
from aorta.artefacts.layout import RunDir, flat_alias
from aorta.artefacts.masking import here
from aorta.artefacts.records import Manifest, NodeInfo, NodeStatus, Session
from aorta.errors import ArtefactError, RunError
from aorta.runner import network
from aorta.runner.options import NodeOptions

POLL_S = 0.2
_KEPT = ("attempt_",)

T = TypeVar("T")


class InterruptedWait(Exception):  # noqa: N818
    """A signal arrived while the nodes were still waiting for each other."""


def wait_for(
    find: Callable[[], T | None], timeout_s: float, late: Callable[[], str], interrupted: Callable[[], bool]
) -> T:
    """Poll `find` until it gives something.

    Raises:
        RunError: after `timeout_s`, with what `late` says.
        InterruptedWait: `interrupted` became true.
    """
    deadline = time.monotonic() + timeout_s
    while (found := find()) is None:
        if interrupted():
            raise InterruptedWait
        if time.monotonic() >= deadline:
            raise RunError(late(), "see the job's output; AORTA_GATHER_TIMEOUT_S allows slow nodes more time")
        time.sleep(POLL_S)
    return found


def earlier_attempt(run: RunDir) -> int | None:
    """The number of the attempt whose artefacts lie in `run`; None where there are none."""
    with contextlib.suppress(ArtefactError):
        return read_json(run.manifest, Manifest).attempt
    with contextlib.suppress(ArtefactError):
        return read_json(run.session, Session).attempt
    for _, node in run.nodes():
        with contextlib.suppress(ArtefactError):
            return read_json(node.status, NodeStatus).attempt
    return None


def refuse_repeat(options: NodeOptions) -> None:
    """Refuse to run a node twice in one attempt: the second run would mix with the first.

    Raises:
        RunError: this node has already written its marker for this attempt.
    """
    status = options.run_dir.node(options.node_index).status
    try:
        seen = read_json(status, NodeStatus)
    except ArtefactError:
        return
    if seen.attempt == options.attempt:
        raise RunError(
            f"{options.run_dir.root} already contains attempt {options.attempt} of job {options.job_id} "
            f"(node {options.node_index} is {seen.state})",
            "submit a new job; a run is never overwritten",
        )


def prepare(options: NodeOptions) -> Session:
    """Node 0: make the run directory, move an earlier attempt aside, and tell the other nodes to report.

    Raises:
        RunError: the directory cannot be written, or holds this very attempt already.
    """
    run = options.run_dir
    refuse_repeat(options)
    try:
        run.root.mkdir(parents=True, exist_ok=True)
        _rotate(run, options)
        if options.script is not None and is_file(options.script):
            script = read_regular(options.script).decode("utf-8", "surrogateescape")
            write_exact(run.script, here().text(script), private=True)
        if options.scenario.family:
            _link(flat_alias(options.results, options.scenario, options.job_id), run.root)
        session = Session(attempt=options.attempt, token=uuid.uuid4().hex, stage="gather")
        write_json(run.session, session)
    except OSError as error:
        raise RunError(
            f"cannot prepare {run.root}: {error.strerror} ({error.filename})",
            "the results folder must be writable on the compute nodes",
        ) from error
    return session


def _rotate(run: RunDir, options: NodeOptions) -> None:
    number = earlier_attempt(run)
    if number is None:
        return
    if number >= options.attempt:
        raise RunError(
            f"{run.root} contains attempt {number}, but this is attempt {options.attempt}",
            "submit a new job; a run is never overwritten",
        )
    target = run.attempt(number)
    target.mkdir(exist_ok=True)  # exists if an earlier move was cut off
    for path in sorted(run.root.iterdir()):
        if path.name.startswith(_KEPT):
            continue
        if (target / path.name).exists():
            raise RunError(
                f"{target / path.name} exists already", "move it away; files of a run are never overwritten"
            )
        path.rename(target / path.name)


def _link(alias: Path, target: Path) -> None:
    """Point `alias` at `target` by a relative link; something else of that name is left alone."""
    if not alias.exists() and not alias.is_symlink():
        alias.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            alias.symlink_to(os.path.relpath(target, alias.parent))


def read_session(run: RunDir, attempt: int) -> Session | None:
    """Node 0's word of this attempt; None while there is none, or only that of an earlier attempt."""
    # Listing the folder makes a network filesystem look again for a file that it remembers as absent.
    with contextlib.suppress(OSError):
        os.listdir(run.root)  # noqa: PTH208
    try:
        session = read_json(run.session, Session)
    except ArtefactError:
        return None
    return session if session.attempt == attempt else None


def join(options: NodeOptions, timeout_s: float, interrupted: Callable[[], bool]) -> Session:
    """Another node: wait until node 0 has prepared this attempt.

    Raises:
        RunError: node 0 did not, or this node has already run in this attempt.
        InterruptedWait: a signal came first.
    """
    refuse_repeat(options)
    run = options.run_dir
    return wait_for(
        lambda: read_session(run, options.attempt),
        timeout_s,
        lambda: f"node 0 did not prepare {run.root} within {timeout_s:g} s",
        interrupted,
    )


def await_start(options: NodeOptions, timeout_s: float, interrupted: Callable[[], bool]) -> Session:
    """Wait for node 0's decision.

    Raises:
        RunError: node 0 gave up (its reason is the message), or did not decide in time.
        InterruptedWait: a signal came first.
    """

    def decided() -> Session | None:
        session = read_session(options.run_dir, options.attempt)
        return session if session is not None and session.stage != "gather" else None

    session = wait_for(
        decided,
        timeout_s,
        lambda: f"node 0 did not start the run within {timeout_s:g} s",
        interrupted,
    )
    if session.stage == "abort":
        raise RunError(session.reason or "node 0 ended the run before it started")
    return session


def read_manifest(run: RunDir) -> Manifest:
    """The manifest that node 0 wrote before its word to start.

    Raises:
        RunError: it cannot be read.
    """
    try:
        return read_json(run.manifest, Manifest)
    except ArtefactError as error:
        raise RunError(
            f"node 0 started the run without a manifest: {error}", "check that all nodes share the folder"
        ) from error


def gather(
    options: NodeOptions, own: NodeInfo, timeout_s: float, interrupted: Callable[[], bool]
) -> list[NodeInfo]:
    """Node 0: the records of all nodes that report in time, by index; the rest is missing.

    Raises:
        InterruptedWait: a signal came first.
    """
    found = {own.node_index: own}

    def complete() -> bool | None:
        for index in range(options.nodes):
            if index not in found:
                node = options.run_dir.node(index)
                with contextlib.suppress(ArtefactError):
                    info = read_json(node.info, NodeInfo)
                    if info.attempt == options.attempt:
                        found[index] = info
        return True if len(found) == options.nodes else None

    with contextlib.suppress(RunError):
        wait_for(complete, timeout_s, lambda: "late", interrupted)
    return [found[index] for index in sorted(found)]


def objection(nodes: Sequence[NodeInfo], expected: int, timeout_s: float) -> str | None:
    """Why these nodes cannot start together; None where they can."""
    missing = missing_nodes(nodes, expected)
    if missing:
        names = ", ".join(f"node {index}" for index in missing)
        return f"{names} of {expected} did not report within {timeout_s:g} s"
    counts = {node.node_index: node.processes for node in nodes}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"node {index} ({nodes[index].host}) {count}" for index, count in counts.items())
        return f"nodes would start different numbers of ranks: {listed}; set --procs-per-node"
    resolved = sorted({node.profiler.resolved for node in nodes})
    if len(resolved) > 1:
        return f"nodes would run under different profilers: {', '.join(resolved)}; set --profiler"
    return None


def missing_nodes(nodes: Iterable[NodeInfo], expected: int) -> list[int]:
    """Indices of the nodes that did not report."""
    seen = {node.node_index for node in nodes}
    return [index for index in range(expected) if index not in seen]


def start_word(session: Session, nodes: Sequence[NodeInfo], ends_wall_ns: int | None = None) -> Session:
    """Node 0's word to start: its address as the others see it, a free port, each node's first rank, and when
    the job will be ended.
    """
    first, total = [], 0
    for node in nodes:
        first.append(total)
        total += node.processes
    return msgspec.structs.replace(
        session,
        stage="start",
        master_address=network.master_address(nodes),
        master_port=network.free_port(),
        first_rank=first,
        world_size=total,
        ends_wall_ns=ends_wall_ns,
    )


def abort_word(session: Session, reason: str) -> Session:
    """Node 0's word that nothing starts, with the reason."""
    return msgspec.structs.replace(session, stage="abort", reason=reason)
