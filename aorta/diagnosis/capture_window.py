"""The steps that a profiler recorded, and the cost of recording them and of timing steps part by part."""

from __future__ import annotations

from collections.abc import Callable

from aorta.artefacts.measured import DetailCost
from aorta.artefacts.traced import ProfilerOverhead
from aorta.config.schema import Config, ProfilingConfig
from aorta.diagnosis.observation import ObservedHost
from aorta.metrics.profiler_overhead import profiler_overhead
from aorta.readers.run import RunData
from aorta.readers.run_identity import uses_cuda

WARN_ABOVE = 1.1
"""A note is added if profiled or detailed steps take more than this many times as long as the other steps."""


IDLE_SHOWS = 0.05
"""A note is added if the GPU is idle for more than this share of compute's windows."""


def window_note(host: ObservedHost, *, cuda: bool) -> list[str]:
    """Returns that compute is known by events, and what of it kernels were. Empty if nothing is left open.

    Args:
        host: what was measured beside the windows.
        cuda: the ranks compute on GPUs.
    """
    kernels = host.launches
    if not cuda or (kernels is None and host.driver_busy_pct is not None):
        return []
    gaps = "gaps in which the GPU waits for host work count as compute"
    if kernels is None:
        return [f"compute is the time between events: {gaps}; capture.kernel_interval=20 measures them"]
    if kernels.idle_ms <= IDLE_SHOWS * kernels.windows_ms:
        return []
    return [
        f"compute is the time between events, {kernels.windows_ms:.1f} ms per step: {gaps}; in the steps "
        f"that were recorded kernel by kernel, kernels ran for {kernels.kernels_ms:.1f} ms"
    ]


def overhead_of(data: RunData) -> ProfilerOverhead | None:
    """The overhead of the run's profiler; None where none recorded it, or nothing says which one did.

    nsys records `capture.steps` from `capture.start_step` where the trainer here tells it to. So does a
    rocprofv3 that listens to the ranks; others record the whole run. torch.profiler records the steps of the
    `profiling` block.
    """
    manifest, config = data.account.manifest, data.account.config
    if manifest is None or config is None or not data.records.by_rank:
        return None
    tools = {info.profiler.resolved for info in manifest.nodes}
    if "nsys" in tools and (not uses_cuda(data) or manifest.plan.workload is None):
        return None
    captured: Callable[[int], bool] | None = None
    if "nsys" in tools:
        captured = _by_range(config)
    elif "rocprofv3" in tools:
        ranged = all(info.profiler.ranged for info in manifest.nodes)
        captured = _by_range(config) if ranged else _everything
    elif config.profiling.enabled and manifest.plan.workload is not None:
        captured = _by_torch(config.profiling, config.capture.warmup_steps)
    return None if captured is None else profiler_overhead(data.records.by_rank, captured)


def _by_range(config: Config) -> Callable[[int], bool]:
    first, count = config.capture.start_step, config.capture.steps
    return lambda step: first <= step < first + count


def _by_torch(config: ProfilingConfig, skipped: int) -> Callable[[int], bool]:
    """Returns a test that is True for steps that torch.profiler's schedule records. After the run's warm-up
    the schedule waits, warms up and records, again and again.
    """
    cycle = config.wait + config.warmup + config.active

    def captured(step: int) -> bool:
        number, place = divmod(step - skipped, cycle)
        within = number >= 0 and (config.repeat == 0 or number < config.repeat)
        return within and place >= config.wait + config.warmup

    return captured


def _everything(step: int) -> bool:  # noqa: ARG001 (any step)
    return True


def overhead_note(found: ProfilerOverhead | None) -> list[str]:
    """A warning where the profiler changed the step."""
    if found is None:
        return []
    if found.ratio is None:
        return [f"the profiler's cost could not be measured: {found.reason}"]
    if found.ratio <= WARN_ABOVE:
        return []
    return [
        f"warning: steps inside the profiler's capture take {found.ratio:.2f} times as long as steps outside "
        f"({found.inside_ms:.1f} and {found.outside_ms:.1f} ms): shares from the trace describe the slower "
        "step"
    ]


def detail_note(found: DetailCost | None) -> list[str]:
    """A warning where timing the parts of a step changed it by more than its noise."""
    if found is None:
        return []
    if found.ratio is None:
        return [f"the cost of timing steps part by part could not be measured: {found.reason}"]
    elsewhere = _slow_elsewhere(found)
    noise = found.ratio_interval is not None and found.ratio_interval.low <= 1.0
    if found.ratio <= WARN_ABOVE or noise:
        return elsewhere
    return [
        *elsewhere,
        f"warning: detailed steps take {found.ratio:.2f} times as long as other steps "
        f"({found.detailed_ms:.1f} and {found.whole_ms:.1f} ms): parts, findings and predictions describe "
        "the longer steps, and their host work includes the cost of the timing",
    ]


def _slow_elsewhere(found: DetailCost) -> list[str]:
    """A warning where the detailed steps are not like the others: blocks can miss what comes now and then."""
    detailed, whole = found.detailed_mean_ms, found.whole_mean_ms
    if not detailed or whole is None or whole <= WARN_ABOVE * detailed:
        return []
    return [
        f"warning: steps timed as a whole take {whole / detailed:.2f} times as long on average as detailed "
        f"steps ({whole:.1f} and {detailed:.1f} ms): findings do not cover what makes them slow; lower "
        "capture.detail_interval to time more of them in detail"
    ]
