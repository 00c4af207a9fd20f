"""Known mistakes in real runs of a plain trainer, wrong and fixed, and whether the analysis names them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aorta.errors import AortaError

ON_A_CPU = ("loader_serial", "loader_few_workers", "needless_checkpointing", "anomaly", "recompile")
"""Mistakes that a trace of one rank on a CPU can show: the others need kernels, or several ranks."""
ON_RANKS = (
    "loader_rank1", "loader_respawn", "ckpt_stall", "gc_pauses", "rank0_logging", "rank0_evaluation",
)  # fmt: skip
"""Mistakes that two ranks on a CPU show in the step records of `aorta profile`."""
ON_A_GPU = (
    *ON_A_CPU, "loader_respawn", "foreach_off", "empty_cache", "item_sync", "pageable_copy", "fp32_matmul",
    "math_attention",
)  # fmt: skip
_CPU_SIZES = {"width": 32, "layers": 3, "length": 64, "batch": 4, "plain-steps": 8, "traced-steps": 5}
_GPU_SIZES = {"width": 1024, "layers": 10, "length": 512, "batch": 16, "plain-steps": 40}
_RECORDED = {"width": 32, "layers": 3, "length": 64, "batch": 4, "plain-steps": 80, "traced-steps": 0}
_OF_ONE: dict[str, dict[str, object]] = {
    "loader_rank1": {"load-ms": 20},
    "ckpt_stall": {"width": 256, "layers": 6, "length": 16, "batch": 2},
    "rank0_logging": {"variant": "writer"},
}
"""Sizes at which a mistake on a CPU costs something."""
_SECONDS = 300

Named = Callable[[Sequence[Path]], list[str]]
"""The mistakes that the analysis names in traces."""


@dataclass(frozen=True, slots=True)
class MistakeRun:
    """One run, and the mistakes that the analysis named."""

    mistake: str
    fixed: bool
    step_ms: float | None
    """Mean step. None if the run failed."""
    named: list[str]

    @property
    def right(self) -> bool:
        """True if the mistake is named where it is made, and only there."""
        return self.step_ms is not None and (self.mistake in self.named) != self.fixed


def run_mistakes(
    folder: Path, named: Named, tell: Callable[[MistakeRun], None], *, gpu: bool = False
) -> list[MistakeRun]:
    """Returns a cell per mistake, wrong and fixed.

    Args:
        folder: of the runs.
        named: analyses traces.
        tell: hears of each cell.
        gpu: runs on a GPU, and all mistakes that one can show.
    """
    cells = []
    for mistake in ON_A_GPU if gpu else (*ON_A_CPU, *ON_RANKS):
        for fixed in (False, True):
            output = folder.resolve() / f"{mistake}{'_fixed' if fixed else ''}"
            cells.append(_cell(mistake, fixed, output, named, gpu=gpu))
            tell(cells[-1])
    return cells


def _cell(mistake: str, fixed: bool, output: Path, named: Named, *, gpu: bool) -> MistakeRun:
    recorded = not gpu and mistake in ON_RANKS
    sizes = _GPU_SIZES if gpu else (_RECORDED | _OF_ONE.get(mistake, {}) if recorded else _CPU_SIZES)
    trainer = ["-m", "aorta.workloads.mistakes.main", "--mistake", mistake]
    trainer += ["--output", str(output), "--device", "cuda" if gpu else "cpu"]
    trainer += [word for key, value in sizes.items() for word in (f"--{key}", str(value))]
    trainer += ["--fixed"] if fixed else []
    profile = ["-m", "aorta", "profile", "--nodes", "1", "--procs-per-node", "2", "--"] if recorded else []
    try:
        output.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [sys.executable, *profile, *trainer],
            cwd=output,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        (output / "log.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
        truth = json.loads((output / "truth_rank0.json").read_text(encoding="utf-8"))
        found = _recorded(output) if recorded else named([output / "rank0.pt.trace.json"])
        return MistakeRun(mistake, fixed, float(truth["step_ms"]), found)
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired, AortaError):
        return MistakeRun(mistake, fixed, None, [])


def _recorded(output: Path) -> list[str]:
    """The mistakes in the analysis that `aorta profile` wrote.

    Raises:
        ValueError: it wrote none, or another one ran in the same folder before.
    """
    (path,) = output.rglob("profiling_analysis.json")
    return [item["id"] for item in json.loads(path.read_text(encoding="utf-8"))["mistakes"]]


def table(cells: Sequence[MistakeRun]) -> str:
    """The cells as lines, and how many are right."""
    lines = []
    for cell in cells:
        what = f"{cell.mistake} {'fixed' if cell.fixed else 'wrong'}"
        step = "run failed" if cell.step_ms is None else f"{cell.step_ms:.1f} ms"
        said = ", ".join(cell.named) or "nothing"
        lines.append(f"{what:32s} {step:>12s}  {'right' if cell.right else 'WRONG'}: named {said}")
    right = sum(cell.right for cell in cells)
    return "\n".join([*lines, f"{right} of {len(cells)} right"])
