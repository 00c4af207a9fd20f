"""Describes what the hooks of `aorta.inject` saw in each rank: `rank_<rank>_instrument.json`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aorta.artefacts.analysis import Problem
from aorta.artefacts.files import read_regular
from aorta.artefacts.instrument_record import InstrumentRecord
from aorta.artefacts.layout import RunDir
from aorta.units import rank_words


def read_instruments(run: RunDir) -> tuple[dict[int, InstrumentRecord], list[Problem]]:
    """Returns the record of each rank with hooks, and what is wrong with the others' files."""
    found: dict[int, InstrumentRecord] = {}
    problems: list[Problem] = []
    for rank, path in run.all_instruments().items():
        try:
            record = msgspec.json.decode(read_regular(path), type=InstrumentRecord)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            problems.append(Problem(file=path.name, reason=f"cannot be read: {error}"))
            continue
        if record.rank == rank:
            found[rank] = record
        else:
            problems.append(Problem(file=path.name, reason=f"is of rank {record.rank}, not {rank}"))
    return found, problems


def instrument_notes(
    found: Mapping[int, InstrumentRecord], expected: int | None, option: str | None
) -> list[str]:
    """Returns in words where the hooks did not take, or do not see everything.

    Args:
        found: by rank.
        expected: ranks of the job. None if not known.
        option: of the interpreter, that keeps the hooks out. None if there is none.
    """
    said = []
    absent = [rank for rank in range(expected or 0) if rank not in found]
    if absent:
        why = (
            f"the program runs with {option}, so Python ignores aorta's sitecustomize"
            if option is not None
            else "the program does not import torch, replaces PYTHONPATH, or does not see aorta's folder"
        )
        said.append(f"hooks did not work on {rank_words(absent)}: {why}")
    notes: dict[str, list[int]] = {}
    for rank, record in found.items():
        if record.note is not None:
            notes.setdefault(f"hooks do not record: {record.note}", []).append(rank)
        for name, error in record.hooks_off.items():
            notes.setdefault(f"the hook for {name} failed and was switched off ({error})", []).append(rank)
    return said + [f"{rank_words(ranks)}: {text}" for text, ranks in notes.items()]
