"""Bytes that pass the ports of InfiniBand and RoCE adapters, which the kernel's network counters miss.

Format: `Documentation/ABI/stable/sysfs-class-infiniband` of the Linux kernel. The counters count units
of four bytes.
"""

from __future__ import annotations

from pathlib import Path

from aorta.monitors.cgroup import OpenFile

_UNIT_BYTES = 4


class Ports:
    """The counters of all ports of this machine.

    Args:
        sysfs: where sysfs is.
    """

    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        ports = sorted(sysfs.glob("class/infiniband/*/ports/*/counters"))
        self._sent = [OpenFile(port / "port_xmit_data") for port in ports]
        self._received = [OpenFile(port / "port_rcv_data") for port in ports]

    def bytes(self) -> tuple[int | None, int | None]:
        """Bytes sent and received so far; None without a port, or where a counter cannot be read."""
        return _total(self._sent), _total(self._received)

    def close(self) -> None:
        """Close what is kept open."""
        for file in (*self._sent, *self._received):
            file.close()


def _total(files: list[OpenFile]) -> int | None:
    texts = [(file.read() or "").strip() for file in files]
    if not texts or not all(text.isdigit() for text in texts):
        return None
    return _UNIT_BYTES * sum(map(int, texts))
