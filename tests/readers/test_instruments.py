"""What hooks saw, as it is read and said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from aorta.artefacts.instrument_record import InstrumentRecord, encode
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import RankExit
from aorta.readers.instruments import instrument_notes, read_instruments
from aorta.readers.run_quality import _aborted_after_the_end


def record(rank: int, **values: object) -> InstrumentRecord:
    return InstrumentRecord(
        rank=rank,
        pid=1,
        python="python",
        python_version="3.11",
        torch_version="2.6",
        **values,  # type: ignore[arg-type]
    )


def test_what_is_written_is_read_and_what_is_broken_is_named(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    whole = record(0, roots=["GPT"], samples={"data": 3})
    run.instrument(0).write_bytes(encode(whole))
    run.instrument(1).write_bytes(encode(whole))
    run.instrument(2).write_bytes(b"{")
    found, problems = read_instruments(run)
    assert found == {0: whole}
    assert [(one.file, one.reason[:12]) for one in problems] == [
        ("rank_1_instrument.json", "is of rank 0"),
        ("rank_2_instrument.json", "cannot be re"),
    ]


def test_ranks_without_hooks_are_named_with_the_reason() -> None:
    (said,) = instrument_notes({0: record(0)}, 3, "-E")
    why = "the program runs with -E, so Python ignores aorta's sitecustomize"
    assert said == f"hooks did not work on ranks 1, 2: {why}"
    assert "replaces PYTHONPATH" in instrument_notes({}, 1, None)[0]


def test_hooks_that_see_everything_are_not_worth_a_word() -> None:
    assert instrument_notes({0: record(0), 1: record(1)}, 2, None) == []
    assert instrument_notes({}, None, None) == []


def test_a_hook_that_was_switched_off_is_said_once_for_all_ranks() -> None:
    off = {"loader": "ValueError: x"}
    found = {0: record(0, hooks_off=off), 1: record(1, hooks_off=off), 2: record(2, note="why")}
    assert instrument_notes(found, 3, None) == [
        "ranks 0, 1: the hook for loader failed and was switched off (ValueError: x)",
        "rank 2: hooks do not record: why",
    ]


def ended(*exits: RankExit, whole: bool = True) -> list[int]:
    node = SimpleNamespace(ranks=list(exits))
    data = SimpleNamespace(
        account=SimpleNamespace(status=SimpleNamespace(nodes=[node])),
        ranks_expected=2,
        instruments={rank: record(rank, ended=whole or rank == 0) for rank in range(2)},
    )
    return _aborted_after_the_end(data)  # type: ignore[arg-type]


def leaves(rank: int, code: int | None, signal: str | None = None) -> RankExit:
    return RankExit(rank=rank, exit_code=code, signal=signal)


def test_an_abort_behind_the_end_of_the_program_is_no_failure() -> None:
    aborted = leaves(1, None, "SIGABRT")
    assert ended(leaves(0, 0), aborted) == [1]
    assert ended(leaves(0, None, "SIGTERM"), aborted) == [1]  # by torchrun, after the abort


def test_a_failure_is_a_failure() -> None:
    aborted = leaves(1, None, "SIGABRT")
    assert ended(leaves(0, 0), aborted, whole=False) == []  # before its end
    assert ended(leaves(0, 1), aborted) == []
    assert ended(leaves(0, 0), leaves(1, None, "SIGKILL")) == []
    assert ended(leaves(0, 0), leaves(1, 0)) == []
