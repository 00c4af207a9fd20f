"""Adjacency pickles: those of the data sets are read, and nothing in one is ever run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aorta.errors import ArtefactError
from aorta.workloads.dcrnn.pickles import load


def written(tmp_path: Path, content: Any, protocol: int = 2) -> Path:
    path = tmp_path / "adj.pkl"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_names_positions_and_matrix(tmp_path: Path, protocol: int) -> None:
    matrix = np.arange(4, dtype=np.float32).reshape(2, 2)
    names, positions, read = load(written(tmp_path, (["a", "b"], {"a": 0, "b": 1}, matrix), protocol))
    assert (names, positions) == (["a", "b"], {"a": 0, "b": 1})
    assert read.dtype == np.float32
    assert read.tolist() == matrix.tolist()


def test_a_pickle_of_python_2(tmp_path: Path) -> None:
    # (['7'], {'7': 0}, array([[1.]], dtype=float32)) as Python 2 with numpy 1.11 writes it.
    path = tmp_path / "adj.pkl"
    path.write_bytes(
        b"\x80\x02]U\x017a}U\x017K\x00scnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b"
        b"\x87R(K\x01K\x01K\x01\x86cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x04\x00\x00\x80?tb\x87."
    )
    names, positions, matrix = load(path)
    assert (names, positions, matrix.tolist()) == (["7"], {"7": 0}, [[1.0]])


def test_numbers_of_numpy_are_read(tmp_path: Path) -> None:
    assert load(written(tmp_path, [np.float64(2.5), np.int64(3)])) == [2.5, 3]


class Planted:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self._path}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_planted_command_is_not_run(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(ArtefactError, match=r"adj\.pkl: not read.*posix\.system"):
        load(written(tmp_path, [Planted(mark)], protocol))
    assert not mark.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cbuiltins\ngetattr\n.",
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"c_codecs\ndecode\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.dump\x93.",
        b"P1\n.",
        b"\x80\x02}\x82\x01.",
    ],
)
def test_other_names_are_refused(tmp_path: Path, program: bytes) -> None:
    path = tmp_path / "adj.pkl"
    path.write_bytes(program)
    with pytest.raises(ArtefactError, match=r"adj\.pkl: not read"):
        load(path)


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="an array of objects"):
        load(written(tmp_path, np.array([{}], dtype=object)))


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"not a pickle", bytes(range(256))])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "adj.pkl"
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match=r"adj\.pkl"):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"nowhere\.pkl"):
        load(tmp_path / "nowhere.pkl")
