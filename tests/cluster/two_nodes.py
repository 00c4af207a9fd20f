"""Run in fresh network and mount namespaces: make two nodes, look around inside, send bytes, clean up.

usage: two_nodes.py FOLDER RATE    (RATE as in `--rate`, or `none`); prints one JSON object
"""

import json
import subprocess
import sys
from pathlib import Path

from aorta.cluster import config, network
from aorta.cluster.config import ClusterDir, ClusterSettings, Machine

BYTES = 1_000_000
LOOK = """
import json, os, socket
print(json.dumps({
    "hostname": socket.gethostname(),
    "node1": socket.gethostbyname("node1"),
    "cgroup": sorted(os.listdir("/sys/fs/cgroup")),
}))
"""
RECEIVE = """
import socket, sys, time
server = socket.create_server(("", 5000))
print("ready", flush=True)
connection, _ = server.accept()
left, began = int(sys.argv[1]), time.monotonic()
while left:
    left -= len(connection.recv(65536))
print(time.monotonic() - began)
"""
SEND = """
import socket, sys
socket.create_connection(("node1", 5000)).sendall(bytes(int(sys.argv[1])))
"""


def main() -> None:
    folder = ClusterDir(Path(sys.argv[1]))
    rate = None if sys.argv[2] == "none" else config.parse_rate(sys.argv[2])
    settings = ClusterSettings(2, netns=True, rate_bit_s=rate)
    folder.root.mkdir(exist_ok=True)
    folder.hosts.write_text(config.hosts(settings, Machine("box", "root", 1, (22, 5))))
    network.NETNS_FOLDER.mkdir(exist_ok=True)
    # The names of namespaces are files there: hide those of a cluster that runs on this machine.
    subprocess.run(["mount", "-t", "tmpfs", "none", str(network.NETNS_FOLDER)], check=True)
    network.create(folder, settings)
    assert network.owner() == folder.root

    def on(name: str, program: str) -> list[str]:
        return [*network.enter_argv(folder, name), sys.executable, "-c", program, str(BYTES)]

    seen = json.loads(subprocess.check_output(on("node2", LOOK)))
    with subprocess.Popen(on("node1", RECEIVE), stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        assert receiver.pid in network.pids()
        subprocess.run(on("node2", SEND), check=True)
        seconds = float(receiver.stdout.readline())
    network.destroy()
    links = json.loads(subprocess.check_output(["ip", "-j", "link", "show"]))
    left = [link["ifname"] for link in links if link["ifname"].startswith("aorta")]
    left += [entry.name for entry in network.NETNS_FOLDER.iterdir()]
    print(json.dumps({**seen, "bytes": BYTES, "seconds": seconds, "left_behind": left}))


if __name__ == "__main__":
    main()
