"""Reads Kineto files into which traces of several ranks were merged, and splits them by process."""

from __future__ import annotations

import itertools
import json
import os
import re
from codecs import BOM_UTF8
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import Trace
from aorta.errors import ArtefactError
from aorta.readers.kineto_events import CALLS, GROUPS, ON_GPU
from aorta.readers.kineto_stream import GzipDamageError, gzip_blocks, is_gzip

_LOOK = 4 << 20
_MOST_BYTES = 2 << 30
_LABEL = re.compile(r"^\s*\[([^\]]+)\]|^\s*(rank[ _-]?\d+)\b", re.IGNORECASE)
_LABELLED = re.compile(rb'"pid"\s*:\s*"\s*(\[[^\]"]+\]|(?i:rank)[ _-]?\d+)')
_CALL = rb'"cat"\s*:\s*"(?:cuda|hip|xpu)_(?:runtime|driver)"'
_PID = rb'"pid"\s*:\s*"?(\d+)'
_BETWEEN = rb"(?:[^{}]|\{[^{}]*\})*?"
_CALLER = re.compile(_CALL + rb'(?:\s*,\s*"name"\s*:\s*"[^"]*"\s*,\s*' + _PID + rb")?")
_IN_ANY_ORDER = (re.compile(_CALL + _BETWEEN + _PID), re.compile(_PID + _BETWEEN + _CALL))
"""These take longer, and are for files that another program wrote."""
_NUMBERS = re.compile(r"\d+")


def holds_several(path: Path, text: bytes | None = None) -> bool:
    """Returns True if the ends of a file show calls of several processes, or ranks as labels of processes.

    `text` is what the file holds, where it was packed and is unpacked already.
    """
    try:
        head, tail = _ends(path) if text is None else (memoryview(text)[:_LOOK], b"")
    except OSError:
        return False  # reading it says why
    if _LABELLED.search(head):
        return True
    # A call without the process at its usual place is empty.
    calls = {*_CALLER.findall(head)}
    callers = {*calls, *_CALLER.findall(tail)} - {b""}
    if calls and not callers:
        callers = next((found for order in _IN_ANY_ORDER if (found := {*order.findall(head)})), set())
    return len(callers) > 1


def _ends(path: Path) -> tuple[bytes | memoryview, bytes]:
    """The first and the last 4 MiB; only the first of a packed file."""
    with path.open("rb") as stream:
        if is_gzip(path):
            try:
                return next(gzip_blocks(stream, _LOOK), b""), b""
            except GzipDamageError:
                return b"", b""
        head = stream.read(_LOOK)
        stream.seek(max(os.fstat(stream.fileno()).st_size - _LOOK, len(head)))
        return head, stream.read(_LOOK)


def read_merged(path: Path) -> list[Trace]:
    """Returns a trace for each rank in a merged file; ranks are numbered by labels, else by devices.

    Raises:
        ArtefactError: it is too large, no whole JSON, or its ranks cannot be told apart.
    """
    from aorta.readers import kineto

    header, events = _content(path)
    parts = _split(events)
    if len(parts) == 1:
        return [kineto.read(path)]
    if not parts:
        raise ArtefactError(
            f"{path}: it contains several processes, and their GPU events cannot be told apart",
            "give one file per rank, as the profiler wrote them",
        )
    ranks = _ranks(list(parts))
    info = header.get("distributedInfo")
    known = info if isinstance(info, dict) else {}
    basis = "their labels" if _labelled(parts) else "devices"
    note = f"split from a file of {len(parts)} processes; ranks by {basis}"
    traces = []
    for label, own in parts.items():
        # A merged file keeps the header of one of its parts.
        said = header | {"distributedInfo": known | {"rank": ranks[label]}, "traceEvents": own}
        trace = kineto.read_text(path, json.dumps(said).encode())
        problems = tuple(Problem(file=str(path), reason=f"{label}: {item.reason}") for item in trace.problems)
        traces.append(
            replace(trace, rank=ranks[label], rank_basis=note, problems=problems, notes=(*trace.notes, note))
        )
    return traces


def _content(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    try:
        with path.open("rb") as stream:
            text = b"".join(gzip_blocks(stream)) if is_gzip(path) else stream.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ArtefactError(f"{path}: several ranks in a file of more than 2 GiB", "split it by rank")
        found = msgspec.json.decode(text.removeprefix(BOM_UTF8))
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror}") from error
    except (GzipDamageError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtefactError(
            f"{path}: it contains several ranks and is incomplete ({error})",
            "merge the traces again, or give them as they were",
        ) from error
    events = found.pop("traceEvents", []) if isinstance(found, dict) else found
    return found if isinstance(found, dict) else {}, [event for event in events if isinstance(event, dict)]


def _split(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The events of each rank: by the label in their process, else by the process that launched them."""
    labelled: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    plain = []
    for event in events:
        match = _LABEL.match(str(event.get("pid", "")))
        if match is None:
            plain.append(event)
        else:
            labelled[match[1] or match[2]].append(event)
    if labelled:
        return dict(labelled)
    callers: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    on_gpu: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in plain:
        group = GROUPS.get(str(event.get("cat")))
        if group == ON_GPU or event.get("cat") == "gpu_user_annotation":
            on_gpu[str(event.get("pid"))].append(event)
        elif group is not None:
            callers[str(event.get("pid"))].append(event)
    callers = defaultdict(
        list, {key: own for key, own in callers.items() if any(GROUPS[e["cat"]] == CALLS for e in own)}
    )
    return _joined(callers, on_gpu, {id(event): number for number, event in enumerate(plain)})


def _joined(
    callers: dict[str, list[dict[str, Any]]], on_gpu: dict[str, list[dict[str, Any]]], place: dict[int, int]
) -> dict[str, list[dict[str, Any]]]:
    """Each process with the device whose events it launched; empty if that is not one each.

    Where the launches fit several processes, the parts of one rank stand next to each other in the file.
    """
    owner: dict[str, str] = {}
    for device, events in on_gpu.items():
        scores = {caller: _launched(own, events) for caller, own in callers.items()}
        best = [caller for caller, score in scores.items() if score == max(scores.values()) and score > 0]
        middle = _middle(events, place)
        best.sort(key=lambda caller: abs(_middle(callers[caller], place) - middle))
        if not best or best[0] in owner.values() or (len(best) > 1 and _interleaved(callers, place)):
            return {}
        owner[device] = best[0]
    if len(owner) < len(callers):
        return {}
    order = sorted(owner, key=lambda device: (len(device), device))
    return {owner[device]: [*callers[owner[device]], *on_gpu[device]] for device in order}


def _middle(events: list[dict[str, Any]], place: dict[int, int]) -> float:
    return sum(place[id(event)] for event in events) / len(events)


def _interleaved(callers: dict[str, list[dict[str, Any]]], place: dict[int, int]) -> bool:
    spans = sorted((place[id(own[0])], place[id(own[-1])]) for own in callers.values())
    return any(one[1] > other[0] for one, other in itertools.pairwise(spans))


def _launched(calls: list[dict[str, Any]], events: list[dict[str, Any]]) -> int:
    """The number of events that the calls launched; 0 if one of them ran before its launch."""
    times = {
        _correlation(call): float(call.get("ts") or 0)
        for call in calls
        if "correlation" in call.get("args", {})
    }
    ahead = [float(e.get("ts") or 0) - times[key] for e in events if (key := _correlation(e)) in times]
    return len(ahead) if min(ahead, default=-1) >= 0 else 0


def _correlation(event: dict[str, Any]) -> str:
    return str(event.get("args", {}).get("correlation"))


def _labelled(parts: dict[str, Any]) -> bool:
    return any(not label.isdigit() for label in parts)


def _ranks(labels: list[str]) -> dict[str, int]:
    """The rank of each label: its only number where these are all different, else its place."""
    if _labelled(dict.fromkeys(labels)):
        numbers = [[int(number) for number in _NUMBERS.findall(label)] for label in labels]
        single = [own[0] for own in numbers if len(own) == 1]
        if len(single) == len(labels) == len(set(single)):
            return dict(zip(labels, single, strict=True))
        labels = [label for _, label in sorted(zip(numbers, labels, strict=True))]
    return {label: place for place, label in enumerate(labels)}
