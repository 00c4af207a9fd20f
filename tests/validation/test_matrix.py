"""The matrix: what is in it, in which order, and what is said to be missing."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from aorta.config.load import load_config
from aorta.config.schema import Config
from aorta.errors import PlanError
from aorta.validation.matrix import CLEAN, Matrix, cpu_matrix, gpu_matrix, small_matrix, stripped
from aorta.workloads.ranking import Ranking
from aorta.workloads.stripped import STAND_IN, faults_from
from aorta.workloads.trainer.data import check_size
from aorta.workloads.trainer.faults import check_faults

CONFIG = Path(__file__).parents[2] / "config"
CPU, GPU = CONFIG / "validation.yaml", CONFIG / "validation_gpu.yaml"
ALL = [
    (cpu_matrix("slurm", links=True), CPU),  # holds all of the local one
    (small_matrix("local"), CPU),
    (gpu_matrix(2), GPU),
    (gpu_matrix(4), GPU),
]


@functools.cache
def load(path: Path, overrides: tuple[str, ...] = ()) -> Config:
    return load_config(path, overrides)


@pytest.mark.parametrize(("matrix", "path"), ALL, ids=lambda item: getattr(item, "name", None))
def test_every_run_can_run_and_no_two_are_the_same(matrix: Matrix, path: Path) -> None:
    names = [cell.name for cell in matrix.cells]
    assert len(set(names)) == len(names)
    Ranking(load(path))
    configs: dict[tuple[object, ...], Config] = {}
    for cell in matrix.cells:
        config = load(path, cell.overrides)
        check_faults(config, cell.world_size)
        check_size(config, cell.world_size)
        rounds = config.dataset.num_samples // cell.world_size // config.training.batch_size
        assert rounds * config.training.epochs >= config.training.max_steps
        if cell.truth.fault != "clean":
            configs[(cell.size, cell.rate_bit_s, str(config))] = config
    assert len(configs) == sum(cell.truth.fault != "clean" for cell in matrix.cells)


@pytest.mark.parametrize(("matrix", "path"), ALL, ids=lambda item: getattr(item, "name", None))
def test_the_truth_is_what_the_configuration_does(matrix: Matrix, path: Path) -> None:
    clean = {cell.size: load(path, cell.overrides) for cell in matrix.cells if cell.truth.fault == "clean"}
    for cell in matrix.cells:
        config, truth, plain = load(path, cell.overrides), cell.truth, clean[cell.size]
        assert config.faults.ranks == truth.ranks
        assert (config == plain and cell.rate_bit_s is None) == (truth.fault == "clean")
        assert (truth.kinds == ["healthy"]) == (truth.fault == "clean")


def test_the_full_matrix_has_twenty_clean_runs_between_faults_of_every_place_and_strength() -> None:
    matrix = cpu_matrix("local", links=False)
    assert sum(cell.truth.fault == "clean" for cell in matrix.cells) == 20
    for nodes in (1, 2, 4):
        runs = [cell for cell in matrix.cells if cell.nodes == nodes]
        assert [runs[0].truth.fault, runs[-1].truth.fault] == ["clean", "clean"]
        # A size stands together, and no more than five faults follow each other.
        assert matrix.cells[matrix.cells.index(runs[0]) :][: len(runs)] == tuple(runs)
        marks = "".join("." if cell.truth.fault == "clean" else "x" for cell in runs)
        assert "xxxxxx" not in marks
    for fault in ("slow loader", "slow host", "slow device"):
        runs = [cell for cell in matrix.cells if cell.truth.fault == fault]
        assert {tuple(cell.truth.ranks) for cell in runs if cell.nodes == 4} >= {(0,), (1,), (2,), (3,)}
        strengths = {nodes: {cell.truth.strength for cell in runs if cell.nodes == nodes} for nodes in (2, 4)}
        assert strengths == {2: {"15 ms", "45 ms", "90 ms"}, 4: {"30 ms", "90 ms", "180 ms"}}


def test_steps_and_delays_of_four_nodes_are_twice_those_of_two() -> None:
    cells = cpu_matrix("local", links=False).cells
    steps = {cell.nodes: load(CPU, cell.overrides).faults.stand_in_ms for cell in cells}
    assert steps == {1: 60.0, 2: 60.0, 4: 120.0}
    assert len({(cell.nodes, load(CPU, cell.overrides).faults.stand_in_ms) for cell in cells}) == 3


def test_what_a_machine_cannot_have_is_named() -> None:
    without = cpu_matrix("local", links=False)
    named = dict(without.skipped)
    assert {"tiny kernels", "full GPU memory", "NCCL kept off NVLink", "straggling GPU"} <= set(named)
    assert "slow link" in named
    slurm = cpu_matrix("slurm", links=True)
    assert "slow link" not in dict(slurm.skipped)
    assert [cell.rate_bit_s for cell in slurm.cells if cell.truth.fault == "slow link"] == [10**7, 4 * 10**6]


def test_the_straggler_of_four_gpus_is_neither_first_nor_last() -> None:
    runs = [cell for cell in gpu_matrix(4).cells if cell.truth.fault == "straggling GPU"]
    assert {tuple(cell.truth.ranks) for cell in runs} == {(2,)}
    with pytest.raises(PlanError, match="between ranks"):
        gpu_matrix(1)


def test_the_steady_steps_of_the_base_suffice_for_a_verdict() -> None:
    for path in (CPU, GPU):
        config = load(path)
        assert config.training.max_steps - config.capture.warmup_steps >= 30


def test_the_stripped_trainer_knows_every_fault_of_the_matrix() -> None:
    matrix = stripped(cpu_matrix("local", links=False))
    assert matrix.name == "validation-stripped"
    for cell in matrix.cells:
        given = [faults_from(list(cell.overrides), rank) for rank in range(cell.world_size)]
        faulty = [rank for rank, faults in enumerate(given) if faults.keys() - {STAND_IN}]
        expected = cell.truth.ranks or list(range(cell.world_size))
        assert faulty == ([] if cell.truth.fault == CLEAN else expected), cell.name


def test_the_stripped_trainer_refuses_a_fault_that_it_would_not_have() -> None:
    with pytest.raises(SystemExit, match=r"no faults\.tiny_kernels: it knows comm_mb"):
        faults_from(["faults.tiny_kernels=3"], 0)
