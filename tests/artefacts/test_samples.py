"""Vendors' GPU tools, as texts that they print (shortened), to canonical samples."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.artefacts.samples import (
    number,
    parse_amd_smi_json,
    parse_nvidia_smi_csv,
    parse_rocm_smi_json,
)
from aorta.errors import ArtefactError

ABSENT = [
    "[N/A]",
    "N/A",
    "[Not Supported]",
    "[Insufficient Permissions]",
    "[Requested functionality has been deprecated]",
    "[Unknown Error]",
    "",
    "N/A (Secondary die)",
]

H100 = (
    "timestamp, uuid, name, utilization.gpu [%], utilization.memory [%], memory.used [MiB], "
    "memory.total [MiB], temperature.gpu, power.draw [W], clocks.current.sm [MHz], "
    "clocks_event_reasons.active\n"
    "2026/01/02 03:04:05.678, GPU-5e5e5b13, NVIDIA H100 80GB HBM3, 97 %, 32 %, 1013 MiB, "
    "81559 MiB, 57, 699.74 W, 1440 MHz, 0x0000000000000004\n"
)


def test_every_column_of_nvidia_smi_without_its_unit():
    (gpu,) = parse_nvidia_smi_csv(H100).samples
    assert (gpu.uuid, gpu.name, gpu.timestamp) == (
        "GPU-5e5e5b13",
        "NVIDIA H100 80GB HBM3",
        "2026/01/02 03:04:05.678",
    )
    assert (gpu.utilization_gpu, gpu.utilization_memory) == (97, 32)
    assert (gpu.memory_used_mb, gpu.memory_total_mb) == (1013, 81559)
    assert (gpu.temperature, gpu.power_draw_w, gpu.sm_clock_mhz, gpu.clock_event_reasons) == (
        57,
        699.74,
        1440,
        4,
    )
    assert gpu.energy_mj is None  # nvidia-smi has no such column


def test_a_utilisation_that_a_virtual_gpu_does_not_have_is_absent():
    text = "utilization.gpu [%], memory.total [MiB], name\n[N/A], 24576, NVIDIA H100L-2-24C\n"
    (gpu,) = parse_nvidia_smi_csv(text).samples
    assert (gpu.utilization_gpu, gpu.memory_total_mb, gpu.name) == (None, 24576, "NVIDIA H100L-2-24C")


def test_a_utilisation_of_zero_stays_zero():
    text = "utilization.gpu [%], memory.total [MiB], name\n0, 24576, NVIDIA H100L-2-24C\n"
    (gpu,) = parse_nvidia_smi_csv(text).samples
    assert gpu.utilization_gpu == 0
    assert gpu.utilization_gpu is not None


@pytest.mark.parametrize("absent", ABSENT)
def test_each_way_of_saying_absent_is_none_in_each_column(absent):
    header = (
        "uuid, name, utilization.gpu [%], memory.used [MiB], power.draw [W], clocks_throttle_reasons.active"
    )
    (gpu,) = parse_nvidia_smi_csv(f"{header}\nGPU-1" + f", {absent}" * 5 + "\n").samples
    found = (gpu.name, gpu.utilization_gpu, gpu.memory_used_mb, gpu.power_draw_w, gpu.clock_event_reasons)
    assert found == (None,) * 5


def test_nvidia_smi_names_of_older_drivers():
    (gpu,) = parse_nvidia_smi_csv(
        "gpu_uuid, gpu_name, clocks.sm [MHz], clocks_throttle_reasons.active\nG, N, 9 MHz, 0x01\n"
    ).samples
    assert (gpu.uuid, gpu.name, gpu.sm_clock_mhz, gpu.clock_event_reasons) == ("G", "N", 9, 1)


def test_bad_lines_are_counted_by_number_and_repeated_headers_are_not_bad():
    header = "uuid, utilization.gpu [%]\n"
    text = (
        header
        + "GPU-1, 5 %\nGPU-1, 6\x20%, 7\nUnable to determine the device handle\n"
        + header
        + "\nGPU-1, 8 %\n"
    )
    parsed = parse_nvidia_smi_csv(text)
    assert [gpu.utilization_gpu for gpu in parsed.samples] == [5, 8]
    assert parsed.bad_lines == [3, 4]


@pytest.mark.parametrize("text", ["", "No devices were found\n", '{"card0": {}}'])
def test_what_is_not_nvidia_smi_is_refused_with_its_first_line(text):
    with pytest.raises(ArtefactError, match="not CSV of nvidia-smi"):
        parse_nvidia_smi_csv(text)


MIB = 1 << 20
OLD_CARD = {
    "Unique ID": "0xab83d2ffef0d3cdf",
    "Card series": "Instinct MI250X",
    "GPU use (%)": "12",
    "GPU memory use (%)": "3",
    "Temperature (Sensor edge) (C)": "38.0",
    "Temperature (Sensor junction) (C)": "41.0",
    "Average Graphics Package Power (W)": "92.0",
    "sclk clock speed:": "(132Mhz)",
    "VRAM Total Memory (B)": str(64 * MIB),
    "VRAM Total Used Memory (B)": str(16 * MIB),
    "Accumulated Energy (uJ)": "5000.0",
}
NEW_CARD = {
    "Card Series": "Instinct MI300X",
    "Temperature (Sensor junction) (C)": "41.0",
    "Current Socket Graphics Package Power (W)": "137.0",
    "GPU Memory Allocated (VRAM%)": "88",
    "GPU Memory Read/Write Activity (%)": "0",
}


def test_power_has_one_column_whatever_this_rocm_smi_calls_it():
    old, new = parse_rocm_smi_json(
        json.dumps({"card0": OLD_CARD, "card1": NEW_CARD, "system": {"Driver version": "6"}})
    )
    assert (old.index, old.power_draw_w) == (0, 92)
    assert (new.index, new.power_draw_w) == (1, 137)


def test_the_other_columns_of_rocm_smi():
    (gpu,) = parse_rocm_smi_json(json.dumps({"card0": OLD_CARD}))
    assert (gpu.uuid, gpu.name) == ("0xab83d2ffef0d3cdf", "Instinct MI250X")
    assert (gpu.utilization_gpu, gpu.utilization_memory, gpu.temperature) == (12, 3, 38)
    assert (gpu.memory_used_mb, gpu.memory_total_mb, gpu.sm_clock_mhz, gpu.energy_mj) == (16, 64, 132, 5)


def test_columns_that_are_not_there_are_none_and_a_measured_zero_is_not():
    (gpu,) = parse_rocm_smi_json(json.dumps({"card0": NEW_CARD}))
    assert (gpu.utilization_gpu, gpu.memory_used_mb, gpu.memory_total_mb, gpu.uuid) == (
        None,
        None,
        None,
        None,
    )
    assert gpu.utilization_memory == 0
    assert gpu.temperature == 41  # no edge sensor: the junction


def test_occupancy_is_not_the_activity_of_the_memory_bus():
    (gpu,) = parse_rocm_smi_json(json.dumps({"card0": {"GPU Memory Allocated (VRAM%)": "88"}}))
    assert gpu.utilization_memory is None


def test_power_of_the_second_die_of_a_package_is_absent_and_the_cap_is_not_power():
    card = {
        "Average Graphics Package Power (W)": "N/A (Secondary die)",
        "Max Graphics Package Power (W)": "560.0",
    }
    (gpu,) = parse_rocm_smi_json(json.dumps({"card1": card}))
    assert gpu.power_draw_w is None


def test_a_die_that_says_0_watts_has_no_sensor_and_an_idle_one_draws_some():
    named = "Average Graphics Package Power (W)"
    first, second = parse_rocm_smi_json(json.dumps({"card0": {named: "41.0"}, "card1": {named: "0.0"}}))
    assert (first.power_draw_w, second.power_draw_w) == (41.0, None)
    (die,) = parse_amd_smi_json(
        json.dumps([{"gpu": 1, "power": {"socket_power": {"value": 0, "unit": "W"}}}])
    )
    assert die.power_draw_w is None


def test_warnings_before_the_json_are_skipped():
    text = "WARNING: [AMDGPU] is slow\n\n" + json.dumps({"card0": OLD_CARD})
    assert parse_rocm_smi_json(text)[0].utilization_gpu == 12


METRIC = {
    "gpu": 0,
    "usage": {
        "gfx_activity": {"value": 94, "unit": "%"},
        "umc_activity": {"value": 0, "unit": "%"},
        "mm_activity": "N/A",
    },
    "power": {"socket_power": {"value": 612, "unit": "W"}},
    "clock": {"gfx_0": {"clk": {"value": 2100, "unit": "MHz"}}},
    "temperature": {"edge": "N/A", "hotspot": {"value": 71, "unit": "C"}},
    "mem_usage": {"total_vram": {"value": 192, "unit": "GB"}, "used_vram": {"value": 17153, "unit": "MB"}},
    "energy": {"total_energy_consumption": {"value": 1.5, "unit": "J"}},
}


@pytest.mark.parametrize("tree", [[METRIC], {"gpu_data": [METRIC]}], ids=["list", "gpu_data"])
def test_amd_smi_metric_in_both_of_its_shapes(tree):
    (gpu,) = parse_amd_smi_json(json.dumps(tree))
    assert (gpu.index, gpu.utilization_gpu, gpu.utilization_memory) == (0, 94, 0)
    assert (gpu.power_draw_w, gpu.sm_clock_mhz, gpu.temperature) == (612, 2100, 71)
    assert (gpu.memory_used_mb, gpu.memory_total_mb, gpu.energy_mj) == (17153, 192 * 1024, 1500)


def test_amd_smi_leaves_that_are_not_available():
    tree = [
        {
            "gpu": 1,
            "usage": {"gfx_activity": {"value": "N/A", "unit": "%"}},
            "power": {"socket_power": "N/A"},
            "mem_usage": "N/A",
        }
    ]
    (gpu,) = parse_amd_smi_json(json.dumps(tree))
    assert (gpu.utilization_gpu, gpu.power_draw_w, gpu.memory_used_mb, gpu.energy_mj) == (None,) * 4


def test_amd_smi_identity():
    tree = [
        {"gpu": 2, "uuid": "7eff74a0-0000-1000-808f-7e20764e2714", "asic": {"market_name": "Instinct MI300X"}}
    ]
    (gpu,) = parse_amd_smi_json(json.dumps(tree))
    assert (gpu.index, gpu.uuid, gpu.name) == (2, "7eff74a0-0000-1000-808f-7e20764e2714", "Instinct MI300X")


@pytest.mark.parametrize("parse", [parse_rocm_smi_json, parse_amd_smi_json])
@pytest.mark.parametrize("text", ["", "ERROR: driver not loaded", "[1, 2]", '{"a": 1}', "{"])
def test_what_is_no_output_of_the_tool_is_refused(parse, text):
    with pytest.raises(ArtefactError, match="smi"):
        parse(text)


@pytest.mark.parametrize("absent", [*ABSENT, None, True, float("nan"), float("inf")])
def test_no_number(absent):
    assert number(absent) is None


@given(st.integers(-(10**12), 10**12), st.sampled_from(["", " %", " MiB", " W", "Mhz"]))
def test_a_number_survives_its_unit(value, unit):
    assert number(f"{value}{unit}") == value


@given(st.text(max_size=300))
def test_any_text_gives_samples_or_an_error_of_ours(text):
    for parse in (parse_nvidia_smi_csv, parse_rocm_smi_json, parse_amd_smi_json):
        with contextlib.suppress(ArtefactError):
            parse(text)


def test_nul_and_cells_above_the_limit_cost_their_line() -> None:
    parsed = parse_nvidia_smi_csv("index, utilization.gpu [%]\n0, 5\0 %\n0, " + "x" * 200_000 + "\n1, 0 %\n")
    assert [(item.index, item.utilization_gpu) for item in parsed.samples] == [(0, 5.0), (1, 0.0)]
    assert parsed.bad_lines == [3]


def test_a_number_above_what_floats_hold_is_absent() -> None:
    assert number("1e400") is None
    assert number("0e400") == 0.0
