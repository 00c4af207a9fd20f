"""Slurm's ways to write a duration."""

from __future__ import annotations

import re

DEFAULT_TIME = "00:30:00"
"""The limit of a job that is given none."""

_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})")


def parse_limit(text: str) -> int | None:
    """Seconds in a time limit as sbatch and sinfo write it, or None where it is none.

    The forms are minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and
    days-hours:minutes:seconds.
    """
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return None
    parts = [int(part) for part in match["clock"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
        return int(match["days"]) * 86_400 + hours * 3_600 + minutes * 60 + seconds
    if len(parts) == 3:
        return parts[0] * 3_600 + parts[1] * 60 + parts[2]
    return parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)


def parse_elapsed(text: str) -> int | None:
    """Seconds in an elapsed time as squeue and scontrol write it, [days-][hours:]minutes:seconds, or None."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None or ":" not in match["clock"]:
        return None
    seconds = int(match["days"] or 0) * 86_400
    for unit, part in zip((1, 60, 3_600), reversed(match["clock"].split(":")), strict=False):
        seconds += unit * int(part)
    return seconds


def show(seconds: int) -> str:
    """`1-02:03:04`, the form that every Slurm program takes and shows; without days `02:03:04`."""
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 3_600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
