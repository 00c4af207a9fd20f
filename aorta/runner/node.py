"""The work of one node in a run, from the first file to the exit code."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from aorta.artefacts.clean import lines
from aorta.artefacts.files import absent
from aorta.artefacts.io import write_json, write_text
from aorta.artefacts.layout import NodeDir
from aorta.artefacts.masking import here, remember
from aorta.artefacts.records import FIRST_FAILURE, Manifest, RankExit, Session, State
from aorta.config.load import load_config, save_config
from aorta.errors import AortaError, RunError
from aorta.launch import profilers
from aorta.monitors.gpu import find_gpus
from aorta.runner import session as rendezvous
from aorta.runner.aftercare import Aftercare
from aorta.runner.captures import ResultsSpace, TempSpace
from aorta.runner.command import (
    launcher_environment,
    rank_command,
    rank_environment,
    torchrun_argv,
    workload_name,
)
from aorta.runner.contained import Inside, enter, visible_tool
from aorta.runner.describe import describe_node, with_version
from aorta.runner.exits import (
    collect_logs,
    describe_exit,
    hide_logs,
    mask_logs,
    rank_exits,
    ranks_finished,
    told_to_end,
)
from aorta.runner.marker import Marker
from aorta.runner.metadata import job_metadata
from aorta.runner.monitor import MonitorProcess
from aorta.runner.network import interface_towards
from aorta.runner.options import NodeOptions, TimeLimits
from aorta.runner.peers import Heartbeat, failed_peer, others_ended
from aorta.runner.prepared import Prepared, make_manifest
from aorta.runner.processes import Child, Interrupts, adopt_orphans, exit_status, kill_descendants
from aorta.runner.profiler import choose, wrapper
from aorta.runner.standstill import StandstillWatch, watch_for
from aorta.runner.supervise import RanksOutcome, SupervisionHooks, await_reason, supervise
from aorta.runner.timelimit import hit_time_limit, job_ends_wall_ns

_OTHERS_WAIT_LONGER_S = 15.0
"""Node 0 gives up first, so that the others hear its reason."""


def run_node(options: NodeOptions, environ: Mapping[str, str]) -> int:
    """Run this node's part of the job; the exit code is torchrun's, 128 + n after signal n.

    Raises:
        AortaError: nothing was started, or the run's files cannot be written; the reason is in the marker
            too, where it can be written.
    """
    limits = TimeLimits.of(environ)
    remember(options.command)
    adopt_orphans()
    with Interrupts() as interrupts:
        return NodeAgent(options, limits, interrupts, environ).run()


class NodeAgent:
    """The sequence of one node; each step is a method."""

    def __init__(
        self, options: NodeOptions, limits: TimeLimits, interrupts: Interrupts, environ: Mapping[str, str]
    ) -> None:
        self.options = options
        self.limits = limits
        self.interrupts = interrupts
        self.environ = dict(environ)
        self.marker = Marker(options)
        self.run_dir = options.run_dir
        self.dir: NodeDir = self.run_dir.node(options.node_index)
        self.session: Session | None = None
        self.started = False
        self.temp = TempSpace()
        self.space = ResultsSpace(self.run_dir.root)
        self._say_prefix = f"aorta node {options.node_index}"

    def say(self, text: str) -> None:
        """One line in the job's output."""
        with contextlib.suppress(OSError):
            print(lines(here().text(f"{self._say_prefix} ({socket.gethostname()}): {text}")), flush=True)

    def run(self) -> int:
        """All steps; whatever happens, the marker is written and no child is left."""
        try:
            return self._steps()
        except rendezvous.InterruptedWait:
            received = self.interrupts.received or signal.SIGTERM
            self._give_up("cancelled", f"{received.name} before the run started", received.name)
            return 128 + received
        except OSError as error:
            where = error.filename or self.run_dir.root
            reason = f"cannot write the run's files: {error.strerror or error} ({where})"
            self._give_up("failed", reason)
            raise RunError(reason, "free space, or choose another results folder") from error
        except AortaError as error:
            self._give_up("failed", error.message)
            raise
        except BaseException as error:
            self._give_up("failed", f"error in the node agent: {type(error).__name__}: {error}")
            raise
        finally:
            kill_descendants()

    def _give_up(self, state: State, reason: str, signal_name: str | None = None) -> None:
        """Leave the reason where people and the other nodes look for it, as far as files can still be
        written.
        """
        kill_descendants()
        self.marker.lost.append(reason)
        with contextlib.suppress(OSError):
            if self.options.node_index == 0 and self.session is not None and not self.started:
                write_json(self.run_dir.session, rendezvous.abort_word(self.session, f"node 0: {reason}"))
            if self._may_mark():
                self.marker.end(state, signal=signal_name)

    def _may_mark(self) -> bool:
        """A node that never joined must not touch what another attempt left, nor make up a run directory."""
        return self.session is not None or (
            self.run_dir.root.is_dir() and rendezvous.earlier_attempt(self.run_dir) is None
        )

    def _steps(self) -> int:
        first = self.options.node_index == 0
        patience = self.limits.gather_s + _OTHERS_WAIT_LONGER_S
        if first:
            self.session = rendezvous.prepare(self.options)
        else:
            self.session = rendezvous.join(self.options, patience, self._stop)
        self.marker.begin()
        prepared = self._prepare()
        write_json(self.dir.info, prepared.info)
        if first:
            manifest = self._lead(self.session, prepared)
        else:
            self.session = rendezvous.await_start(self.options, patience, self._stop)
            manifest = rendezvous.read_manifest(self.run_dir)
        self.started = True
        return self._execute(self.session, manifest, prepared)

    def _stop(self) -> bool:
        return self.interrupts.received is not None

    def _prepare(self) -> Prepared:
        """Configuration, GPUs, profiler and program of this node, all checked before anything starts."""
        options = self.options
        extra = []
        if options.profiler is not None:
            extra.append(f"capture.profiler={options.profiler}")
        if options.monitor_interval_s is not None:
            extra.append(f"monitor.interval_s={options.monitor_interval_s}")
        config = load_config(options.config, [*options.overrides, *extra])
        # Nodes that are processes of one machine were given disjoint GPUs by who started them.
        gpus = find_gpus(self.environ)
        choice = with_version(choose(config.capture.profiler, gpus, self.environ))
        # torch.profiler belongs to the trainer; a user's own program does not read our configuration.
        profilers.refuse_two_tracers(choice.resolved, config.profiling.enabled and not options.command)
        self.say(f"profiler: {choice.resolved} ({choice.reason})")
        choice, tools = visible_tool(choice) if config.container.image is not None else (choice, [])
        inside = enter(config, options, self.environ, gpus.vendor, tools)
        if inside is not None:
            self.say(
                "; ".join((f"container: {inside.record.image} by {inside.record.runtime}", *inside.notes))
            )
        stem = profilers.report_stem(workload_name(options.command, config.workload), options.scenario.nodes)
        around = wrapper(
            choice,
            config.capture,
            gpus,
            environ=self.environ,
            output=(self._trace_folder(choice.resolved) or self.run_dir.root).resolve(),
            stem=stem,
            whole=bool(options.command) and options.own.instrument != "auto",
        )
        for note in around.notes:
            self.say(f"profiler: {note}")
        choice = msgspec.structs.replace(choice, notes=around.notes, ranged=around.ranged)
        info = describe_node(options, gpus, choice, self.environ)
        return Prepared(
            config=config,
            info=info if inside is None else msgspec.structs.replace(info, packages=inside.packages),
            command=self._rank_command(inside),
            stem=stem,
            wrapper=around,
            inside=inside,
        )

    def _rank_command(self, inside: Inside | None) -> list[str]:
        options, config = self.options, self.run_dir.config.resolve()
        if inside is None:
            return rank_command(options.command, config, own=options.own)
        # Only the container knows which programs it has.
        own = replace(options.own, python=inside.python)
        return rank_command(options.command, config, lambda name: name, own=own)

    def _trace_folder(self, resolved: str) -> Path | None:
        """Folder that the profiler writes to; nsys reports hold the environments of all processes."""
        return {"nsys": self.run_dir.nsys_reports, "rocprofv3": self.run_dir.rocprof}.get(resolved)

    def _lead(self, session: Session, prepared: Prepared) -> Manifest:
        """Node 0: collect the others, write what the run is, and publish where to meet.

        Raises:
            RunError: a node is missing, or the nodes do not fit together; the others hear of it.
        """
        save_config(prepared.config, self.run_dir.config)
        timeout_s = self.limits.gather_s
        nodes = rendezvous.gather(self.options, prepared.info, timeout_s, self._stop)
        manifest = make_manifest(self.options, self.environ, nodes, prepared)
        write_json(self.run_dir.manifest, manifest)
        write_text(self.run_dir.job_metadata, job_metadata(manifest, self.environ))
        reason = rendezvous.objection(nodes, self.options.nodes, timeout_s)
        if reason is not None:
            raise RunError(reason, "the manifest lists the nodes that reported")
        ends = job_ends_wall_ns(self.environ, time.time_ns())
        self.session = rendezvous.start_word(session, nodes, ends)
        write_json(self.run_dir.session, self.session)
        return manifest

    def _launch(
        self, session: Session, prepared: Prepared, environ: dict[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """The command that starts this node's ranks, and its environment.

        A program that starts its ranks itself is told what it needs.
        """
        nodes, inside = self.options.nodes, prepared.inside
        if self.options.own.launcher == "own":
            argv = prepared.command
            environ |= launcher_environment(session, prepared.info, nodes=nodes)
        else:
            argv = torchrun_argv(
                prepared.wrapper.around(prepared.command, None if inside is None else inside.python),
                session,
                prepared.info,
                nodes=nodes,
                logs=self.dir.logs.resolve(),
                timeout_s=prepared.config.distributed.timeout_s,
                python=self.options.own.python if inside is None else inside.python,
            )
        if inside is None:
            return argv, environ
        return inside.container.around(argv), inside.environment(environ)

    def _execute(self, session: Session, manifest: Manifest, prepared: Prepared) -> int:
        """Monitor, torchrun, and the record of how both ended."""
        info, nodes = prepared.info, self.options.nodes
        interface = interface_towards(str(session.master_address)) if nodes > 1 else None
        environ = rank_environment(
            self.environ, self.options, info, manifest, interface=interface, capture=prepared.config.capture
        )
        environ |= prepared.wrapper.environment
        folder = self._trace_folder(info.profiler.resolved)
        if folder is not None:
            folder.mkdir(exist_ok=True, parents=True)
            if folder == self.run_dir.nsys_reports and not prepared.config.capture.keep_environment:
                folder.chmod(0o700)
        if self.temp.warning is not None:
            self.say(self.temp.warning)
        argv, of_ranks = self._launch(session, prepared, environ)
        hide_logs(self.dir)
        monitor = MonitorProcess(self.options, self.dir, prepared, environ)
        try:
            ranks = f"{info.processes} of {manifest.world_size} ranks"
            self.say(f"torchrun: {ranks}, node 0 at {session.master_address}")
            child = Child(argv, env=of_ranks, log=self.dir.logs / "torchrun.log", echo=sys.stdout.buffer)
            standstill = watch_for(
                self.options, session, info, prepared.config, environ=environ, say=self.say
            )
            hooks = self._hooks(child, session, info.processes, monitor, standstill)
            outcome = supervise(child, self.interrupts, self.limits, hooks)
            standstill.close()
            self.marker.saving()
            child.drain()
        finally:
            kill_descendants(monitor.pids)
            monitor.stop()
        first_rank = session.first_rank[self.options.node_index]
        collect_logs(self.dir, session.token, first_rank, info.processes)
        mask_logs(self.dir)
        code = 0 if outcome.finished else outcome.code
        exits, root = rank_exits(list(child.lines), code, self.dir, first_rank, info.processes)
        if nodes > 1 or told_to_end(exits, root):
            outcome = await_reason(outcome, self.interrupts, hooks)
        self.marker.lost += monitor.lost(told=self.interrupts.received is not None)
        if self.space.finding is not None:
            self.marker.lost.append(self.space.finding)
        told = self._told_state(outcome, session) if outcome.interrupted is not None else None
        if folder is not None or prepared.config.profiling.enabled:
            after = Aftercare(self.options, self.limits, self.interrupts, hooks.tick, self.say)
            if folder is not None:
                self.marker.lost += after.check(folder, prepared.stem, exits, self.temp)
            if told in (None, "timeout"):
                profiler = info.profiler.resolved
                self.marker.lost += after.reduce(profiler, environ, session.ends_wall_ns)
            else:
                self.say(after.by_hand(info.profiler.resolved))
        return self._finish(outcome, told, exits, root)

    def _hooks(
        self,
        child: Child,
        session: Session,
        processes: int,
        monitor: MonitorProcess,
        standstill: StandstillWatch,
    ) -> SupervisionHooks:
        options, run = self.options, self.run_dir
        heartbeat = Heartbeat(options, self.limits.silence_s)

        def tick() -> None:
            heartbeat.beat()
            standstill.look()
            self.temp.look()
            if self.space.look():
                self.say(f"the disk of {run.root} is full: records and samples are lost until there is space")
            monitor.look()

        own = options.node_index
        return SupervisionHooks(
            peer_failed=lambda: failed_peer(run, options.attempt, own) or heartbeat.silent(),
            ranks_finished=lambda: ranks_finished(child, self.dir, session.token, processes),
            # Node 0's torchrun holds the store by which the others' ranks find each other.
            may_leave=lambda: own != 0 or others_ended(run, options.attempt, own),
            kill=lambda: kill_descendants(monitor.pids),
            tick=tick,
            folder_gone=lambda: absent(self.dir.info),
        )

    def _finish(
        self, outcome: RanksOutcome, told: State | None, ranks: list[RankExit], root: int | None
    ) -> int:
        """The last marker and the exit code."""
        lost = self.marker.lost
        code = 0 if outcome.finished else exit_status(outcome.code)
        state: State = "completed" if outcome.good else "failed"
        name: str | None = None
        if outcome.code != 0 and outcome.interrupted is not None and told is not None:
            name, code = outcome.interrupted.name, 128 + outcome.interrupted
            state = told
        elif not outcome.good:
            failures = [item for item in ranks if item.rank == root]
            lost += [f"{FIRST_FAILURE}{describe_exit(item)}" for item in failures]
            if outcome.peer is not None:
                # Ranks fail here because a node was told to end there: that is no failure of this one.
                state = outcome.peer.state
                lost.append(str(outcome.peer))
        elif outcome.peer is not None:
            self.say(f"all ranks on this node had finished; {outcome.peer}")
        if outcome.killed:
            lost.append(f"ranks did not end within {self.limits.grace_s:g} s and were killed")
        if absent(self.dir.info):
            raise RunError(f"{self.run_dir.root} disappeared while the job ran", "keep the results folder")
        self.marker.end(state, exit_code=code, signal=name, ranks=ranks)
        self.say(f"{state}, exit code {code}" + "".join(f"\n  lost: {words}" for words in lost))
        return code

    def _told_state(self, outcome: RanksOutcome, session: Session) -> State:
        """The state that the signal to this agent meant: node 0 knows best, where it has said so."""
        peer, index = outcome.peer, self.options.node_index
        if peer is not None and peer.node_index == 0 and peer.state in ("cancelled", "timeout"):
            return peer.state
        ends, now = session.ends_wall_ns, time.time_ns()
        return "timeout" if hit_time_limit(self.environ, index, self.limits, ends, now) else "cancelled"
