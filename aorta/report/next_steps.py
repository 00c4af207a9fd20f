"""Commands to type next: the experiment for a fix, the timeline, the comparison."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

from aorta.artefacts.analysis import Analysis
from aorta.config.schema import Config
from aorta.diagnosis.actions import FEWER_RANKS
from aorta.diagnosis.program import TRAINER
from aorta.metrics.repeats import is_local

_KEY = re.compile(r"\b[a-z]+(?:\.[a-z_]+)+\b")
_WANTED = re.compile(r"^=([\w.-]+)|^ to ([\w.-]+)|^ is \S+ .*?set it to ([\w.-]+)|^ ([\w.-]+) \(now ")
_STATED = re.compile(r"--over ([a-z_.]+=[\w.,-]+)")
"""An action that says itself which values to try."""
_NOW = re.compile(r"(?:\bnow|^ is) ([\w.-]*\w)")


def experiment(analysis: Analysis, action: str, run: str) -> str | None:
    """The command that tries `action`: a sweep over the configuration keys that it names, or fewer ranks.

    None if the action names no key.

    Args:
        analysis: of the run.
        action: one action of a finding, such as `raise training.batch_size, now 8`.
        run: path of the run directory, whose configuration is varied.
    """
    if action.startswith(FEWER_RANKS):
        return _with_fewer_ranks(analysis, run)
    stated = _STATED.search(action)
    over, fixed = stated[1] if stated else None, []
    for key, hint, before, after in () if stated else _keys(action):
        named, present = _WANTED.match(after), _NOW.search(after)
        wanted = next(filter(None, named.groups()), None) if named else None
        now = present[1] if present else _opposite(hint, wanted)
        if over is None:
            values = _values(hint, now, wanted, before, after)
            over = f"{key}={','.join(values)}" if len(values) > 1 else None
        elif wanted is not None:
            fixed.append(f"{key}={wanted}")
    if over is None:
        return None
    words = ["aorta", "sweep", *(["--executor", "local"] if is_local(analysis.job_id) else [])]
    nodes, each = _shape(analysis)
    words += ["--config", f"{run}/config.yaml", "--nodes", str(nodes)]
    if each > 1:
        words += ["--procs-per-node", str(each)]
    words += ["--over", over]
    for pair in fixed:
        words += ["--override", pair]
    return shlex.join([*words, "--repeats", "3"])


def _shape(analysis: Analysis) -> tuple[int, int]:
    """Nodes of the run, and ranks per node."""
    nodes = analysis.nodes or 1
    return nodes, (analysis.world_size or nodes) // nodes


def _with_fewer_ranks(analysis: Analysis, run: str) -> str | None:
    """The same run with half of the ranks; None for a single rank, and for an own program."""
    nodes, each = _shape(analysis)
    if nodes * each < 2 or not (analysis.program or "").startswith(TRAINER):
        return None
    nodes, each = (nodes, each // 2) if each > 1 else (nodes // 2, 1)
    start = "profile" if is_local(analysis.job_id) else "submit"
    words = ["aorta", start, "--config", f"{run}/config.yaml", "--nodes", str(nodes)]
    return shlex.join([*words, "--procs-per-node", str(each)])


def _keys(action: str) -> Iterator[tuple[str, Any, str, str]]:
    """Each key of the configuration that is named: key, type, the words before and after it."""
    found = [match for match in _KEY.finditer(action) if _type_of(match[0]) is not None]
    ends = [*(match.start() for match in found[1:]), len(action)]
    for match, end in zip(found, ends, strict=False):
        yield match[0], _type_of(match[0]), action[: match.start()], action[match.end() : end]


def _type_of(key: str) -> Any:
    """The type of a dotted key in the schema; None where there is no such key."""
    place: Any = Config
    for name in key.split("."):
        try:
            place = get_type_hints(place).get(name)
        except (TypeError, AttributeError):
            return None
        if place is None:
            return None
    return place


def _opposite(hint: Any, wanted: str | None) -> str | None:
    """The present value of a switch that is to be turned; None for other keys."""
    switch = bool in (hint, *get_args(hint))
    return {"true": "false", "false": "true"}.get(wanted or "") if switch else None


def _values(hint: Any, now: str | None, wanted: str | None, before: str, after: str) -> list[str]:
    """The present value first, then what to try; fewer than two where the words do not tell."""
    if now is None:
        return []
    if wanted is not None:
        more = _scaled(wanted, (2,)) if "or more" in after else []
        return list(dict.fromkeys([now, wanted, *more]))
    if get_origin(hint) is Literal:
        named = [word for word in re.findall(r"\w+", after) if word in get_args(hint)]
        return list(dict.fromkeys([now, *named]))
    lower = re.search(r"\b(lower|fewer|reduce)\b", before) is not None
    return [now, *_scaled(now, (0.5,) if lower else (2, 4))]


def _scaled(word: str, factors: tuple[float, ...]) -> list[str]:
    try:
        number = float(word)
    except ValueError:
        return []
    whole = word.isdigit()
    values = [number * factor for factor in factors if number * factor >= (1 if whole else 1e-9)]
    return [str(round(value)) if whole else f"{value:g}" for value in values]


def next_commands(run: str) -> list[tuple[str, str]]:
    """Purposes and commands: look at the timeline, then compare with a run after the change."""
    quoted = shlex.quote(run)
    return [
        ("see all ranks on one timeline", f"aorta timeline {quoted}"),
        compare_command(run),
    ]


def compare_command(run: str) -> tuple[str, str]:
    """Purpose and command: compare the run with one after the change."""
    purpose = "run the job again, then compare the two runs (NEW_RUN is the new run's folder)"
    return purpose, f"aorta compare {shlex.quote(run)} NEW_RUN"
