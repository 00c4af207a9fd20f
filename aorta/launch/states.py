"""Every job state that Slurm knows, and what it means for someone who waits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Phase = Literal["pending", "running", "ended", "unknown"]


@dataclass(frozen=True, slots=True)
class JobState:
    """A state by its long name."""

    name: str
    phase: Phase
    ok: bool = False
    """The job ended and everything in it went well."""


_ENDED = (
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED "
    "RECONFIG_FAIL REVOKED SPECIAL_EXIT TIMEOUT"
).split()
# A job in one of these has not started, or will start again.
_PENDING = (
    "PENDING CONFIGURING POWER_UP_NODE REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD EXPEDITING UPDATE_DB"
).split()
# A job in one of these holds its nodes.
_RUNNING = "RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED".split()

STATES: dict[str, JobState] = (
    {name: JobState(name, "ended", ok=name == "COMPLETED") for name in _ENDED}
    | {name: JobState(name, "pending") for name in _PENDING}
    | {name: JobState(name, "running") for name in _RUNNING}
)

CODES = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "CF": "CONFIGURING",
    "CG": "COMPLETING",
    "DL": "DEADLINE",
    "EX": "EXPEDITING",
    "F": "FAILED",
    "LF": "LAUNCH_FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PD": "PENDING",
    "PR": "PREEMPTED",
    "PU": "POWER_UP_NODE",
    "R": "RUNNING",
    "RC": "RECONFIG_FAIL",
    "RD": "RESV_DEL_HOLD",
    "RF": "REQUEUE_FED",
    "RH": "REQUEUE_HOLD",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "S": "SUSPENDED",
    "SE": "SPECIAL_EXIT",
    "SI": "SIGNALING",
    "SO": "STAGE_OUT",
    "ST": "STOPPED",
    "TO": "TIMEOUT",
    "UD": "UPDATE_DB",
}

UNKNOWN = JobState("UNKNOWN", "unknown")


def parse_state(text: str) -> JobState:
    """The state in a scheduler's word for it.

    Takes long names, compact codes, `CANCELLED by 1000`, and names cut short with a `+`. A word that is in no
    table gives the phase `unknown`, so that a wait counts it instead of believing it for ever.
    """
    words = re.split(r"[\s,+]", text.strip().upper(), maxsplit=1)
    name = CODES.get(words[0], words[0])
    if name in STATES:
        return STATES[name]
    whole = [state for state in STATES if f"{words[0]}+" in text.upper() and state.startswith(name)]
    if name and len(whole) == 1:
        return STATES[whole[0]]
    return JobState(name, "unknown") if name else UNKNOWN
