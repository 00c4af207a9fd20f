"""Keeps the results of `mistakes_gpu.py`: the answers of the analysis, and the files in archives."""

from __future__ import annotations

import json
import lzma
import shutil
import tarfile
from pathlib import Path
from typing import Any

from benchmarks.mistakes_ranks import Run

PART_BYTES = 15 << 20
MOST_PARTS = 4


class Archives:
    """Archives of a limited size, as many as may be."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number, self.size = folder, 0, 0
        self.open: tarfile.TarFile | None = None
        self.left_out: list[str] = []

    def add(self, path: Path, name: str) -> None:
        """Add a file, or note that there is no room."""
        size = path.stat().st_size + 1024
        if self.open is None or self.size + size > PART_BYTES:
            if self.number == MOST_PARTS:
                self.left_out.append(name)
                return
            self.close()
            made = self.folder / f"mistakes_{self.number}.tar"
            self.open = tarfile.open(made, "w")  # noqa: SIM115
            self.number, self.size = self.number + 1, 0
        self.open.add(path, arcname=name)
        self.size += size

    def close(self) -> None:
        """End the open archive."""
        if self.open is not None:
            self.open.close()


def analysis_of(run: Run) -> dict[str, Any]:
    """Return the analysis of a run; empty without one."""
    for path in run.results.rglob("profiling_analysis.json"):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    return {}


def result(run: Run) -> dict[str, Any]:
    """Return the times of each rank, and the answers of the analysis."""
    ranks = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(run.results.glob("truth/*.json"))
    ]
    found = analysis_of(run)
    named = ("verdict", "profiler_weight", "profiler_overhead", "mistakes")
    return {"name": run.name, "ranks": ranks, **{key: found.get(key) for key in named}}


def said(run: Run) -> str:
    """One line on a run."""
    found = result(run)
    weight = (found["profiler_weight"] or {}).get("step_ms_without") or {}
    ids = [f"{item['id']} {item['gain']['value']:.2f}" for item in found["mistakes"] or []]
    plain = [f"{item['step_ms']:.1f}" for item in found["ranks"]]
    kind = (found["verdict"] or {}).get("kind")
    return f"plain {plain} without {weight.get('value')} {kind} mistakes {ids}"


def kept_files(results: Path) -> list[Path]:
    """The files of a run that are worth their bytes."""
    wanted = (".json", ".jsonl", ".csv", ".yaml", ".txt", ".out")
    found = [path for path in sorted(results.rglob("*")) if path.is_file() and path.suffix in wanted]
    return [path for path in found if "docs" not in path.relative_to(results).parts]


def packed(path: Path) -> Path:
    """The file as it is kept: large ones compressed."""
    if path.stat().st_size < 1 << 16:
        return path
    made = path.with_name(path.name + ".xz")
    with path.open("rb") as source, lzma.open(made, "wb", preset=6) as target:
        shutil.copyfileobj(source, target)
    path.unlink()
    return made
