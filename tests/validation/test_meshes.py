"""The matrix of meshes: what counts as right, and how far predictions are off."""

from __future__ import annotations

import msgspec
import pytest

from aorta.validation.meshes import MeshCell, MeshTrial, gain_errors, mesh_matrix, summary


def trial(cell: MeshCell, verdict: str, ranks: list[int], **more: object) -> MeshTrial:
    values = {"step_ms": 100.0, "speedup": None, "sub_cause": None, **more}
    return MeshTrial(
        cell=cell.name,
        job=cell.job,
        fault=cell.fault,
        expected=cell.ranks,
        verdict=verdict,
        ranks=ranks,
        **values,  # type: ignore[arg-type]
    )


def test_every_job_runs_without_a_fault_and_with_its_own() -> None:
    cells = mesh_matrix(links=True)
    assert [cell for cell in cells if cell.link is None] == mesh_matrix(links=False)
    jobs = {cell.job for cell in cells}
    assert {cell.job for cell in cells if cell.fault == "none"} == jobs
    assert len(cells) >= 24
    assert len({cell.name for cell in cells}) == len(cells)


@pytest.mark.parametrize(
    ("cell", "ranks"),
    [
        (MeshCell("gpipe", "none", 0), []),
        (MeshCell("gpipe", "slow_stage", 2), [2]),
        (MeshCell("ddp_pp", "slow_stage", 3), [2, 3]),
        (MeshCell("ddp_pp", "slow_rank", 3), [3]),
        (MeshCell("1f1b", "uneven", 2), []),
        (MeshCell("experts", "uneven", 2), [2]),
        (MeshCell("ddp_pp", "slow_link", 0, (0, 2)), [0, 2]),
    ],
)
def test_the_ranks_to_name(cell: MeshCell, ranks: list[int]) -> None:
    assert cell.ranks == ranks


def test_right_is_kind_ranks_and_cause() -> None:
    slow, uneven, clean = (MeshCell("1f1b", fault, 2) for fault in ("slow_stage", "uneven", "none"))
    assert trial(slow, "straggler", [2]).right
    assert not trial(slow, "straggler", [1]).right
    assert not trial(slow, "communication", [2]).right
    assert trial(uneven, "straggler", [], sub_cause="uneven_microbatches").right
    assert not trial(uneven, "straggler", [], sub_cause="stage_work").right
    expert = MeshCell("experts", "uneven", 2)
    assert trial(expert, "straggler", [2], sub_cause="uneven_experts").right
    assert not trial(expert, "straggler", [2], sub_cause="compute").right
    link = MeshCell("gpipe", "slow_link", 1, (1, 2))
    assert trial(link, "communication", [1, 2], sub_cause="slow_link").right
    assert not trial(link, "communication", [1, 2], sub_cause="transfer_time").right
    assert not trial(link, "straggler", [1, 2], sub_cause="slow_link").right
    assert trial(clean, "healthy", []).right
    assert not trial(clean, "insufficient_data", []).right


def test_a_prediction_is_held_against_the_run_without_the_fault() -> None:
    """240 ms, predicted 2.4 times shorter: 100 ms, where the job without the fault took 80."""
    clean = msgspec.structs.replace(trial(MeshCell("1f1b", "none", 0), "healthy", []), step_ms=80.0)
    slow = trial(MeshCell("1f1b", "slow_stage", 2), "straggler", [2], step_ms=240.0, speedup=2.4)
    assert gain_errors([clean, slow]) == pytest.approx([100 / 80 - 1])
    assert "2 of 2 right" in summary([clean, slow])
    assert "median error 25.0 %" in summary([clean, slow])
