"""torch.profiler around the loop, by the `profiling` block."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from aorta.artefacts import names
from aorta.artefacts.step_names import Phase
from aorta.config import schema
from aorta.errors import ConfigError

log = logging.getLogger(__name__)

_OPERATORS_NAMED = 5


def check_profiling(configuration: schema.Config) -> None:
    """Refuse what would record nothing.

    Raises:
        ConfigError: two tools would trace CUDA in one process, no trace format is chosen, or the run ends
            before the first recorded step.
    """
    config = configuration.profiling
    if not config.enabled:
        return
    if configuration.capture.kernel_interval:
        raise ConfigError(
            "profiling.enabled is true and capture.kernel_interval is set: both use torch.profiler, and a"
            " process can run only one",
            "set profiling.enabled=false or capture.kernel_interval=0",
        )
    tool = os.environ.get(names.PROFILER, "none")
    if tool in ("nsys", "rocprofv3"):
        raise ConfigError(
            f"profiling.enabled is true, but this process runs under {tool}: only one can trace the GPU",
            "set profiling.enabled=false or capture.profiler=none",
        )
    if not config.tensorboard and not config.chrome_trace:
        raise ConfigError(
            "profiling.enabled is true, but profiling.tensorboard and profiling.chrome_trace are false",
            "set profiling.tensorboard=true or profiling.chrome_trace=true",
        )
    first = first_recorded(configuration)
    limit = configuration.training.max_steps
    if 0 < limit <= first:
        raise ConfigError(
            f"profiling.enabled is true and training.max_steps is {limit}, but the first recorded step"
            f" would be number {first}, counted from 0: profiling.wait and profiling.warmup start after the"
            " capture.warmup_steps",
            f"set training.max_steps to {first + configuration.profiling.active} or more",
        )


def first_recorded(configuration: schema.Config) -> int:
    """The global step, from 0, at which torch.profiler begins to record."""
    config = configuration.profiling
    return configuration.capture.warmup_steps + config.wait + config.warmup


class LoopProfiler:
    """Follows the loop; does nothing where profiling is off.

    The schedule of the `profiling` block begins behind the run's own warm-up: a trace is of steps like those
    that the averages are of.
    """

    def __init__(self, configuration: schema.Config, folder: Path) -> None:
        config = configuration.profiling
        self._config = config
        self._first = first_recorded(configuration)
        self._folder = folder
        self._step = 0
        self._cycle = 0
        self._profile: profile | None = None
        self._schedule: Callable[[int], ProfilerAction] | None = None
        if config.enabled:
            self._schedule = schedule(
                skip_first=configuration.capture.warmup_steps,
                wait=config.wait,
                warmup=config.warmup,
                active=config.active,
                repeat=config.repeat,
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        """The profiler around the whole loop."""
        if self._schedule is None:
            yield
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        with profile(
            activities=activities,
            schedule=self._schedule,
            on_trace_ready=self._save,
            record_shapes=self._config.record_shapes,
            profile_memory=self._config.profile_memory,
            with_stack=self._config.with_stack,
            with_flops=self._config.with_flops,
        ) as self._profile:
            yield
        if self._step <= self._first:
            log.warning(
                "torch.profiler recorded nothing: it begins with step %d, and the run had %d steps",
                self._first,
                self._step,
            )

    def phase(self) -> Phase | None:
        """`profiler` for a step that it slows down, else None."""
        if self._schedule is None or self._schedule(self._step) is ProfilerAction.NONE:
            return None
        return "profiler"

    def _recorded(self, step: int) -> bool:
        assert self._schedule is not None
        return step >= 0 and self._schedule(step) in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)

    def after_step(self) -> None:
        """Tell it that a step has ended; traces are written here, between steps."""
        self._step += 1
        if self._profile is not None:
            self._profile.step()

    def _save(self, finished: profile) -> None:
        """One trace a cycle. TensorBoard finds it by its `.pt.trace.json`; a trace can be exported only
        once.
        """
        if not self._recorded(self._step - 1):
            return  # the run ended right where a recording began: there is no step in it
        self._folder.mkdir(parents=True, exist_ok=True)
        board = self._folder / f"{self._folder.name}.{self._cycle}.pt.trace.json"
        name = Path(self._config.trace_filename)
        chrome = self._folder / (f"{name.stem}_{self._cycle}{name.suffix}" if self._cycle else name.name)
        written = board if self._config.tensorboard else chrome
        finished.export_chrome_trace(str(written))
        if self._config.tensorboard and self._config.chrome_trace:
            shutil.copyfile(board, chrome)
        log.info("trace: %s", written)
        if self._config.with_flops:
            log.info("floating-point operations in this trace, as torch estimates: %s", _operations(finished))
        self._cycle += 1


def _operations(finished: profile) -> str:
    """The operators with the most of them; traces do not hold their number."""
    counted = sorted(((item.flops, item.key) for item in finished.key_averages() if item.flops), reverse=True)
    if not counted:
        return "none, because torch has no formula for these operators"
    named = ", ".join(f"{name} {count / 1e9:.6g} G" for count, name in counted[:_OPERATORS_NAMED])
    return f"{sum(count for count, _ in counted) / 1e9:.6g} G ({named})"
