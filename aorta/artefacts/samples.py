"""GPU samples as vendors' tools print them: text in, canonical samples out. Standard library only.

The same quantity has many names (by tool, by version) and many ways of being absent; every parser here gives
the columns of `gpu_monitor.csv`, and None for what the tool did not measure. A measured 0 stays 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from aorta.artefacts.lines import cells_of
from aorta.errors import ArtefactError
from aorta.units import BYTES_PER_MIB

_NUMBER = re.compile(r"\(?\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)")
_MIB_PER_UNIT = {"B": 1 / BYTES_PER_MIB, "KB": 1 / 1024, "MB": 1.0, "MIB": 1.0, "GB": 1024.0, "GIB": 1024.0}


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one instant: % for utilisations, MiB, °C, W, MHz, mJ since the driver was loaded. None if
    not measured.
    """

    index: int | None = None
    """Index as the tool numbers it: not a torch ordinal."""
    uuid: str | None = None
    name: str | None = None
    utilization_gpu: float | None = None
    utilization_memory: float | None = None
    """Share of time the memory bus was busy; occupancy is memory_used_mb over memory_total_mb."""
    memory_used_mb: float | None = None
    memory_total_mb: float | None = None
    temperature: float | None = None
    power_draw_w: float | None = None
    sm_clock_mhz: float | None = None
    energy_mj: float | None = None
    clock_event_reasons: int | None = None
    """NVML's bit mask."""
    sm_active_pct: float | None = None
    tensor_active_pct: float | None = None
    dram_active_pct: float | None = None
    timestamp: str | None = None
    """The time as printed; nvidia-smi writes local time without a zone."""


class Parsed(Struct, frozen=True):
    """The samples of a text, and the numbers (from 1) of lines that are not what the header announces."""

    samples: list[GpuSample]
    bad_lines: list[int]


def number(value: object) -> float | None:
    """The finite number that `value` is or starts with (`12 %`, `(132Mhz)`); None for `[N/A]`, `N/A
    (Secondary die)`, ...
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return float(value) if math.isfinite(value) else None
    match = _NUMBER.match(str(value).strip())
    found = float(match[1]) if match else math.inf
    return found if math.isfinite(found) else None


def _text(value: object) -> str | None:
    words = str(value).strip() if value is not None else ""
    return None if not words or words.startswith("[") or words.upper().startswith("N/A") else words


def _bits(value: object) -> int | None:
    try:
        return int(str(value).strip(), 0)
    except ValueError:
        return None


# --- nvidia-smi --query-gpu=... --format=csv ---------------------------------------------------------------

_Convert = Callable[[object], Any]


def _whole(value: object) -> int | None:
    found = number(value)
    return int(found) if found is not None else None


_NVIDIA: dict[str, tuple[str, _Convert]] = {
    "timestamp": ("timestamp", _text),
    "index": ("index", _whole),
    "uuid": ("uuid", _text),
    "gpu_uuid": ("uuid", _text),
    "name": ("name", _text),
    "gpu_name": ("name", _text),
    "utilization.gpu": ("utilization_gpu", number),
    "utilization.memory": ("utilization_memory", number),
    "memory.used": ("memory_used_mb", number),
    "memory.total": ("memory_total_mb", number),
    "temperature.gpu": ("temperature", number),
    "power.draw": ("power_draw_w", number),
    "clocks.sm": ("sm_clock_mhz", number),
    "clocks.current.sm": ("sm_clock_mhz", number),
    "clocks_event_reasons.active": ("clock_event_reasons", _bits),
    "clocks_throttle_reasons.active": ("clock_event_reasons", _bits),
}


def parse_nvidia_smi_csv(text: str) -> Parsed:
    """Samples of `nvidia-smi --query-gpu=<any columns> --format=csv[,nounits]`; the header says which columns
    there are.

    Raises:
        ArtefactError: the first line is not a header of known columns.
    """
    lines = [cells_of(line, skip_initial_space=True) for line in text.splitlines()]
    header = [cell.strip() for cell in lines[0] or []] if lines else []
    columns = [_NVIDIA.get(cell.partition(" [")[0]) for cell in header]
    if not any(columns):
        raise ArtefactError(
            f"not CSV of nvidia-smi: the first line is {_start(text)!r}",
            "write it with `nvidia-smi --query-gpu=uuid,utilization.gpu,... --format=csv`",
        )
    samples, bad = [], []
    for position, cells in enumerate(lines[1:], start=2):
        if cells is None:
            bad.append(position)
            continue
        row = [cell.strip() for cell in cells]
        if not any(row) or row == header:  # a file appended to by a second call repeats the header
            continue
        if len(row) != len(header):
            bad.append(position)
            continue
        values = {
            column[0]: column[1](cell)
            for column, cell in zip(columns, row, strict=True)
            if column is not None
        }
        samples.append(GpuSample(**values))
    return Parsed(samples, bad)


# --- rocm-smi --json and --csv -----------------------------------------------------------------------------

_ROCM: tuple[tuple[str, tuple[str, ...], _Convert], ...] = (
    ("uuid", (r"unique id",), _text),
    ("name", (r"card series", r"card model", r"device name"), _text),
    ("utilization_gpu", (r"gpu use \(%\)",), number),
    # Both are the memory-busy counter. `GPU Memory Allocated (VRAM%)` is occupancy, another quantity.
    ("utilization_memory", (r"gpu memory use \(%\)", r"gpu memory read/write activity \(%\)"), number),
    ("temperature", (r"temperature \(sensor edge\) \(c\)", r"temperature \(sensor junction\) \(c\)"), number),
    ("power_draw_w", (r"(average|current)( socket)?( graphics)? package power ?\(w\)",), number),
    ("sm_clock_mhz", (r"sclk clock speed:?",), number),
)
_ROCM_SCALED: tuple[tuple[str, str, float], ...] = (
    ("memory_used_mb", r"vram total used memory \(b\)", 1 / BYTES_PER_MIB),
    ("memory_total_mb", r"vram total memory \(b\)", 1 / BYTES_PER_MIB),
    ("energy_mj", r"accumulated energy \(uj\)", 1e-3),
)


def rocm_sample(device: str, row: Mapping[str, object]) -> GpuSample:
    """Returns the sample of one card of rocm-smi (`card0`, `0`) from its headers and texts."""
    cells = {" ".join(key.lower().split()): value for key, value in row.items() if key}
    found: dict[str, Any] = {}
    for name, patterns, convert in _ROCM:
        found[name] = _first(convert(value) for pattern in patterns for value in _matching(cells, pattern))
    for name, pattern, factor in _ROCM_SCALED:
        plain = _first(number(value) for value in _matching(cells, pattern))
        found[name] = plain * factor if plain is not None else None
    return GpuSample(index=_whole(device.removeprefix("card")), **_drawn(found))


def _drawn(found: dict[str, Any]) -> dict[str, Any]:
    """The values without a power of 0: the second die of an MI250X has no sensor and says 0."""
    return found | {"power_draw_w": found["power_draw_w"] or None}


def _matching(cells: Mapping[str, object], pattern: str) -> Iterator[object]:
    return (value for key, value in cells.items() if re.fullmatch(pattern, key))


def _first(values: Iterator[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def parse_rocm_smi_json(text: str) -> list[GpuSample]:
    """Samples of `rocm-smi ... --json`: `{"card0": {header: text}, ...}`; warnings before it are skipped.

    Raises:
        ArtefactError: there is no such JSON in the text.
    """
    tree = _json(text)
    cards = (
        {key: row for key, row in tree.items() if re.fullmatch(r"card\d+", key)}
        if isinstance(tree, dict)
        else {}
    )
    if not cards:
        raise ArtefactError(f"not JSON of rocm-smi: {_start(text)!r}", "write it with `rocm-smi -a --json`")
    return [rocm_sample(key, row) for key, row in cards.items() if isinstance(row, dict)]


# --- amd-smi metric|static|list --json ---------------------------------------------------------------------

_AMD: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("utilization_gpu", ("usage.gfx_activity", "usage.gfx_usage")),
    ("utilization_memory", ("usage.umc_activity", "usage.mem_usage")),
    ("temperature", ("temperature.edge", "temperature.hotspot")),
    ("power_draw_w", ("power.socket_power", "power.current_socket_power", "power.average_socket_power")),
    ("sm_clock_mhz", ("clock.gfx_0.clk", "clock.gfx.clk")),
)
_AMD_MEMORY: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("memory_used_mb", ("mem_usage.used_vram",)),
    ("memory_total_mb", ("mem_usage.total_vram", "vram.size")),
)


def parse_amd_smi_json(text: str) -> list[GpuSample]:
    """Samples of `amd-smi metric|static|list --json`: a list or `{"gpu_data": [...]}`; leaves `{"value",
    "unit"}` or `"N/A"`.

    `MB` of amd-smi are MiB. Of a static or list document only index, uuid, name and total memory are there.

    Raises:
        ArtefactError: there is no such JSON in the text.
    """
    tree = _json(text)
    entries = tree.get("gpu_data") if isinstance(tree, dict) else tree
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and "gpu" in entry for entry in entries
    ):
        raise ArtefactError(f"not JSON of amd-smi: {_start(text)!r}", "write it with `amd-smi metric --json`")
    return [amd_sample(entry) for entry in entries]


def amd_sample(entry: Mapping[str, Any]) -> GpuSample:
    """Returns the sample of one GPU of `amd-smi metric|static|list --json`."""
    found: dict[str, Any] = {}
    for name, paths in _AMD:
        found[name] = _first(_leaf(entry, path)[0] for path in paths)
    for name, paths in _AMD_MEMORY:
        found[name] = _first(_mib(*_leaf(entry, path)) for path in paths)
    joules, _ = _leaf(entry, "energy.total_energy_consumption")
    found["energy_mj"] = joules * 1000 if joules is not None else None
    name = _walk(entry, "asic.market_name")
    return GpuSample(
        index=_whole(entry["gpu"]), uuid=_text(entry.get("uuid")), name=_text(name), **_drawn(found)
    )


def _mib(value: float | None, unit: str) -> float | None:
    factor = _MIB_PER_UNIT.get(unit.upper() or "MB")
    return value * factor if value is not None and factor is not None else None


def _walk(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _leaf(tree: Any, path: str) -> tuple[float | None, str]:
    leaf = _walk(tree, path)
    if isinstance(leaf, dict):
        return number(leaf.get("value")), str(leaf.get("unit") or "")
    return number(leaf), ""


def _json(text: str) -> Any:
    """The first JSON object or list that starts a line: tools print warnings before it."""
    for match in re.finditer(r"^\s*[\[{]", text, re.MULTILINE):
        try:
            return json.JSONDecoder().raw_decode(text, match.end() - 1)[0]
        except ValueError:
            continue
    return None


def _start(text: str) -> str:
    lines: Sequence[str] = text.strip().splitlines()
    return lines[0][:80] if lines else ""
