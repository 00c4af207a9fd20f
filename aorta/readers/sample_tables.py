"""Reads one file of samples of GPUs and hosts, whatever tool wrote it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aorta.artefacts.analysis import Problem
from aorta.artefacts.columns import CPU_COLUMNS, EXACT, GPU, GPU_COLUMNS, TEXT, sampled
from aorta.artefacts.files import read_regular
from aorta.artefacts.lines import cells_of
from aorta.artefacts.sample_table import SampleTable
from aorta.artefacts.samples import GpuSample, parse_nvidia_smi_csv
from aorta.errors import ArtefactError
from aorta.readers.amd_smi import is_amd_smi, parse_amd_smi_csv
from aorta.readers.dmon import is_dmon, parse_dmon
from aorta.readers.sample_files import LOOK, Kind, SampleFile, decoded
from aorta.readers.sample_limits import without_impossible
from aorta.readers.sample_rows import in_table, rows_of
from aorta.readers.smi_text import parse_smi_text, smi_tool
from aorta.units import plural

if TYPE_CHECKING:
    import pandas as pd

_NO_HEADER = re.compile(r"\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d[^,]*,|\d+, *GPU-")
_GPU_VALUES = re.compile(r"GPU-[0-9a-f]{8}|\d %|\d MiB|\d W\b")
_COMPLAINT = re.compile(
    r"GPU is lost|[Uu]nable to determine the device handle|^No devices were found|^NVIDIA-SMI has failed"
)
_FORMATS = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S")


def kind_of(head: str) -> Kind | None:
    """Returns what the beginning of a text announces; None for one that holds no samples.

    Raises:
        ArtefactError: the text holds samples that cannot be read.
    """
    line = head.split("\n", 1)[0].strip()
    if is_dmon(line):
        return "dmon"
    header = [cell.strip() for cell in cells_of(line) or []]
    if "wall_ns" in header:
        return "gpu" if "utilization_gpu" in header else "cpu" if "cpu_percent" in header else None
    names = {cell.partition(" [")[0] for cell in header}
    if len(names & {"timestamp", "utilization.gpu", "memory.used", "uuid"}) > 1:
        return "nvidia-smi"
    if _NO_HEADER.match(line) and _GPU_VALUES.search(line):
        raise ArtefactError(
            "samples from nvidia-smi without a header line: the meaning of the columns is not known",
            "record without `noheader`: nvidia-smi --query-gpu=timestamp,index,... --format=csv",
        )
    if is_amd_smi(header):
        return "amd-smi"
    return "text" if smi_tool(head) is not None else None


def read_table(path: Path, kind: Kind, problems: list[Problem]) -> SampleFile:
    """Returns the samples in a file; what is wrong with them is added to `problems`.

    Raises:
        ArtefactError: none of its samples can be read.
        OSError: the file cannot be read.
    """
    if kind in ("gpu", "cpu"):
        columns = GPU_COLUMNS if kind == "gpu" else CPU_COLUMNS
        cells = rows_of(path.parent, path, columns, problems)
        table = _table([dict(zip(columns, row, strict=True)) for row in cells], columns)
        return SampleFile(path, kind, without_impossible(table, path.name, problems), zoneless=False)
    text = decoded(read_regular(path))
    # In a last line without an end the last number may lack digits; a JSON document tells that itself.
    whole, _, rest = (text, "", "") if kind == "text" else text.rpartition("\n")
    bad = int(bool(rest.strip()))
    zoneless = kind != "amd-smi"
    if kind == "amd-smi":
        timed, unusable = parse_amd_smi_csv(whole)
        bad += unusable
    elif kind == "text":
        timed, unusable, zoneless = parse_smi_text(smi_tool(text[:LOOK]) or "", text)
        bad += unusable
    elif kind == "dmon":
        dated, unusable = parse_dmon(whole)
        timed = [(_as_utc_ns(moment), sample) for moment, sample in dated]
        bad += unusable
    else:
        silent, lines = _without_complaints(whole.splitlines())
        if silent:
            reason = f"{plural(len(silent), 'line')} of nvidia-smi itself, the first: {silent[0].strip()}"
            problems.append(Problem(file=str(path), reason=reason))
        parsed = parse_nvidia_smi_csv("\n".join(lines))
        timed = [(_as_utc_ns(sample.timestamp), sample) for sample in parsed.samples]
        bad += len(parsed.bad_lines)
    bad += sum(1 for wall, _ in timed if wall is None)
    if bad:
        problems.append(Problem(file=str(path), reason=f"{bad} of its samples are cut off or have no time"))
    rows = [_row(wall, sample) for wall, sample in timed if wall is not None]
    if not rows and not bad:
        problems.append(Problem(file=str(path), reason="it has a header for GPU samples, but no samples"))
    table = without_impossible(_table(rows, GPU_COLUMNS), str(path), problems)
    return SampleFile(path, "gpu", table, zoneless=zoneless)


def _table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> SampleTable:
    """Returns samples by name of column as a table; what is no number is NaN."""
    exact, texts, numbers = {}, {}, {}
    for name in in_table(columns):
        cells = [row.get(name) for row in rows]
        if name in EXACT:
            exact[name] = np.array([int(str(cell)) for cell in cells], dtype=np.int64)
        elif name in TEXT:
            texts[name] = ["" if cell is None else str(cell) for cell in cells]
        else:
            numbers[name] = np.array([_number(cell) for cell in cells], dtype=np.float64)
    return SampleTable(exact, numbers, texts)


def _number(cell: object) -> float:
    text = "" if cell is None else str(cell)
    try:
        # Python reads more than monitors write: digits of other scripts, and grouped ones.
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


def frame_of(table: SampleTable) -> pd.DataFrame:
    """Returns the table as `readers.samples` gives that of a run."""
    import pandas as pd

    made = {**table.texts, **table.exact, **table.numbers}
    names = dict.fromkeys(name for name in (*GPU_COLUMNS, *CPU_COLUMNS) if name in made)
    return pd.DataFrame({name: made[name] for name in names})


def _without_complaints(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines in which nvidia-smi says what is wrong, such as a GPU that is lost, and the others."""
    silent = [line for line in lines if _COMPLAINT.search(line)]
    return silent, [line for line in lines if not _COMPLAINT.search(line)]


def _as_utc_ns(text: str | None) -> int | None:
    for form in _FORMATS if text else ():
        try:
            moment = datetime.strptime(str(text), form).replace(tzinfo=timezone.utc)
        except ValueError:
            continue
        return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
    return None


def _row(wall_ns: int, sample: GpuSample) -> dict[str, object]:
    place = {"timestamp": sample.timestamp, "hostname": "", "node_index": 0}
    texts = dict.fromkeys(TEXT & set(GPU_COLUMNS), "")
    read = sampled(GPU, sample)
    known = {name: value for name, value in read.items() if value is not None or name not in TEXT}
    return {**texts, **place, "wall_ns": wall_ns, "mono_ns": wall_ns, **known}
