"""GPU samples through a vendor's Python library in this process, such as NVML (nvidia-ml-py).

The library is a parameter, so that tests can put their own in its place. A quantity has one or more ways to
be read: the first one that the driver supports is used from then on, and one that supports none stays empty
without being asked again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aorta.artefacts.samples import GpuSample
from aorta.monitors.devices import Device, Reading, SourceError, Vendor, choose
from aorta.monitors.gpm import Gpm
from aorta.monitors.gpm import available as gpm_available
from aorta.units import NS_PER_S

Values = dict[str, Any]
Way = Callable[[], Values]

_RETRY_FIRST_S = 5
_RETRY_MOST_S = 60
_ENERGY_EVERY_S = 60  # on an H100 this call keeps a core busy for 4 ms; all the others together take 0.2 ms


@dataclass(slots=True)
class Quantity:
    """Something to read of one GPU, and the ways to read it, best first; unsupported ones are removed."""

    ways: list[Way]
    every_s: float = 0
    """Not read more often than this; in between it is empty."""
    next_ns: int = 0


@dataclass(slots=True)
class _Gpu:
    gpu_id: int
    device: Device
    quantities: list[Quantity]


@dataclass(slots=True)
class Library:
    """Functions of one vendor's library. All of them may raise `error`."""

    name: str
    vendor: Vendor
    error: type[Exception]
    unsupported: Callable[[Exception], bool]
    """Returns True if the error means that this GPU will never give the quantity."""
    start: Callable[[], None]
    stop: Callable[[], None]
    devices: Callable[[], list[Device]]
    """Every GPU of the node."""
    quantities: Callable[[Device], list[Quantity]]
    """The quantities that can be read of a GPU, or of a MIG instance."""
    lost: list[str] = field(default_factory=list)
    """Why GPUs of the node do not answer, as of the last listing."""

    def list_devices(self) -> list[Device]:
        """Every GPU of the node, by a library that is not running.

        Raises:
            SourceError: no driver, or it fails.
        """
        try:
            self.start()
            try:
                return self.devices()
            finally:
                self.stop()
        except self.error as error:
            raise SourceError(f"{self.name}: {error}") from error


@dataclass(slots=True)
class LibrarySource:
    """Reads every GPU of the job at each call. After a failure the library is started again, at growing
    intervals. `wanted` and `environment` as in `choose`.
    """

    library: Library
    wanted: Sequence[str]
    environment: Mapping[str, str]
    errors: dict[str, int] = field(default_factory=dict)
    _gpus: list[_Gpu] = field(default_factory=list)
    _retry_s: int = _RETRY_FIRST_S
    _retry_at_ns: int = 0

    @property
    def name(self) -> str:
        """The library's name."""
        return self.library.name

    def open(self) -> LibrarySource:
        """Start the library and find the job's GPUs.

        Raises:
            SourceError: no driver, no GPU, or not the job's.
        """
        try:
            self.library.start()
        except self.library.error as error:
            raise SourceError(f"{self.name}: {error}") from error
        try:
            self._find()
        except (SourceError, self.library.error) as error:
            self.close()
            raise SourceError(f"{self.name}: {error}") from error
        return self

    def sample(self) -> list[Reading]:
        """One reading per GPU; an empty one where it failed."""
        failed = False
        readings = []
        for gpu in self._gpus:
            wall_ns, mono_ns = time.time_ns(), time.monotonic_ns()
            values: Values = {}
            try:
                for quantity in gpu.quantities:
                    values.update(self._read(quantity, mono_ns))
            except self.library.error as error:
                values, failed = {}, True
                self._count(str(error))
            sample = GpuSample(index=gpu.device.index, uuid=gpu.device.uuid, name=gpu.device.name, **values)
            readings.append(Reading(gpu.gpu_id, sample, wall_ns, mono_ns))
        if failed:
            self._recover()
        else:
            self._retry_s = _RETRY_FIRST_S
        return readings

    def close(self) -> None:
        """Stop the library; one that is lost already is left alone."""
        try:
            self.library.stop()
        except self.library.error as error:
            self._count(str(error))

    def _read(self, quantity: Quantity, mono_ns: int) -> Values:
        if mono_ns < quantity.next_ns:
            return {}
        quantity.next_ns = mono_ns + round(quantity.every_s * NS_PER_S)
        while quantity.ways:
            try:
                return quantity.ways[0]()
            except self.library.error as error:
                if not self.library.unsupported(error):
                    raise
                quantity.ways.pop(0)
        return {}

    def _find(self) -> None:
        library = self.library
        devices = library.devices()
        for reason in library.lost:
            self._count(reason)
        if not self._gpus:
            self._gpus = [
                _Gpu(i, device, library.quantities(device)) for i, device in self._chosen(library, devices)
            ]
            return
        # A GPU keeps its number: one that is lost since goes on as empty readings.
        answering = {device.identifier: device for _, device in self._chosen(library, devices)}
        for gpu in self._gpus:
            device = answering.get(gpu.device.identifier)
            gpu.quantities = library.quantities(device) if device is not None else []

    def _chosen(self, library: Library, devices: Sequence[Device]) -> list[tuple[int, Device]]:
        """The job's GPUs by number; of those that were asked for by name the ones that answer."""
        found = []
        if not library.lost or not self.wanted:
            return list(enumerate(choose(devices, self.wanted, self.environment, library.vendor)))
        for place, identifier in enumerate(self.wanted):
            try:
                found.append((place, choose(devices, [identifier], self.environment, library.vendor)[0]))
            except SourceError as error:
                self._count(str(error))
        if not found:
            raise SourceError(f"none of the job's GPUs answers: {'; '.join(library.lost)}")
        return found

    def _recover(self) -> None:
        """After a driver reset handles are void: get new ones, not more often than the back-off allows."""
        now = time.monotonic_ns()
        if now < self._retry_at_ns:
            return
        self._retry_at_ns = now + self._retry_s * NS_PER_S
        self._retry_s = min(2 * self._retry_s, _RETRY_MOST_S)
        self.close()
        try:
            self.library.start()
            self._find()
        except (SourceError, self.library.error) as error:
            self._count(str(error))  # the old list stays: its GPUs go on as empty readings

    def _count(self, reason: str) -> None:
        self.errors[reason] = self.errors.get(reason, 0) + 1


# --- NVML --------------------------------------------------------------------------------------------------

_NVML_NEVER = (
    "NotSupported",
    "NoPermission",
    "FunctionNotFound",
    "InvalidArgument",
    "ArgumentVersionMismatch",
)


def nvml_library(nvml: Any) -> Library:
    """NVML through a `pynvml` module."""
    lost: list[str] = []
    never = tuple(
        getattr(nvml, f"NVMLError_{name}") for name in _NVML_NEVER if hasattr(nvml, f"NVMLError_{name}")
    )
    return Library(
        name="nvml",
        vendor="nvidia",
        error=nvml.NVMLError,
        unsupported=lambda error: isinstance(error, never),
        start=nvml.nvmlInit,
        stop=nvml.nvmlShutdown,
        devices=lambda: _nvml_devices(nvml, lost),
        lost=lost,
        quantities=lambda device: _nvml_quantities(
            nvml, nvml.nvmlDeviceGetHandleByUUID((device.uuid or "").encode())
        ),
    )


def _nvml_devices(nvml: Any, lost: list[str]) -> list[Device]:
    """The GPUs in PCI order, those that are divided with their instances; why others do not answer is added
    to `lost`.

    Raises:
        nvml.NVMLError: none of them answers.
    """
    found = []
    lost.clear()
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            parts = [_nvml_device(nvml, part, index) for part in _nvml_instances(nvml, handle)]
            found.append(replace(_nvml_device(nvml, handle, index), parts=tuple(parts)))
        except nvml.NVMLError as error:
            # One that fell off the bus costs none of the others.
            failure = error
            lost.append(f"GPU {index} does not answer: {error}")
    if lost and not found:
        raise failure
    return found


def _nvml_device(nvml: Any, handle: Any, index: int) -> Device:
    total = None
    with contextlib.suppress(nvml.NVMLError):
        total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    return Device(index, _text(uuid), _text(name), memory_total_bytes=total)


def _nvml_instances(nvml: Any, handle: Any) -> list[Any]:
    """Handles of a GPU's MIG instances; none where it is not, or cannot be, divided."""
    parts: list[Any] = []
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with contextlib.suppress(nvml.NVMLError):  # a slot without an instance
                    parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
    return parts


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)  # bindings before 12 return bytes


def _nvml_quantities(nvml: Any, handle: Any) -> list[Quantity]:
    """Every quantity of NVML that has a column, newest function first; those that this binding lacks are left
    out.
    """

    def utilization() -> Values:
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        return {"utilization_gpu": rates.gpu, "utilization_memory": rates.memory}

    def memory_v2() -> Values:  # version 2 does not count what the driver reserves as used
        return memory(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))

    def memory_v1() -> Values:
        return memory(nvml.nvmlDeviceGetMemoryInfo(handle))

    def memory(info: Any) -> Values:
        return {"memory_used_mb": info.used / (1 << 20), "memory_total_mb": info.total / (1 << 20)}

    def call(column: str, function: str, *arguments: Any, factor: float = 1) -> list[Way]:
        found = getattr(nvml, function, None)
        return [lambda: {column: found(handle, *arguments) * factor}] if found is not None else []

    reasons = call("clock_event_reasons", "nvmlDeviceGetCurrentClocksEventReasons")
    parts = [Gpm(nvml, handle).read] if gpm_available(nvml) else []
    return [
        Quantity([utilization]),
        Quantity([memory_v2, memory_v1] if hasattr(nvml, "nvmlMemory_v2") else [memory_v1]),
        Quantity(call("temperature", "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)),
        Quantity(call("power_draw_w", "nvmlDeviceGetPowerUsage", factor=1e-3)),
        Quantity(call("sm_clock_mhz", "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)),
        Quantity(call("energy_mj", "nvmlDeviceGetTotalEnergyConsumption"), _ENERGY_EVERY_S),
        Quantity([*parts]),
        Quantity(reasons + call("clock_event_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons")),
    ]
