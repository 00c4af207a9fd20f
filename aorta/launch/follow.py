"""Follow jobs until they have ended: squeue, else sacct, else scontrol, else the agents' own markers.

Each poll makes one squeue call for all jobs that are still going, and asks the next source only for those
which the one before does not know. A job without any information for `limit` polls is given up,
and said so: a wait never hangs on an answer that does not come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aorta.artefacts.agents import is_gone
from aorta.artefacts.layout import RunDir, runs
from aorta.artefacts.records import ProcessId, SubmittedJob
from aorta.launch import slurm
from aorta.launch.arrays import is_task
from aorta.launch.markers import read_markers
from aorta.launch.slurm import JobView, Views
from aorta.launch.states import STATES, JobState
from aorta.launch.tools import Caller
from aorta.units import NS_PER_S

UNANSWERED_LIMIT = 20
REMOVED_LIMIT = 3
"""Polls after which a task that left its array before it started is given up: Slurm keeps nothing of it."""
LOST = JobState("UNKNOWN", "ended")


@dataclass(frozen=True, slots=True)
class FollowedJob:
    """A job to follow."""

    job_id: str
    scenario: str | None
    nodes: int | None
    run: RunDir | None
    local: bool = False
    owner: ProcessId | None = None
    """The process that runs it on this machine."""
    submitted_s: float | None = None
    """Time when it was submitted, seconds since the epoch. None if not on record."""
    label: str | None = None
    """Name that tells the job from others of its scenario: the point of a sweep."""
    results: Path | None = None
    """The folders in which a job's run may appear, if there is none yet."""

    @classmethod
    def of(cls, record: SubmittedJob) -> FollowedJob:
        """The job of a line of `jobs.jsonl`."""
        return cls(
            record.job_id,
            record.scenario,
            record.nodes,
            RunDir(Path(record.run_dir)),
            local=record.executor == "local",
            owner=record.owner,
            submitted_s=record.submitted_wall_ns / NS_PER_S,
        )

    @classmethod
    def by_hand(cls, results: Path, job_id: str) -> FollowedJob:
        """A job that was submitted by hand, with its run below `results` where it has started."""
        for scenario, run in runs(results):
            if run.root.name == f"run_{job_id}":
                return cls(job_id, scenario.name, scenario.nodes, run)
        return cls(job_id, None, None, None, results=results)

    def found(self) -> FollowedJob:
        """The job with its run, where that could not be found before and has started since."""
        if self.run is not None or self.results is None:
            return self
        return replace(FollowedJob.by_hand(self.results, self.job_id), label=self.label)


@dataclass(slots=True)
class Follower:
    """State of some jobs, renewed by `poll`."""

    jobs: Sequence[FollowedJob]
    call: Caller
    limit: int = UNANSWERED_LIMIT
    views: Views = field(default_factory=dict)
    _unanswered: dict[str, int] = field(default_factory=dict)
    _heartbeats: dict[str, int] = field(default_factory=dict)

    @property
    def going(self) -> list[FollowedJob]:
        """Jobs that have not ended as far as we know."""
        return [job for job in self.jobs if self._view(job).state.phase != "ended"]

    @property
    def all_completed(self) -> bool:
        """Every job ended well."""
        return all(self._view(job).state.ok for job in self.jobs)

    def rows(self) -> list[tuple[FollowedJob, JobView]]:
        """Each job with the newest view of it."""
        return [(job, self._view(job)) for job in self.jobs]

    def ended_by_files(self) -> set[str]:
        """Ids of the jobs that run by the last answer, and have ended by the files of their agents."""
        return {
            job.job_id
            for job in self.going
            if job.run is not None
            and self._view(job).state.phase == "running"
            and read_markers(job.run, job.job_id, job.nodes).state.phase == "ended"
        }

    def poll(self) -> None:
        """Ask once about every job that is going."""
        asked = [job for job in self.going if not job.local]
        queued = slurm.squeue([job.job_id for job in asked], self.call) if asked else {}
        found: Views = dict(queued or {})
        for views in self._further(asked, found, queue_answered=queued is not None):
            found |= views
        for job in self.going:
            view = found.get(job.job_id)
            forgotten = queued is not None and not job.local
            if view is None or view.state.phase == "unknown":
                view = self._by_markers(job, forgotten=forgotten, fallback=view)
            self._keep(job, view, forgotten=forgotten)
        started = ("running", "ended")
        self.jobs = [job.found() if self._view(job).state.phase in started else job for job in self.jobs]

    def _further(self, asked: list[FollowedJob], found: Views, *, queue_answered: bool) -> Iterator[Views]:
        """Ask accounting, then the controller, for those in `asked` that are not in `found`."""
        missing = [job.job_id for job in asked if job.job_id not in found]
        if not missing:
            return
        since = {job.job_id: job.submitted_s for job in asked if job.submitted_s is not None}
        accounted = slurm.sacct(missing, self.call, since) or {}
        # The controller has forgotten these jobs, so a row that still runs is out of date.
        yield {
            job_id: view
            for job_id, view in accounted.items()
            if view.state.phase == "ended" or not queue_answered
        }
        still = [job_id for job_id in missing if job_id not in found]
        if still:
            yield slurm.scontrol(still, self.call)

    def _by_markers(self, job: FollowedJob, *, forgotten: bool, fallback: JobView | None) -> JobView | None:
        """The agents' word. Where the scheduler is silent, "running" counts while files still grow."""
        if job.run is None:
            return fallback
        markers = read_markers(job.run, job.job_id, job.nodes)
        if is_gone(job.owner) and not markers.running and markers.state.phase != "ended":
            # Its agents end within a second, and the one that was killed says nothing.
            why = markers.reason or f"the process that ran it ({job.owner.pid if job.owner else 0}) is gone"
            return JobView(job.job_id, STATES["FAILED"], why, None, markers.nodes, "", "markers")
        alive = markers.heartbeat_ns > self._heartbeats.get(job.job_id, 0)
        self._heartbeats[job.job_id] = markers.heartbeat_ns
        state = markers.state if alive and not forgotten else markers.worst
        if state.phase != "ended" and (forgotten or not alive):
            return fallback
        hosts = ",".join(markers.hosts)
        return JobView(job.job_id, state, markers.reason, None, markers.nodes, hosts, "markers")

    def _keep(self, job: FollowedJob, view: JobView | None, *, forgotten: bool) -> None:
        if view is not None and view.state.phase != "unknown":
            self._unanswered[job.job_id] = 0
            self.views[job.job_id] = _explained(job, view)
            return
        why = "Slurm does not know it" if forgotten else "its state is not known"
        count = self._unanswered.get(job.job_id, 0) + 1
        self._unanswered[job.job_id] = count
        last = replace(self._view(job), reason=why)
        removed = forgotten and is_task(job.job_id) and last.state.phase in ("pending", "unknown")
        # A number that neither Slurm nor the results know is a mistyped one.
        mistyped = forgotten and job.run is None and job.scenario is None and not is_task(job.job_id)
        if mistyped and last.state.phase == "unknown":
            self.views[job.job_id] = replace(last, state=LOST, reason="no such job: Slurm does not know it")
            return
        if count >= (min(self.limit, REMOVED_LIMIT) if removed else self.limit):
            said = f"; last seen {last.state.name}" if last.state.phase != "unknown" else ""
            last = replace(last, state=LOST, reason=f"{why}, {count} times in a row{said}")
        self.views[job.job_id] = last

    def _view(self, job: FollowedJob) -> JobView:
        blank = JobView(job.job_id, JobState("UNKNOWN", "unknown"), nodes=job.nodes)
        return self.views.get(job.job_id, blank)


def _explained(job: FollowedJob, view: JobView) -> JobView:
    """The view of a job that ended badly, with what its agents say about it where Slurm only gives a code."""
    if view.state.phase != "ended" or view.state.ok or job.run is None or view.source == "markers":
        return view
    markers = read_markers(job.run, job.job_id, job.nodes)
    # First, since what the others say may follow from it: they lost a peer.
    silent = ", ".join(f"node{index}" for index in markers.running)
    told = (view.reason, f"{silent} has not reported how it ended" if silent else "", markers.reason)
    return replace(view, reason="; ".join(part for part in told if part))
