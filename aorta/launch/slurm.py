"""Slurm's own programs: sbatch, squeue, sacct, scontrol, scancel. What they say becomes records here."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aorta.artefacts.slurm_environment import printed_s
from aorta.errors import SchedulerError, SubmitError
from aorta.launch.arrays import array_of, expand_ids, job_of, tasks_of
from aorta.launch.durations import parse_elapsed
from aorta.launch.states import JobState, parse_state
from aorta.launch.tools import Caller

_PARSABLE = re.compile(r"^(?P<id>\d+)(?:;(?P<cluster>\S+))?$", re.MULTILINE)
_SENTENCE = re.compile(r"^Submitted batch job (?P<id>\d+)(?: on cluster (?P<cluster>\S+))?", re.MULTILINE)


_NO_ANSWER = re.compile(r"timed out|did not answer|Unable to contact|Zero Bytes", re.IGNORECASE)
"""Messages of sbatch that leave open whether the controller took the job."""
_ASK_STAFF = (
    "see your accounts with `sacctmgr show assoc user=$USER`, and name one with --account; if you have no "
    "account, ask the cluster's staff for one"
)
SUBMIT_SLACK_S = 600.0
"""Largest difference between the clocks of this machine and of the accounting."""


@dataclass(frozen=True, slots=True)
class JobView:
    """One job as one source shows it."""

    job_id: str
    state: JobState
    reason: str = ""
    elapsed_s: int | None = None
    nodes: int | None = None
    node_list: str = ""
    source: str = ""


Views = dict[str, JobView]


def parse_job_id(text: str) -> tuple[str, str | None]:
    """(id, cluster or None) in what sbatch printed, whatever a site's banner puts around it.

    Raises:
        SubmitError: there is no id in it.
    """
    found = [*_SENTENCE.finditer(text)] or [*_PARSABLE.finditer(text)]
    if not found:
        raise SubmitError(
            f"sbatch accepted the job, but its answer contains no job id: {text.strip()!r}",
            "look for the job with squeue",
        )
    return found[-1]["id"], found[-1]["cluster"]


def submit(script: Path, call: Caller, after: Sequence[str] = ()) -> tuple[str, str | None]:
    """Hand `script` to sbatch, to start when the jobs `after` have ended however they ended: (id, cluster).

    Raises:
        SubmitError: refused; the message is sbatch's own.
    """
    dependency = [f"--dependency=afterany:{':'.join(after)}"] if after else []
    began_s = time.time()
    answer = call(["sbatch", "--parsable", *dependency, str(script)])
    if not answer.ok and _NO_ANSWER.search(answer.complaint):
        return _accepted_unsaid(script, call, began_s, answer.complaint), None
    if not answer.ok:
        reason = re.sub(r"sbatch: (?:error: )?", "", answer.complaint)
        todo = _ASK_STAFF if "account" in reason.lower() else "use --dry-run to see the script"
        raise SubmitError(f"sbatch refused {script.name}: {reason}", todo)
    return parse_job_id(answer.out)


def _accepted_unsaid(script: Path, call: Caller, began_s: float, complaint: str) -> str:
    """Returns the id of a job that sbatch sent without an answer, by its name and time.

    Raises:
        SubmitError: there is none or several; it must be looked for before it is submitted again.
    """
    named = re.search(r"^#SBATCH\s+(?:--job-name[= ]|-J\s*)(\S+)", _text_of(script), re.MULTILINE)
    name = named[1].strip("\"'") if named else script.stem
    queue = call(["squeue", "-h", "--states=all", "-n", name, "-o", "%i|%V|%j"])
    cells = [line.split("|") for line in queue.out.splitlines()] if queue.ok else []
    since = began_s - SUBMIT_SLACK_S
    found = [row[0] for row in cells if len(row) == 3 and (printed_s(row[1]) or 0.0) >= since]
    if len(found) == 1:
        return found[0]
    seen = f"squeue shows {', '.join(found)}" if found else "squeue shows no such job yet"
    raise SubmitError(
        f"sbatch did not answer for {script.name} ({complaint}): the job may have been accepted; {seen}",
        f"check with `squeue -n {name}` before you submit it again",
    )


def _text_of(script: Path) -> str:
    try:
        return script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cancel(job_ids: Sequence[str], call: Caller) -> None:
    """Cancel jobs; those that have ended already are none of scancel's business and are no error.

    Raises:
        SchedulerError: scancel failed.
    """
    answer = call(["scancel", *job_ids])
    if (
        not answer.ok
        and "already complet" not in answer.complaint
        and "Invalid job id" not in answer.complaint
    ):
        raise SchedulerError(f"scancel {' '.join(job_ids)}: {answer.complaint}")


def squeue(job_ids: Sequence[str], call: Caller) -> Views | None:
    """The jobs as the controller knows them, in one call; None if it does not answer.

    Arrays are asked for as a whole, and shown task by task. A job that has ended leaves the controller's
    memory after some minutes: it is then absent here.
    """
    asked = ",".join(_whole(job_ids))
    answer = call(["squeue", "-h", "-r", "--states=all", "-j", asked, "-o", "%i|%T|%M|%D|%N|%r|%A"])
    if not answer.ok:
        # Asked for one job that it has forgotten, squeue calls the id invalid; that is an answer.
        return {} if "Invalid job id" in answer.err else None
    rows: dict[str, JobView] = {}
    for line in answer.out.splitlines():
        fields, raw = _with_raw(line.split("|"), 6)
        wanted = _asked_for(fields[0], raw, job_ids)
        if len(fields) == 6 and wanted is not None:
            row, state, elapsed, nodes, hosts, reason = fields
            rows[row] = JobView(
                wanted,
                parse_state(state),
                "" if reason == "None" else reason,
                parse_elapsed(elapsed),
                int(nodes) if nodes.isdigit() else None,
                hosts,
                "squeue",
            )
    return _by_job(rows.values())


def _with_raw(fields: list[str], count: int) -> tuple[list[str], str]:
    """The columns of a row, the last of which may hold bars, and the raw number of an array's task."""
    raw = fields[-1] if len(fields) > count and fields[-1].isdigit() else ""
    kept = fields[:-1] if raw else fields
    return [*kept[: count - 1], "|".join(kept[count - 1 :])] if len(kept) >= count else kept, raw


def _asked_for(row_id: str, raw: str, job_ids: Sequence[str]) -> str | None:
    """The id under which a row was asked for; None if it was not."""
    return next((found for found in (job_of(row_id), raw) if found in job_ids), None)


def sacct(job_ids: Sequence[str], call: Caller, since_s: Mapping[str, float] | None = None) -> Views | None:
    """The jobs as accounting knows them, in one call; None if there is none or it does not answer.

    With `-D` a requeued job has a row for each attempt: the one submitted last decides. Tasks of an array
    that never started share a row, which only the array's own id finds. Rows of siblings in a federation are
    no attempts.

    Args:
        job_ids: of the jobs.
        call: runs a program.
        since_s: when each job was submitted, where that is known; a row that is older is of another job whose
            id is the same because the cluster's ids started again.
    """
    columns = "JobID,Submit,State,ElapsedRaw,NNodes,NodeList,ExitCode,JobIDRaw"
    answer = call(["sacct", "-n", "-P", "-X", "-D", "-j", ",".join(_whole(job_ids)), "-o", columns])
    if not answer.ok:
        return None
    cells = [line.split("|") for line in answer.out.splitlines()]
    rows = []
    for found, raw in (_with_raw(row, 7) for row in cells):
        for row_id in expand_ids(found[0]) if len(found) == 7 else ():
            wanted = _asked_for(row_id, raw, job_ids)
            if wanted is not None and not _older(found[1], (since_s or {}).get(wanted)):
                rows.append((row_id, wanted, *found[1:]))
    lasting = [row for row in rows if not row[3].startswith("REVOKED")]
    views: dict[str, JobView] = {}
    for row, wanted, _, state, elapsed, nodes, hosts, code in sorted(lasting or rows, key=lambda row: row[2]):
        views[row] = JobView(
            wanted,
            parse_state(state),
            "" if code == "0:0" else f"exit code {code}",
            int(elapsed) if elapsed.isdigit() else None,
            int(nodes) if nodes.isdigit() else None,
            "" if hosts == "None assigned" else hosts,
            "sacct",
        )
    return _by_job(views.values())


def _older(submitted: str, since_s: float | None) -> bool:
    """True if a row was submitted before the job was."""
    found = printed_s(submitted)
    return found is not None and since_s is not None and found < since_s - SUBMIT_SLACK_S


def scontrol(job_ids: Sequence[str], call: Caller) -> Views:
    """The jobs as the controller shows them, one call per job or array; without jobs that it has forgotten,
    or about which it does not answer.
    """
    rows: list[dict[str, str]] = []
    for asked in _whole(job_ids):
        answer = call(["scontrol", "show", "job", "-o", asked])
        # A heterogeneous job has a line for each component, an array one for each task.
        # The first of two fields of one name counts: a comment, further on, may hold anything.
        lines = answer.out.splitlines() if answer.ok else []
        rows += [dict(re.findall(r"(\w+)=(\S*)", line)[::-1]) for line in lines]
    wanted = set(job_ids)
    return _by_job(_shown(job_id, row) for row in rows for job_id in _ids(row) & wanted)


def _ids(row: dict[str, str]) -> set[str]:
    array = expand_ids(f"{row.get('ArrayJobId')}_{row.get('ArrayTaskId')}")
    return {row.get("JobId", ""), row.get("HetJobId", ""), *array}


def _shown(job_id: str, row: dict[str, str]) -> JobView:
    nodes, hosts = row.get("NumNodes", "").partition("-")[0], row.get("NodeList", "")
    return JobView(
        job_id,
        parse_state(row.get("JobState", "")),
        "" if row.get("Reason") in (None, "None") else row["Reason"],
        parse_elapsed(row.get("RunTime", "")),
        int(nodes) if nodes.isdigit() else None,
        "" if hosts == "(null)" else hosts,
        "scontrol",
    )


def array_tasks(job_id: str, call: Caller) -> list[str]:
    """The tasks of the array `job_id` that the queue or accounting know, by index; empty for any other job.

    Both are asked: the queue forgets tasks that have ended, and there may be no accounting.
    """
    if not job_id.isdigit():
        return []
    answers = (
        call(["squeue", "-h", "-r", "--states=all", "-j", job_id, "-o", "%i"]),
        call(["sacct", "-n", "-P", "-X", "-D", "-j", job_id, "-o", "JobID"]),
    )
    rows = [row for answer in answers if answer.ok for row in answer.out.splitlines()]
    return tasks_of(job_id, (task for row in rows for task in expand_ids(row.strip())))


def _by_job(views: Iterable[JobView]) -> Views:
    """One view a job. The components of a heterogeneous one count together: it goes on while any of them
    does, and has ended as the first that did not end well, on all their nodes.
    """
    found: Views = {}
    for view in views:
        other = found.get(view.job_id)
        found[view.job_id] = view if other is None else _together(other, view)
    return found


_URGENCY = {"running": 0, "pending": 1, "unknown": 2, "ended": 3}


def _together(one: JobView, other: JobView) -> JobView:
    worse = min(one, other, key=lambda view: (_URGENCY[view.state.phase], view.state.ok))
    counts = [view.nodes for view in (one, other) if view.nodes is not None]
    hosts = ",".join(view.node_list for view in (one, other) if view.node_list)
    return replace(worse, nodes=sum(counts) if counts else None, node_list=hosts)


def _whole(job_ids: Sequence[str]) -> list[str]:
    """The ids to ask for: each job's, and each array's once."""
    return list(dict.fromkeys(array_of(job_id) for job_id in job_ids))
