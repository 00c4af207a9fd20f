"""CSV files that hold whole lines, whatever happens."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aorta.monitors.output import CsvStream


def test_rows_are_on_disk_at_once_and_absent_cells_are_empty(tmp_path):
    stream = CsvStream(tmp_path / "a.csv", ["x", "y", "z"])
    stream.row([None, 0, 'A, "B"'])
    assert (tmp_path / "a.csv").read_text() == 'x,y,z\n,0,"A, ""B"""\n'
    stream.close()


def test_a_file_is_continued_without_a_second_header(tmp_path):
    for value in (1, 2):
        stream = CsvStream(tmp_path / "a.csv", ["x"])
        stream.row([value])
        stream.close()
    assert (tmp_path / "a.csv").read_text() == "x\n1\n2\n"


def test_half_a_line_of_an_earlier_writer_does_not_join_the_next(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3,")
    stream = CsvStream(tmp_path / "a.csv", ["x", "y"])
    stream.row([4, 5])
    stream.close()
    assert (tmp_path / "a.csv").read_text() == "x,y\n1,2\n3,\n4,5\n"


def test_a_row_that_does_not_fit_is_taken_back(tmp_path):
    program = (
        "import resource, sys; from pathlib import Path; from aorta.monitors.output import CsvStream\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "stream = CsvStream(Path(sys.argv[1]), ['head'])\n"  # 5 bytes
        "try:\n"
        "    stream.row(['123456789'])\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
    )
    path = tmp_path / "a.csv"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "File too large\n"
    assert path.read_text() == "head\n"


def test_a_full_device():
    from pathlib import Path

    with pytest.raises(OSError, match="No space left"):
        CsvStream(Path("/dev/full"), ["x"])
