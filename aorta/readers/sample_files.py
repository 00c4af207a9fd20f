"""Samples of GPUs and hosts from any CSV files beside traces: the monitors' own, and nvidia-smi's."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from aorta.artefacts.analysis import Problem
from aorta.artefacts.columns import CPU_COLUMNS, GPU, GPU_COLUMNS, TEXT, sampled
from aorta.artefacts.files import is_folder, open_regular, read_regular, walk
from aorta.artefacts.lines import cells_of
from aorta.artefacts.samples import GpuSample, parse_nvidia_smi_csv
from aorta.errors import ArtefactError
from aorta.readers.amd_smi import is_amd_smi, parse_amd_smi_csv
from aorta.readers.dmon import is_dmon, parse_dmon
from aorta.readers.smi_text import parse_smi_text, smi_tool
from aorta.units import plural

if TYPE_CHECKING:
    import pandas as pd


Kind: TypeAlias = Literal["nvidia-smi", "amd-smi", "dmon", "text", "gpu", "cpu"]

_LOOK = 4096
_NO_HEADER = re.compile(r"\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d[^,]*,|\d+, *GPU-")
_GPU_VALUES = re.compile(r"GPU-[0-9a-f]{8}|\d %|\d MiB|\d W\b")
_COMPLAINT = re.compile(
    r"GPU is lost|[Uu]nable to determine the device handle|^No devices were found|^NVIDIA-SMI has failed"
)
_FORMATS = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S")


class SampleFile(Struct, frozen=True):
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
        below = sorted(walk(path)) if is_folder(path) else [path]
        files.update(dict.fromkeys(below))
    found: list[SampleFile] = []
    problems: list[Problem] = []
    for path in files:
        try:
            kind = _kind(path)
            if kind is not None:
                found.append(_read(path, kind, problems))
        except ArtefactError as error:
            reason = f"{error.message}; {error.hint}" if error.hint else error.message
            problems.append(Problem(file=str(path), reason=f"{path}: {reason}"))
        except OSError as error:
            problems.append(Problem(file=str(path), reason=f"{path}: {error.strerror}"))
    return tuple(item for item in found if len(item.table)), tuple(problems)


def _kind(path: Path) -> Kind | None:
    """Returns what the first line announces; None for a file that holds no samples.

    Raises:
        ArtefactError: it holds samples that cannot be read.
    """
    with open_regular(path) as stream:
        head = decoded(stream.read(_LOOK))
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
            "samples of nvidia-smi without a header line: which column is which is not known",
            "record without `noheader`: nvidia-smi --query-gpu=timestamp,index,... --format=csv",
        )
    if is_amd_smi(header):
        return "amd-smi"
    return "text" if smi_tool(head) is not None else None


def decoded(data: bytes) -> str:
    """Returns the text of a file of any Unicode encoding that its first bytes announce, else of UTF-8."""
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    return data.decode(encoding, errors="replace")


def _read(path: Path, kind: Kind, problems: list[Problem]) -> SampleFile:
    import pandas as pd

    from aorta.readers.samples import drop_impossible, table_of

    if kind in ("gpu", "cpu"):
        columns = GPU_COLUMNS if kind == "gpu" else CPU_COLUMNS
        return SampleFile(path, kind, table_of(path, columns, problems), zoneless=False)
    text = decoded(read_regular(path))
    # In a last line without an end the last number may lack digits; a JSON document tells that itself.
    whole, _, rest = (text, "", "") if kind == "text" else text.rpartition("\n")
    bad = int(bool(rest.strip()))
    zoneless = kind != "amd-smi"
    if kind == "amd-smi":
        timed, unusable = parse_amd_smi_csv(whole)
        bad += unusable
    elif kind == "text":
        timed, unusable, zoneless = parse_smi_text(smi_tool(text[:_LOOK]) or "", text)
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
        problems.append(Problem(file=str(path), reason="it announces samples of GPUs and holds none"))
    table = pd.DataFrame(rows, columns=list(GPU_COLUMNS))
    drop_impossible(table, str(path), problems)
    return SampleFile(path, "gpu", table, zoneless=zoneless)


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
