"""Reads what rocm-smi, amd-smi and nvidia-smi print for people, with the times that stand above or in it."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from aorta.artefacts.samples import GpuSample, amd_sample, number, rocm_sample
from aorta.errors import ArtefactError
from aorta.readers.amd_smi import TABLE_NAMES, Timed, flat_sample, is_amd_smi, wall_ns
from aorta.readers.print_times import Moment, moment_of

_COLUMNS = re.compile(r"\s{2,}")
_ROCM_LINE = re.compile(r"^(?:GPU|DCU)\[(\d+)\]\s*:\s*(.+?)\s*:\s*(.*)$")
_WATTS, _MEGAHERTZ = re.compile(r"[\d.]+W"), re.compile(r"[\d.]+MHz", re.IGNORECASE)
_DEGREES, _PERCENT = re.compile(r"[\d.]+\W?C", re.IGNORECASE), re.compile(r"[\d.]+%")
_NVIDIA_GPU = re.compile(r"^\|\s+(\d+)\s+\S.*\|.*[0-9A-F]+:[0-9A-F]+:[0-9A-F]+\.\d", re.IGNORECASE)
_NVIDIA_VALUES = re.compile(
    r"^\|[^|]*?(?:(\d+)C|N/A|ERR!)[^|]*?([\d.]+W|N/A|ERR!)\s*/[^|]*\|\s*(\S+)\s*/\s*(\S+)\s*\|\s*(\S+)"
)

_SIGNS: Final = (
    ("nvidia-smi's table", re.compile(r"^\|?\s*NVIDIA-SMI \d", re.MULTILINE)),
    (
        "rocm-smi's text",
        re.compile(r"ROCm System Management Interface|^(?:GPU|DCU)\[\d+\]\s*:", re.MULTILINE),
    ),
    ("rocm-smi's JSON", re.compile(r'\{\s*"card\d+"\s*:\s*\{')),
    ("rocm-smi's CSV", re.compile(r"^device,.*(?:\(%\)|\(W\)|\(C\)|\(B\))", re.MULTILINE | re.IGNORECASE)),
    ("amd-smi's JSON", re.compile(r'^\s*[\[{][^{]{0,40}\{?\s*(?:"timestamp"\s*:\s*\d+,\s*)?"gpu"\s*:\s*\d')),
    ("amd-smi's table", re.compile(r"^\s*(?:TIMESTAMP\s+)?GPU\s{2,}[A-Z_%]+(?:\s{2,}|\s*$)", re.MULTILINE)),
)
_UNREAD: Final = (
    (re.compile(r"NVSMI LOG|<nvidia_smi_log>"), "a listing of `nvidia-smi -q`"),
    (re.compile(r"^#\s*gpu\s+pid\b", re.MULTILINE), "a table of processes from `nvidia-smi pmon`"),
    (
        re.compile(r"^#?\s*(?:Entity|GPU I?D?)\s.*\b(?:SMACT|GPUTL|TENSO|DRAMA)\b", re.MULTILINE),
        "a table of dcgmi",
    ),
    (re.compile(r"^GPU: \d+\s*$", re.MULTILINE), "a listing of `amd-smi metric` or `static`"),
)


def smi_tool(head: str) -> str | None:
    """Returns which tool's output a text begins with. None if there is no such tool.

    Raises:
        ArtefactError: the output is one of which nothing is read.
    """
    found = next((name for name, sign in _SIGNS if sign.search(head)), None)
    if found is not None:
        return found
    for sign, what in _UNREAD:
        if sign.search(head):
            raise ArtefactError(f"{what}, which is not read", "record with `aorta monitor`")
    return None


def parse_smi_text(tool: str, text: str) -> tuple[list[Timed], int, bool]:
    """Returns each sample with its ns since the epoch, the number of samples without a time of their own, and
    whether a time was printed without its zone.

    Args:
        tool: as `smi_tool` gives it.
        text: the whole file.

    Raises:
        ArtefactError: no sample has a time.
    """
    found: list[Timed] = []
    bad, zoneless = 0, False
    for moment, body in _stamped(text):
        seen: set[int | None] = set()
        for wall, sample in _BODIES[tool](body):
            # A second sample of a GPU below one time was taken later, and nobody knows when.
            own = wall if wall is not None else moment and sample.index not in seen and moment.wall_ns
            seen.add(sample.index)
            if not own:
                bad += 1
                continue
            zoneless |= wall is None and moment is not None and not moment.zoned
            found.append((own, sample))
    if bad and not found:
        program = tool.partition("'")[0]
        raise ArtefactError(
            f"{tool} prints no times, so its samples cannot be matched with steps",
            f"print a time above each table: `while sleep 1; do date +%s; {program}; done > FILE`, "
            "or record with `aorta monitor`",
        )
    return found, bad, zoneless


def _stamped(text: str) -> Iterator[tuple[Moment | None, str]]:
    """Returns each piece of the text with the time that stands above it."""
    moment: Moment | None = None
    lines: list[str] = []
    for line in text.splitlines():
        new = moment_of(line)
        if new is None:
            lines.append(line)
            continue
        yield moment, "\n".join(lines)
        moment, lines = new, []
    yield moment, "\n".join(lines)


# --- what stands below one time ----------------------------------------------------------------------------

_Body = Iterator[tuple[int | None, GpuSample]]


def _nvidia_table(body: str) -> _Body:
    """Two lines per GPU: its number, and its values."""
    index: int | None = None
    for line in body.splitlines():
        gpu = _NVIDIA_GPU.match(line)
        values = _NVIDIA_VALUES.match(line)
        if gpu:
            index = int(gpu[1])
        elif values and index is not None:
            temperature, power, used, total, use = values.groups()
            yield (
                None,
                GpuSample(
                    index=index,
                    temperature=number(temperature),
                    power_draw_w=number(power),
                    memory_used_mb=number(used),
                    memory_total_mb=number(total),
                    utilization_gpu=number(use),
                ),
            )
            index = None


def _rocm_text(body: str) -> _Body:
    cards: dict[str, dict[str, object]] = {}
    concise = False
    for line in body.splitlines():
        listed = _ROCM_LINE.match(line)
        if listed:
            cards.setdefault(listed[1], {}).setdefault(listed[2], listed[3])
            continue
        words = line.split()
        concise |= bool(words) and words[-1] == "GPU%"
        if concise and len(words) > 3 and words[0].isdigit():
            yield None, _concise(words)
    for index, row in cards.items():
        yield None, rocm_sample(index, row)


def _concise(words: list[str]) -> GpuSample:
    """The power cap is in watts as well: what stands before the clocks is the power."""
    clocks = [at for at, word in enumerate(words) if _MEGAHERTZ.fullmatch(word)]
    before = words[1 : clocks[0]] if clocks else words[1:]
    watts = next((number(word) for word in before if _WATTS.fullmatch(word)), None)
    return GpuSample(
        index=int(words[0]),
        utilization_gpu=number(words[-1]) if _PERCENT.fullmatch(words[-1]) else None,
        temperature=next((number(word) for word in before if _DEGREES.fullmatch(word)), None),
        power_draw_w=(watts or None) if clocks else None,
        sm_clock_mhz=number(words[clocks[0]]) if clocks else None,
    )


def _documents(body: str) -> Iterator[Any]:
    """Returns the JSON documents of a text, whatever stands between them."""
    decoder, at = json.JSONDecoder(), 0
    while (match := re.compile(r"[\[{]").search(body, at)) is not None:
        try:
            document, at = decoder.raw_decode(body, match.start())
        except ValueError:
            at = match.end()
            continue
        yield document


def _rocm_json(body: str) -> _Body:
    for document in _documents(body):
        cards = document.items() if isinstance(document, dict) else ()
        for card, row in cards:
            if re.fullmatch(r"card\d+", card) and isinstance(row, dict):
                yield None, rocm_sample(card, row)


def _rocm_csv(body: str) -> _Body:
    lines = [line for line in body.splitlines() if line.startswith(("device,", "card"))]
    header: list[str] = []
    for cells in csv.reader(lines):
        if cells[0] == "device":
            header = cells
        elif len(cells) == len(header):
            yield None, rocm_sample(cells[0], dict(zip(header, cells, strict=True)))


def _amd_json(body: str) -> _Body:
    for document in _documents(body):
        entries = (
            document.get("gpu_data") if isinstance(document, dict) and "gpu" not in document else document
        )
        for entry in entries if isinstance(entries, list) else [entries]:
            if not isinstance(entry, dict) or number(entry.get("gpu")) is None:
                continue
            nested = any(isinstance(entry.get(part), dict) for part in ("usage", "power", "mem_usage"))
            if nested:
                yield wall_ns(entry.get("timestamp")), amd_sample(entry)
            else:
                plain = {name: _plain(value) for name, value in entry.items()}
                yield wall_ns(entry.get("timestamp")), flat_sample(plain)


def _plain(value: object) -> str:
    """Returns a value as amd-smi's CSV has it: with its unit, if it has one."""
    if isinstance(value, dict):
        return f"{value.get('value')} {value.get('unit') or ''}".strip()
    return str(value)


def _amd_table(body: str) -> _Body:
    header: list[str] = []
    for line in body.splitlines():
        cells = _COLUMNS.split(line.strip())
        names = [TABLE_NAMES.get(cell.lower(), cell.lower()) for cell in cells]
        if is_amd_smi(names) or ("gpu" in names and len(names) > 1 and not cells[0].isdigit()):
            header = names
        elif header and len(cells) == len(header) and cells[header.index("gpu")].isdigit():
            row = dict(zip(header, cells, strict=True))
            yield wall_ns(row.get("timestamp")), flat_sample(row)


_BODIES: Final[dict[str, Callable[[str], _Body]]] = {
    "nvidia-smi's table": _nvidia_table,
    "rocm-smi's text": _rocm_text,
    "rocm-smi's JSON": _rocm_json,
    "rocm-smi's CSV": _rocm_csv,
    "amd-smi's JSON": _amd_json,
    "amd-smi's table": _amd_table,
}
