"""GPU samples through `amdsmi`, the Python library of ROCm."""

from __future__ import annotations

import contextlib
from typing import Any

from aorta.artefacts.samples import number
from aorta.monitors.devices import Device, same_id
from aorta.monitors.vendor_library import Library, Quantity, Values, Way
from aorta.units import BYTES_PER_MIB

_AMD_NEVER = (2, 3, 10)  # AMDSMI_STATUS_NOT_SUPPORTED, _NOT_YET_IMPLEMENTED, _NO_PERM


def amdsmi_library(smi: Any) -> Library:
    """The `amdsmi` module of ROCm."""
    return Library(
        name="amdsmi",
        vendor="amd",
        error=smi.AmdSmiException,
        unsupported=lambda error: getattr(error, "get_error_code", lambda: None)() in _AMD_NEVER,
        start=smi.amdsmi_init,
        stop=smi.amdsmi_shut_down,
        devices=lambda: _amd_devices(smi),
        quantities=lambda device: _amd_quantities(smi, smi.amdsmi_get_processor_handles()[device.index]),
    )


def _amd_devices(smi: Any) -> list[Device]:
    found = []
    for index, handle in enumerate(smi.amdsmi_get_processor_handles()):
        asic = smi.amdsmi_get_gpu_asic_info(handle)
        serial = str(asic.get("asic_serial") or "")
        aliases = (serial,) if same_id(serial) not in ("", "n/a") else ()
        total = None
        with contextlib.suppress(smi.AmdSmiException):
            total = number(smi.amdsmi_get_gpu_vram_usage(handle).get("vram_total"))  # its MB are MiB
        found.append(
            Device(
                index,
                smi.amdsmi_get_gpu_device_uuid(handle),
                asic.get("market_name"),
                aliases,
                memory_total_bytes=round(total * BYTES_PER_MIB) if total is not None else None,
            )
        )
    return found


def _amd_quantities(smi: Any, handle: Any) -> list[Quantity]:
    def activity() -> Values:
        busy = smi.amdsmi_get_gpu_activity(handle)
        return {
            "utilization_gpu": number(busy.get("gfx_activity")),
            "utilization_memory": number(busy.get("umc_activity")),
        }

    def memory() -> Values:  # amdsmi's MB are MiB
        vram = smi.amdsmi_get_gpu_vram_usage(handle)
        return {
            "memory_used_mb": number(vram.get("vram_used")),
            "memory_total_mb": number(vram.get("vram_total")),
        }

    def power() -> Values:
        info = smi.amdsmi_get_power_info(handle)
        keys = ("socket_power", "current_socket_power", "average_socket_power")
        # The second die of an MI250X has no sensor of its own and says 0; no die draws nothing.
        return {"power_draw_w": next((w for w in (number(info.get(key)) for key in keys) if w), None)}

    def clock() -> Values:
        info = smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)
        return {"sm_clock_mhz": number(info.get("clk", info.get("cur_clk")))}

    def energy() -> Values:  # the counter's step is in µJ
        info = smi.amdsmi_get_energy_count(handle)
        ticks, step = (
            number(info.get("energy_accumulator", info.get("power"))),
            number(info.get("counter_resolution")),
        )
        return {"energy_mj": ticks * step * 1e-3 if ticks is not None and step is not None else None}

    def temperature(sensor: Any) -> Way:
        return lambda: {
            "temperature": number(
                smi.amdsmi_get_temp_metric(handle, sensor, smi.AmdSmiTemperatureMetric.CURRENT)
            )
        }

    sensors = smi.AmdSmiTemperatureType
    temperatures = [temperature(sensors.EDGE), temperature(sensors.HOTSPOT)]
    return [Quantity(ways) for ways in ([activity], [memory], temperatures, [power], [clock], [energy])]
