"""Samples of GPUs and hosts from any CSV files beside traces: the monitors' own, and nvidia-smi's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from aorta.artefacts.analysis import Problem
from aorta.artefacts.columns import CPU_COLUMNS, GPU, GPU_COLUMNS, TEXT, sampled
from aorta.artefacts.lines import cells_of
from aorta.artefacts.samples import GpuSample, parse_nvidia_smi_csv
from aorta.errors import ArtefactError
from aorta.readers.samples import table_of

if TYPE_CHECKING:
    import pandas as pd


_LOOK = 4096
_FORMATS = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S")


@dataclass(frozen=True, slots=True)
class SampleFile:
    """One file's samples."""

    path: Path
    kind: Literal["gpu", "cpu"]
    table: pd.DataFrame
    """GPU_COLUMNS or CPU_COLUMNS."""
    zoneless: bool
    """`wall_ns` was printed as local time of an unknown zone and is taken as if it were UTC."""


def find_samples(paths: Iterable[Path]) -> tuple[tuple[SampleFile, ...], tuple[Problem, ...]]:
    """The sample files among files and below folders, by their first line; others are left out.

    A file that cannot be used is a problem.
    """
    files: dict[Path, None] = {}
    for path in paths:
        below = sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
        files.update(dict.fromkeys(below))
    found: list[SampleFile] = []
    problems: list[Problem] = []
    for path in files:
        try:
            kind = _kind(path)
            if kind is not None:
                found.append(_read(path, kind, problems))
        except (OSError, ArtefactError) as error:
            reason = error.message if isinstance(error, ArtefactError) else str(error.strerror)
            problems.append(Problem(file=str(path), reason=f"{path}: {reason}"))
    return tuple(item for item in found if len(item.table)), tuple(problems)


def _kind(path: Path) -> Literal["nvidia-smi", "gpu", "cpu"] | None:
    """What the first line announces."""
    with path.open("rb") as stream:
        line = stream.read(_LOOK).split(b"\n", 1)[0].decode("utf-8", errors="replace").strip()
    header = [cell.strip() for cell in cells_of(line) or []]
    if "wall_ns" in header:
        return "gpu" if "utilization_gpu" in header else "cpu" if "cpu_percent" in header else None
    names = {cell.partition(" [")[0] for cell in header}
    return "nvidia-smi" if len(names & {"timestamp", "utilization.gpu", "memory.used", "uuid"}) > 1 else None


def _read(path: Path, kind: Literal["nvidia-smi", "gpu", "cpu"], problems: list[Problem]) -> SampleFile:
    import pandas as pd

    if kind != "nvidia-smi":
        columns = GPU_COLUMNS if kind == "gpu" else CPU_COLUMNS
        return SampleFile(path, kind, table_of(path, columns, problems), zoneless=False)
    # In a last line without an end the last number may lack digits.
    whole, _, rest = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    parsed = parse_nvidia_smi_csv(whole)
    timed = [(_as_utc_ns(sample.timestamp), sample) for sample in parsed.samples]
    bad = len(parsed.bad_lines) + sum(1 for wall, _ in timed if wall is None) + bool(rest.strip())
    if bad:
        problems.append(Problem(file=str(path), reason=f"{bad} of its samples are cut off or have no time"))
    rows = [_row(wall, sample) for wall, sample in timed if wall is not None]
    return SampleFile(path, "gpu", pd.DataFrame(rows, columns=list(GPU_COLUMNS)), zoneless=True)


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
