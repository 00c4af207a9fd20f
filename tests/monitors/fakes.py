"""Stand-ins for the vendors' Python libraries: modules as objects, with errors on demand."""

# ruff: noqa: N801, N815, N818 - the names are the vendors'
from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


class NVMLError_NotFound(NVMLError):
    pass


class FakeNvml:
    """`pynvml` with GPUs (uuid, name) by index; `mig` are instances of the last one, in slots 0, 2, 4, ...

    `broken[function]` is raised by it; `calls` counts calls.
    """

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    nvmlMemory_v2 = 33554472

    def __init__(self, *gpus: tuple[str, str], mig: tuple[str, ...] = ()) -> None:
        self.gpus = gpus
        self.mig = mig
        self.broken: dict[str, NVMLError] = {}
        self.calls: dict[str, int] = {}
        self.running = False
        self.busy = 0

    def _call(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if name in self.broken:
            raise self.broken[name]

    def nvmlInit(self) -> None:
        self._call("nvmlInit")
        self.running = True

    def nvmlShutdown(self) -> None:
        self._call("nvmlShutdown")
        self.running = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return self.gpus[index][0]

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:
        if uuid.decode() not in (*self.mig, *dict(self.gpus)):
            raise NVMLError_NotFound("Not Found")
        return uuid.decode()

    def nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int]:
        if not self.mig or handle != self.gpus[-1][0]:
            raise NVMLError_NotSupported("Not Supported")
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 2 * len(self.mig)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index % 2:
            raise NVMLError_NotFound("Not Found")
        return self.mig[index // 2]

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return dict(self.gpus).get(handle, "MIG 1g.10gb").encode()

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        self._call("utilization")
        if handle in self.mig:
            raise NVMLError_NotSupported("Not Supported")
        return SimpleNamespace(gpu=self.busy, memory=3)

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:
        self._call("memory_v1" if version is None else "memory_v2")
        return SimpleNamespace(used=(9 if version is None else 2) << 20, total=64 << 20)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        self._call("temperature")
        return 41

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        self._call("power")
        return 83_527

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        self._call("clock")
        return 1980

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        self._call("energy")
        return 123_456

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        self._call("event_reasons")
        return 1

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        self._call("throttle_reasons")
        return 8


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, code: int) -> None:
        super().__init__(f"Error code: {code}")
        self.code = code

    def get_error_code(self) -> int:
        return self.code


class FakeAmdsmi:
    """`amdsmi` with two GPUs; the second one has no sensors but the hot spot's."""

    AmdSmiException = AmdSmiException
    AmdSmiClkType = SimpleNamespace(GFX="gfx")
    AmdSmiTemperatureType = SimpleNamespace(EDGE="edge", HOTSPOT="hotspot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def amdsmi_init(self) -> None:
        pass

    def amdsmi_shut_down(self) -> None:
        pass

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [0, 1]

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, str]:
        return {"market_name": "Instinct MI300X", "asic_serial": f"0xAB0{handle}"}

    def amdsmi_get_gpu_device_uuid(self, handle: int) -> str:
        return f"{handle}ef74a0-0000-1000-808f-7e20764e2714"

    def amdsmi_get_gpu_activity(self, handle: int) -> dict[str, object]:
        return {"gfx_activity": 0 if handle == 0 else "N/A", "umc_activity": 4, "mm_activity": "N/A"}

    def amdsmi_get_gpu_vram_usage(self, handle: int) -> dict[str, int]:
        return {"vram_total": 196592, "vram_used": 284}

    def amdsmi_get_power_info(self, handle: int) -> dict[str, object]:
        if handle == 1:
            raise AmdSmiLibraryException(2)
        return {"average_socket_power": "N/A", "current_socket_power": 140}

    def amdsmi_get_clock_info(self, handle: int, kind: str) -> dict[str, int]:
        return {"clk": 132} if handle == 0 else {"cur_clk": 133}

    def amdsmi_get_energy_count(self, handle: int) -> dict[str, float]:
        return {"energy_accumulator": 1000, "counter_resolution": 15.3}

    def amdsmi_get_temp_metric(self, handle: int, sensor: str, metric: str) -> int:
        if (handle, sensor) == (1, "edge"):
            raise AmdSmiLibraryException(2)
        return 38 if sensor == "edge" else 51
