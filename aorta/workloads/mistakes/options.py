"""Options of the plain trainer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MistakeOptions:
    """One run of the trainer: a mistake, made or not, and the sizes."""

    mistake: str
    """Id in the catalogue; `healthy` for none."""
    fixed: bool
    output: Path
    """Folder of what was timed."""
    traces: Path | None = None
    """Folder of the traces; None: `output`."""
    device: str = "cpu"
    backend: str = "gloo"
    width: int = 128
    heads: int = 4
    layers: int = 4
    vocabulary: int = 1024
    length: int = 64
    batch: int = 8
    plain_steps: int = 20
    """Timed without a profiler, before it starts."""
    traced_steps: int = 4
    """0: no profiler runs."""
    stacks: bool = False
    """Record Python stacks."""
    shapes: bool = False
    """Record the shapes of tensors."""
    variant: str = ""
    """Another way of making the same mistake; `rank0_logging` has `items`, `often` and `writer`."""
    load_ms: float = 6.0
    """CPU time per sample of the slow loaders."""
    seed: int = 0

    def wrong(self, mistake: str) -> bool:
        """True where this run makes the mistake."""
        return self.mistake == mistake and not self.fixed
