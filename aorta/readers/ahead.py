"""Unpacks traces while this process imports what reads them: the other cores have nothing to do meanwhile."""

from __future__ import annotations

import threading
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from pathlib import Path

from isal import igzip_lib, isal_zlib

from aorta.artefacts.files import entries, is_folder, open_regular, size_of
from aorta.readers.parallel import one_each, usable_cores

_NAME = ".json.gz"
_MAGIC = b"\x1f\x8b"
_MOST_THREADS = 4
"""Each may hold one text more than there is room for."""
_MOST_PACKED = 8 << 20
"""Bytes of a packed file; a larger one is unpacked piece by piece, while it is read."""
_SIZE = 4
"""Bytes at the end of a gzip stream that tell the size of its text."""
_MOST = 128 << 20
"""Bytes of all texts together."""


class Ahead:
    """Texts of small packed traces, unpacked by threads from now on.

    Args:
        paths: files, and folders of files; those whose names are of no packed trace are left alone.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        inside = [entries(path) if is_folder(path) else [path] for path in paths]
        files = [file for some in inside for file in some if file.name.endswith(_NAME)]
        self._waiting = iter(files)
        self._texts: dict[Path, bytes] = {}
        self._left = _MOST
        self._lock = threading.Lock()
        # Fewer files are read piece by piece, by processes that unpack them meanwhile.
        count = min(usable_cores() - 1, len(files), _MOST_THREADS) if one_each(len(files)) else 0
        self._threads = [threading.Thread(target=self._unpack, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def texts(self) -> Mapping[Path, bytes]:
        """Returns the texts by file, once no thread runs any more."""
        for thread in self._threads:
            thread.join()
        return self._texts

    def _unpack(self) -> None:
        for path in self._waiting:
            try:
                packed = _packed(path)
                if not packed.startswith(_MAGIC):
                    continue
                left = self._left  # other threads change it
                if left <= 0 or int.from_bytes(packed[-_SIZE:], "little") > left:
                    return  # files of a job are about as large
                text = _text(packed, left)
            except (OSError, ValueError):
                continue  # reading it says why
            except MemoryError:
                return  # what is not unpacked here is read piece by piece
            if text is not None:
                with self._lock:
                    self._left -= len(text)
                self._texts[path] = text


def _packed(path: Path) -> bytes:
    """Returns the content of a small file; nothing of a larger one."""
    if size_of(path) > _MOST_PACKED:
        return b""
    with open_regular(path) as stream:
        return stream.read()


def _text(packed: bytes, most: int) -> bytes | None:
    """Returns the text in a gzip stream of one member; None for any other content, and for a damaged one."""
    inflate = isal_zlib.decompressobj(wbits=31)
    try:
        # One call for all: between two calls a thread waits for its turn at the interpreter.
        text = inflate.decompress(packed, most)
    except igzip_lib.IsalError:  # type: ignore[misc]  # its stub is no exception
        return None
    return text.removeprefix(BOM_UTF8) if inflate.eof and not inflate.unused_data.strip(b"\0") else None
