"""A stand-in for a training program: steps with an all-reduce. Usage: toy.py FOLDER STEPS [BEHAVIOUR].

Behaviours, all without exchanging anything (as is a single rank): `alone` just runs; `fail1` rank 1 raises at
step 3; `stubborn` ignores SIGTERM; `early0` rank 0 ends at once; `abort` the runtime ends it. Without an
exchange torch is not imported, which makes a start cheap.
"""

import os
import signal
import sys
import time
from pathlib import Path

folder, steps, behaviour = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
exchange = world > 1 and not behaviour
if behaviour == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if exchange:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
wanted = ("AORTA_", "OMP_NUM_THREADS", "PYTHONUNBUFFERED", "GLOO_SOCKET_IFNAME", "MASTER_ADDR", "LOCAL_RANK")
(folder / f"env{rank}.txt").write_text(
    "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(wanted))
)
(folder / f"pid{rank}.part").write_text(str(os.getpid()))
(folder / f"pid{rank}.part").rename(folder / f"pid{rank}")
total = 0
if behaviour == "early0" and rank == 0:
    steps = 0
if behaviour == "abort":
    print("terminate called without an active exception", file=sys.stderr, flush=True)
    os.abort()
for step in range(steps):
    if behaviour == "fail1" and rank == 1 and step == 3:
        raise ValueError("the toy breaks here")
    if exchange:
        share = torch.full((1,), float(rank + 1))
        dist.all_reduce(share)
        total = int(share)
    time.sleep(0.05)
print(f"rank {rank} of {world}: sum {total}")
if exchange:
    dist.destroy_process_group()
