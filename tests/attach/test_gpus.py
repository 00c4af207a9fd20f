"""The GPU of a process, from what nvidia-smi prints."""

from __future__ import annotations

from aorta.attach.gpus import gpus_of
from aorta.attach.processes import TorchProcess

FIRST, SECOND = "GPU-1", "GPU-2"


def process(pid, **environment):
    return TorchProcess(pid=pid, parent=1, command="python", environment=environment)


def driver(*, uses=(), reasons="0x0000000000000000", newest=True):
    def ask(option, fields):
        if option == "--query-compute-apps":
            return [list(row) for row in uses]
        if not newest and "clocks_event_reasons.active" in fields:
            return []
        row = ["97", "1410", "1980", "40960", "81920", reasons]
        return [[FIRST, "0", *row], [SECOND, "1", "[N/A]", *row[1:]]]

    return ask


def test_the_driver_says_which_process_uses_which_gpu():
    found = gpus_of([process(7), process(8), process(9)], driver(uses=[("7", FIRST), ("8", SECOND)]))
    assert set(found) == {7, 8}
    assert (found[7].index, found[7].utilization_pct, found[7].sm_clock_mhz) == (0, 97.0, 1410.0)
    assert (found[7].memory_used_mib, found[7].slowed_by) == (40960.0, [])
    assert found[8].utilization_pct is None


def test_reasons_for_a_lower_clock_are_named_and_idling_is_none():
    for newest in (True, False):
        found = gpus_of(
            [process(7)], driver(uses=[("7", FIRST)], reasons="0x0000000000000045", newest=newest)
        )
        assert found[7].slowed_by == ["power cap", "thermal, by hardware"]
    assert gpus_of([process(7)], driver(uses=[("7", FIRST)], reasons="[N/A]"))[7].slowed_by is None


def test_in_a_container_one_visible_gpu_is_the_process_s_and_of_two_none_is():
    one, two = process(7, CUDA_VISIBLE_DEVICES=SECOND), process(8, CUDA_VISIBLE_DEVICES=f"{FIRST},{SECOND}")
    assert {pid: gpu.uuid for pid, gpu in gpus_of([one, two], driver()).items()} == {7: SECOND}


def test_without_a_driver_nothing_is_known():
    assert gpus_of([process(7)], lambda option, fields: []) == {}
