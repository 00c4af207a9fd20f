"""The runs that make up a validation. Nothing here executes.

Runs of one size stand together, with a clean run between every few faulty runs. So changes of the machine
affect a faulty run and the clean runs that it is compared with alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from aorta.artefacts.analysis import Kind
from aorta.artefacts.validation import Truth
from aorta.errors import PlanError
from aorta.units import plural

CLEAN = "clean"
Device = Literal["cpu", "cuda"]
Executor = Literal["local", "slurm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCell:
    """One run: its size, its configuration, and the truth about it."""

    nodes: int
    ranks_per_node: int = 1
    truth: Truth
    overrides: tuple[str, ...] = ()
    """Changes to the configuration that all runs have in common."""
    rate_bit_s: int | None = None
    """Limit of the link of the last node. None if there are none."""
    repeat: int = 1

    @property
    def size(self) -> tuple[int, int]:
        """(nodes, ranks per node): runs of one size are compared with each other."""
        return self.nodes, self.ranks_per_node

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.nodes * self.ranks_per_node

    @property
    def name(self) -> str:
        """Everything that varies in the matrix; no two runs of one have the same."""
        ranks = f" x {self.ranks_per_node} ranks" if self.ranks_per_node > 1 else ""
        truth = self.truth
        what = " ".join(word for word in (truth.fault, truth.strength, truth.place) if word)
        again = f" #{self.repeat}" if self.repeat > 1 or truth.fault == CLEAN else ""
        return f"{plural(self.nodes, 'node')}{ranks}: {what}{again}"


@dataclass(frozen=True, slots=True)
class Matrix:
    """The runs in their order, and what is not among them."""

    name: str
    """Name of the document that the matrix gives."""
    title: str
    cells: tuple[MatrixCell, ...]
    skipped: tuple[tuple[str, str], ...]
    """(fault, why it is not here)."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A key of the `faults` block, and what it is to be found as."""

    name: str
    key: str
    unit: str
    everywhere: tuple[Kind, ...]
    """Verdicts that are right where all ranks have it. Empty if it is the program itself rather than a
    bottleneck.
    """
    single: tuple[Kind, ...]
    """Verdicts that are right where one of several ranks has it. Empty if it cannot be on one."""
    fixed: tuple[str, ...] = ()
    """Overrides that go with it."""
    timeless: bool = False

    def cell(self, size: tuple[int, int], strength: float, rank: int | None) -> MatrixCell:
        """The run of `size` with this fault on one rank, or on all (None)."""
        world = size[0] * size[1]
        alone = rank is not None and world > 1
        overrides = (f"{self.key}={strength:g}", *self.fixed, *((f"faults.ranks=[{rank}]",) if alone else ()))
        return MatrixCell(
            nodes=size[0],
            ranks_per_node=size[1],
            truth=Truth(
                fault=self.name,
                strength=f"{strength:g} {self.unit}",
                place=f"rank {rank}" if alone else "all ranks",
                kinds=list(self.single if alone else self.everywhere),
                ranks=[rank] if alone and rank is not None else [],
                timeless=self.timeless,
            ),
            overrides=overrides,
        )


LOADER = InjectedFault("slow loader", "faults.loader_delay_ms", "ms", ("data_loading",), ("data_loading",))
HOST = InjectedFault("slow host", "faults.host_delay_ms", "ms", ("host_bound",), ("straggler",))
DEVICE = InjectedFault("slow device", "faults.compute_delay_ms", "ms", (), ("straggler",))
WORK = InjectedFault(
    "more compute", "faults.compute_matmuls", "products", (), ("straggler",), ("faults.matmul_size=512",)
)
EXCHANGE = InjectedFault("more to exchange", "faults.comm_mb", "MiB", ("communication",), ())

_DELAYS_MS = (15.0, 45.0, 90.0)
"""Delays of 1/4, 3/4 and 3/2 of the step, which takes 60 ms."""
_LONG_DELAYS_MS = (30.0, 90.0, 180.0)
"""Delays of the same shares of the step at four nodes."""
_LONG_STEP = ("faults.stand_in_ms=120",)
"""Overrides of the runs at four nodes. Four ranks on two cores take turns at exchanging: 26 kB take them 6 to
8 ms, and two ranks 1 ms. With 60 ms of compute that is more than a tenth of the step: no false alarm."""
_PRODUCTS = (4, 8)
_EXCHANGES_MIB = (32, 64)
_LINK_RATES = ((10_000_000, "10 Mbit/s"), (4_000_000, "4 Mbit/s"))
_NO_GPU = (
    (
        "tiny kernels",
        "needs a GPU: on a CPU, launching a kernel is part of running it, so no device can be idle",
    ),
    ("full GPU memory", "needs a GPU"),
    ("NCCL kept off NVLink", "needs GPUs"),
    ("straggling GPU", "needs GPUs"),
)
_ALL_COMPUTE = (
    "more compute on all ranks",
    "this is a larger model and not a bottleneck, so there is nothing to find",
)


def cpu_matrix(executor: Executor, *, links: bool) -> Matrix:
    """The full matrix without GPUs: 20 clean runs, and every fault that a CPU can have.

    Args:
        executor: of the runs; it names the document.
        links: the nodes have links of their own, which can be limited.
    """
    slow_links = [_link(rate, words) for rate, words in _LINK_RATES] if links else []
    sizes = (
        _alternate([*_single_node()], clean=7),
        _alternate([*_two_nodes()], clean=7),
        _alternate([*_four_nodes(), *slow_links], clean=6, common=_LONG_STEP),
    )
    no_links = (("slow link", "needs --executor slurm on a cluster of `aorta cluster up`, as root"),)
    return Matrix(
        name="validation" if executor == "local" else "validation-slurm",
        title="on this machine" if executor == "local" else "through Slurm",
        cells=tuple(cell for cells in sizes for cell in cells),
        skipped=(*_NO_GPU, _ALL_COMPUTE, *(() if links else no_links)),
    )


def stripped(matrix: Matrix) -> Matrix:
    """The same runs of a trainer that has no instrumentation of its own."""
    return replace(
        matrix, name=f"{matrix.name}-stripped", title=f"of a trainer without instrumentation, {matrix.title}"
    )


def small_matrix(executor: Executor) -> Matrix:
    """A few runs that show that everything works; too few to prove a share."""
    size = (2, 1)
    cells = [LOADER.cell(size, 90.0, 1), DEVICE.cell(size, 90.0, 0)]
    return Matrix(
        name="validation-small",
        title="a few runs" if executor == "local" else "a few runs through Slurm",
        cells=tuple(_alternate(cells, clean=1)),
        skipped=(("everything else", "the small matrix only shows that the command works"),),
    )


def gpu_matrix(gpus: int) -> Matrix:
    """Faults on `gpus` ranks of one node, also those that only GPUs have; as many runs as 4 minutes allow.

    Raises:
        PlanError: a single GPU has no other to wait for.
    """
    if gpus < 2:
        raise PlanError(
            f"--gpus is {gpus}, but the faults of this matrix are between ranks", "use 2 GPUs or more"
        )
    size = (1, gpus)
    middle = gpus // 2
    tiny = InjectedFault("tiny kernels", "faults.tiny_kernels", "launches", ("host_bound",), ("straggler",))
    products = InjectedFault(
        "straggling GPU",
        "faults.compute_matmuls",
        "products",
        (),
        ("straggler",),
        ("faults.matmul_size=4096",),
    )
    # Filled before the model is there, which takes some GB more of it.
    full = InjectedFault(
        "full GPU memory", "faults.gpu_memory_ratio", "of it", ("memory_pressure",), (), timeless=True
    )
    cells = [
        products.cell(size, 30, middle),
        HOST.cell(size, 60.0, middle),
        tiny.cell(size, 12000, None),
        full.cell(size, 0.85, None),
        LOADER.cell(size, 60.0, middle),
        products.cell(size, 10, middle),
        EXCHANGE.cell(size, 8192, None),
        _off_nvlink(size),
    ]
    return Matrix(
        name="validation-gpu",
        title=f"on {gpus} GPUs",
        cells=tuple(_alternate(cells, clean=3)),
        skipped=(_ALL_COMPUTE, ("slow link between nodes", "a single machine has no link between nodes")),
    )


def _single_node() -> Iterator[MatrixCell]:
    for strength in _DELAYS_MS:
        yield LOADER.cell((1, 1), strength, None)
        yield HOST.cell((1, 1), strength, None)


def _two_nodes() -> Iterator[MatrixCell]:
    size = (2, 1)
    for place, strength in enumerate(_DELAYS_MS):
        yield LOADER.cell(size, strength, None)
        yield LOADER.cell(size, strength, place % 2)
        yield HOST.cell(size, strength, None)
        yield HOST.cell(size, strength, (place + 1) % 2)
        yield DEVICE.cell(size, strength, place % 2)
    for amount in _PRODUCTS:
        yield WORK.cell(size, amount, 1)
    for amount in _EXCHANGES_MIB:
        yield EXCHANGE.cell(size, amount, None)


def _four_nodes() -> Iterator[MatrixCell]:
    """Every place with one strength, so that each place and each strength is there for each fault."""
    size, (short, middle, long) = (4, 1), _LONG_DELAYS_MS
    for rank, strength in ((None, middle), (0, long), (1, short), (2, middle), (3, short)):
        yield LOADER.cell(size, strength, rank)
        yield HOST.cell(size, strength, rank)
    for rank, strength in ((0, short), (1, middle), (2, long), (3, middle)):
        yield DEVICE.cell(size, strength, rank)
    yield WORK.cell(size, _PRODUCTS[-1], 2)
    yield EXCHANGE.cell(size, _EXCHANGES_MIB[0], None)


def _link(rate_bit_s: int, words: str) -> MatrixCell:
    truth = Truth(fault="slow link", strength=words, place="the last node", kinds=["communication"])
    return MatrixCell(nodes=4, truth=truth, rate_bit_s=rate_bit_s)


def _off_nvlink(size: tuple[int, int]) -> MatrixCell:
    truth = Truth(fault="NCCL kept off NVLink", strength="", place="all ranks", kinds=["communication"])
    env = "distributed.env={NCCL_P2P_DISABLE: '1'}"
    return MatrixCell(nodes=size[0], ranks_per_node=size[1], truth=truth, overrides=(env,))


def _alternate(
    faulty: Sequence[MatrixCell], *, clean: int, common: tuple[str, ...] = ()
) -> Iterator[MatrixCell]:
    """`faulty` in equal parts between `clean` runs without a fault; a single one of those comes first.

    Every run has the overrides `common`.
    """
    size = faulty[0].size
    plain = MatrixCell(
        nodes=size[0],
        ranks_per_node=size[1],
        truth=Truth(fault=CLEAN, kinds=["healthy"]),
        overrides=common,
    )
    parts = max(clean - 1, 1)
    for part in range(parts):
        yield replace(plain, repeat=part + 1)
        for cell in faulty[part * len(faulty) // parts : (part + 1) * len(faulty) // parts]:
            yield replace(cell, overrides=(*common, *cell.overrides))
    if clean > 1:
        yield replace(plain, repeat=clean)
