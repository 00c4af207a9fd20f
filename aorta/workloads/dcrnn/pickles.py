"""Adjacency pickles, as METR-LA and PEMS-BAY come with, read without running what is in them.

A pickle is a program. This reader lets it build numbers, text, lists, dicts and numpy arrays of numbers, and
refuses everything else by name.
"""

from __future__ import annotations

import codecs
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from aorta.errors import ArtefactError


def _latin1(text: str, encoding: str) -> bytes:
    # How protocol 2 of Python 3 writes bytes.
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it contains text in the encoding {encoding!r}")
    return codecs.encode(text, "latin1")


def _dtype(*arguments: Any) -> np.dtype[Any]:
    kind = np.dtype(*arguments)
    if kind.hasobject:
        raise pickle.UnpicklingError("it contains an array of objects")
    return kind


# What arrays and numbers of numpy are written with, wherever this version keeps it.
_ARRAY = np.zeros(0).__reduce__()[0]
_BUFFER = np.zeros(1).__reduce_ex__(5)[0]
_NUMBER = np.float64(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _latin1,
    ("numpy.core.multiarray", "_reconstruct"): _ARRAY,
    ("numpy._core.multiarray", "_reconstruct"): _ARRAY,
    ("numpy.core.numeric", "_frombuffer"): _BUFFER,
    ("numpy._core.numeric", "_frombuffer"): _BUFFER,
    ("numpy.core.multiarray", "scalar"): _NUMBER,
    ("numpy._core.multiarray", "scalar"): _NUMBER,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The few things that a matrix is made of."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it needs {module}.{name}, which is not allowed") from None

    def persistent_load(self, pid: Any) -> Any:
        """Nothing outside of the file."""
        raise pickle.UnpicklingError(f"it refers to the object {pid!r} outside the file")


def load(path: Path) -> Any:
    """The content of the pickle at `path`; text of Python 2 is read as Latin-1.

    Raises:
        ArtefactError: it is broken, or holds something else than numbers, text, lists, dicts and arrays.
    """
    try:
        return _Reader(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror}") from error
    except Exception as error:  # a broken pickle fails in any way it likes
        raise ArtefactError(
            f"{path}: not read: {type(error).__name__}: {error}",
            "save the N × N matrix as .npy: pickles may contain only numbers, text, lists, dicts and arrays",
        ) from error
