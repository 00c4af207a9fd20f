"""Tables of operations as others write them: names, units, signs between columns, and lines of errors."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from aorta.artefacts.operations import Operations
from aorta.errors import ArtefactError
from aorta.readers.operation_files import is_operations
from aorta.readers.operations import read_operations
from tests.support.pipelines import Row, pipeline

ROWS = pipeline("1f1b", 2, 3, lambda *_: 1_000_000, replicas=2)
"""Times are whole µs."""


def table(path: Path, header: str, cells: Callable[[Row], str], rows: list[Row] = ROWS) -> Path:
    text = "\n".join([header, *(cells(row) for row in rows)]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def times(job: Operations) -> list[tuple[str, int, int, int, int]]:
    columns = (job.kind, job.rank, job.stage, job.start, job.end)
    return sorted(
        (job.kinds[kind], int(rank), int(stage), int(start), int(end))
        for kind, rank, stage, start, end in zip(*columns, strict=True)
    )


def plain(folder: Path) -> list[tuple[str, int, int, int, int]]:
    header = "rank,step,kind,stage,microbatch,replica,start_ns,duration_ns"
    return times(
        read_operations(
            table(
                folder / "plain.csv",
                header,
                lambda row: ",".join(str(row[name]) for name in header.split(",")),
            )
        )
    )


FORMS: dict[str, tuple[str, Callable[[Row], str]]] = {
    "another order, ms": (
        "duration_ms,kind,start_ms,replica,rank,step,stage",
        lambda r: (
            f"{int(r['duration_ns']) / 1e6},{r['kind']},{int(r['start_ns']) / 1e6},{r['replica']},"
            f"{r['rank']},{r['step']},{r['stage']}"
        ),
    ),
    "semicolons, unit in brackets": (
        "rank;step;kind;dp_rank;pp_rank;Start (us);Duration [us]",
        lambda r: (
            f"{r['rank']};{r['step']};{r['kind']};{r['replica']};{r['stage']};"
            f"{int(r['start_ns']) / 1e3};{int(r['duration_ns']) / 1e3}"
        ),
    ),
    "tabs, an end, a byte order mark": (
        "\ufeffRank\tIteration\tOpType\tdp\tpp\tstart_sec\tend_sec",
        lambda r: (
            f"{r['rank']}\t{r['step']}\t{r['kind']}\t{r['replica']}\t{r['stage']}\t"
            f"{int(r['start_ns']) / 1e9}\t{(int(r['start_ns']) + int(r['duration_ns'])) / 1e9}"
        ),
    ),
    "stages from 1, two units": (
        "rank,step,op,stage,replica,startTime_ms,duration_usec",
        lambda r: (
            f"{r['rank']},{r['step']},{r['kind']},{int(r['stage']) + 1},{r['replica']},"
            f"{int(r['start_ns']) / 1e6},{int(r['duration_ns']) / 1e3}"
        ),
    ),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_the_same_operations_in_another_form(tmp_path: Path, name: str, suffix: str) -> None:
    path = table(tmp_path / f"operations.{suffix}", *FORMS[name])
    assert is_operations(path)
    assert times(read_operations(path)) == plain(tmp_path)


def broken(place: int, cell: str, *, row: int = 4) -> Callable[[Row], str]:
    """Rows with one cell of the row `row`, counted from 0, as it should not be."""
    count = iter(range(len(ROWS)))

    def cells(of: Row) -> str:
        values = [str(of[name]) for name in ("rank", "step", "kind", "start_ns", "duration_ns")]
        values[place] = cell if next(count) == row else values[place]
        return ",".join(values)

    return cells


@pytest.mark.parametrize(
    ("place", "cell", "said"),
    [
        (0, "2.5", "line 6, column rank is '2.5'"),
        (1, "", "line 6, column step is empty"),
        (0, "-1", "line 6, column rank is '-1'"),
        (3, "soon", "line 6, column start_ns is 'soon'"),
        (4, "inf", "line 6, column duration_ns is 'inf'"),
    ],
)
def test_an_error_names_file_line_and_column(tmp_path: Path, place: int, cell: str, said: str) -> None:
    path = table(tmp_path / "o.csv", "rank,step,kind,start_ns,duration_ns", broken(place, cell))
    with pytest.raises(ArtefactError) as caught:
        read_operations(path)
    assert caught.value.message == f"{path}: {said}"
    assert caught.value.hint.startswith("expected a")


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("rank,step,what,start_us,duration_us", "no column kind; its columns are rank, step, what"),
        ("rank,step,kind,start_us,size", None),
        (
            "rank,step,kind,start,duration",
            "column duration names no unit, and 1e+06 s is not a plausible duration",
        ),
        ("rank,step,job,start_us,duration_us", "no column kind"),
    ],
)
def test_a_table_that_lacks_something_is_refused_with_what_it_lacks(
    tmp_path: Path, header: str, said: str | None
) -> None:
    path = table(tmp_path / "o.csv", header, broken(0, "0"))
    assert is_operations(path) is (said is not None)
    if said is not None:
        with pytest.raises(ArtefactError, match=said.replace("+", "[+]")):
            read_operations(path)


def test_several_jobs_in_one_file_are_refused(tmp_path: Path) -> None:
    header = "job,rank,step,kind,start_ns,duration_ns"

    def cells(jobs: int) -> Callable[[Row], str]:
        return lambda r: (
            f"j{int(r['replica']) % jobs},{r['rank']},{r['step']},{r['kind']},{r['start_ns']},"
            f"{r['duration_ns']}"
        )

    assert len(read_operations(table(tmp_path / "one.csv", header, cells(1)))) == len(ROWS)
    with pytest.raises(ArtefactError, match="column job contains 2 jobs: j0, j1"):
        read_operations(table(tmp_path / "two.csv", header, cells(2)))


@pytest.mark.parametrize("length", ["0", "-5"])
def test_operations_that_take_no_time_are_refused(tmp_path: Path, length: str) -> None:
    path = table(
        tmp_path / "o.csv",
        "rank,step,kind,start_us,duration_us",
        lambda r: f"{r['rank']},{r['step']},{r['kind']},{r['start_ns']},{length}",
    )
    with pytest.raises(ArtefactError, match="all operations have a duration of 0"):
        read_operations(path)
