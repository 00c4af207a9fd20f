"""A stand-in for a training program: a few all-reduces over gloo. Usage: toy.py FOLDER [steps] [behaviour].

Behaviours: `fail1` rank 1 raises at step 3; `stubborn` ignores SIGTERM; `alone` exchanges nothing after the start.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder, steps, behaviour = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
if behaviour == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
wanted = ("AORTA_", "OMP_NUM_THREADS", "PYTHONUNBUFFERED", "GLOO_SOCKET_IFNAME", "MASTER_ADDR", "LOCAL_RANK")
(folder / f"env{rank}.txt").write_text(
    "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(wanted))
)
(folder / f"pid{rank}.part").write_text(str(os.getpid()))
(folder / f"pid{rank}.part").rename(folder / f"pid{rank}")
total = torch.zeros(1)
for step in range(steps):
    if behaviour == "fail1" and rank == 1 and step == 3:
        raise ValueError("the toy breaks here")
    total = torch.full((1,), float(rank + 1))
    if behaviour != "alone":
        dist.all_reduce(total)
    time.sleep(0.05)
print(f"rank {rank} of {world}: sum {int(total)}")
dist.destroy_process_group()
