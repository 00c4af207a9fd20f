"""Asks a process for torch's flight recorder, where the process offers it: a socket, or a file that it wrote.

Nothing is asked of a process that does not say where: a port of its own may be anything.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import zlib
from pathlib import Path

from aorta.artefacts.attached import RecorderDump
from aorta.artefacts.files import read_regular
from aorta.attach.processes import TorchProcess
from aorta.errors import ArtefactError

_SOCKET = "TORCH_WORKER_SERVER_SOCKET"
"""Names the socket of torch's worker server, which `torch.distributed.elastic.control_plane` starts."""
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Name the file, without its rank, that torch's watchdog writes when a call takes too long."""
_REQUEST = b"POST /handler/fr_trace_json HTTP/1.0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_TIMEOUT_S = 3.0
_LARGEST_BYTES = 16 << 20


def recorder_of(process: TorchProcess, proc: Path = Path("/proc")) -> RecorderDump | None:
    """The flight recorder of a process. None if the process offers none.

    Args:
        process: a rank.
        proc: where procfs is; files are read as the process sees them, also from inside a container.
    """
    root = proc / str(process.pid) / "root"
    path = process.environment.get(_SOCKET)
    data = _asked(root, path) if path else None
    if data is not None:
        return RecorderDump(data=zlib.compress(data), wall_ns=time.time_ns())
    rank = process.number("RANK")
    for name in _FILES:
        prefix = process.environment.get(name)
        if (
            prefix
            and rank is not None
            and (found := _written(root, f"{prefix}{rank}", proc / str(process.pid)))
        ):
            return found
    return None


def _asked(root: Path, path: str) -> bytes | None:
    """The body of the answer. None if no process answers with a recorder."""
    parts, size = [], 0
    try:
        # A path of a socket may have about 100 characters: the folder is given by its descriptor.
        folder = os.open(root / str(Path(path).parent).lstrip("/"), os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(_TIMEOUT_S)
            link.connect(f"/proc/self/fd/{folder}/{Path(path).name}")
            link.sendall(_REQUEST)
            while size < _LARGEST_BYTES and (part := link.recv(1 << 16)):
                parts.append(part)
                size += len(part)
    except OSError:
        return None
    finally:
        os.close(folder)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    return body if head.split(b"\r\n")[0].split()[1:2] == [b"200"] and size < _LARGEST_BYTES else None


def _written(root: Path, path: str, process: Path) -> RecorderDump | None:
    """A dump that the process has written since it started."""
    file = root / path.lstrip("/")
    with contextlib.suppress(OSError, ArtefactError):
        written = file.stat().st_mtime_ns
        if written >= process.stat().st_ctime_ns:
            return RecorderDump(data=zlib.compress(read_regular(file, _LARGEST_BYTES)), wall_ns=written)
    return None
