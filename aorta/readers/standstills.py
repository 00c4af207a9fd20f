"""Reads what the nodes of a run kept when their ranks stood still, or could not run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from aorta.artefacts.analysis import Problem
from aorta.artefacts.attached import NodeStandstill
from aorta.artefacts.files import is_file
from aorta.artefacts.flight import Recording
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import NodeDir, RunDir
from aorta.artefacts.stops import NodeStops, Stop
from aorta.errors import ArtefactError
from aorta.readers import flight

Told = TypeVar("Told", NodeStops, NodeStandstill)


def read_stops(run: RunDir, attempt: int | None) -> tuple[tuple[Stop, ...], tuple[Problem, ...]]:
    """The times when processes of ranks could not run, and the files that cannot be used.

    Args:
        run: the run directory.
        attempt: of the job that counts. None means any.
    """
    told, problems = _of_nodes(run, NodeStops, attempt, lambda node: node.stops)
    return tuple(stop for one in told for stop in one.stops), problems


def read_standstills(
    run: RunDir, attempt: int | None
) -> tuple[tuple[NodeStandstill, ...], tuple[Problem, ...]]:
    """The standstills that did not end, by node, and the files that cannot be used.

    Args:
        run: the run directory.
        attempt: of the job that counts. None means any.
    """
    told, problems = _of_nodes(run, NodeStandstill, attempt, lambda node: node.standstill)
    return tuple(one for one in told if one.resumed_wall_ns is None), problems


def _of_nodes(
    run: RunDir, kind: type[Told], attempt: int | None, path_of: Callable[[NodeDir], Path]
) -> tuple[list[Told], tuple[Problem, ...]]:
    """Returns what the nodes wrote in one attempt, and the files that cannot be used."""
    found, problems = [], []
    for _, node in run.nodes():
        path = path_of(node)
        if not is_file(path):
            continue
        try:
            told = read_json(path, kind)
        except ArtefactError as error:
            problems.append(Problem(file=str(path.relative_to(run.root)), reason=error.message))
            continue
        if attempt in (None, told.attempt):
            found.append(told)
    return found, tuple(problems)


def read_flights(run: RunDir, ranks: Iterable[int]) -> tuple[tuple[Recording, ...], tuple[Problem, ...]]:
    """The flight recorders that ranks left whose training did not go on, and the files that cannot be used.

    Args:
        run: the run directory.
        ranks: of the job.
    """
    found, problems = [], []
    for rank in ranks:
        path = run.flight(rank)
        if not is_file(path):
            continue
        try:
            found.append(replace(flight.read(path), rank=rank))
        except ArtefactError as error:
            problems.append(Problem(file=str(path.relative_to(run.root)), reason=error.message))
    return tuple(found), tuple(problems)
