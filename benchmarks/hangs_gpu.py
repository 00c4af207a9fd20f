"""Hangs and slow ranks on NCCL: what stacks from outside and the flight recorder show, and what they do not.

    python benchmarks/hangs_gpu.py --output $OUT

Two ranks on two GPUs, or both on the one GPU that there is: then gloo takes NCCL's place, and the output
says so. `--ranks 1 --backend nccl` is one rank of NCCL on it. Without a GPU, the program shows that it
works. Each case trains for some seconds. py-spy and `aorta attach` look at the ranks from outside. At the
end, each rank dumps its flight recorder from a thread, as its main thread stands still. The dumps go
through the reader of `aorta analyze`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch._C._distributed_c10d as c10d  # noqa: E402
import torch.distributed as dist  # noqa: E402

from aorta.diagnosis.hang import hang_of_recordings  # noqa: E402
from aorta.readers import flight  # noqa: E402
from aorta.readers.flight_folder import read_folder  # noqa: E402

CASES = {
    "host_asleep": ("host_stuck", [1]),
    "gpu_spins": ("gpu_stuck", [1]),
    "other_size": ("other_size", [1]),
    "slow_host": (None, []),
    "slow_gpu": (None, []),
    "other_collective": ("other_collective", [1]),
    "other_dtype": ("other_dtype", [1]),
    "call_missing": ("host_stuck", [1]),
    "clean": (None, []),
}
"""The answer that the flight recorders should give; None: the job goes on."""
ALONE = CASES | {"host_asleep": (None, []), "gpu_spins": ("transfer_stuck", [])}
"""One rank: no other one shows that a host is missing, or that a GPU is late."""
AT_STEP = 60
LOOK_S = 3.0


def rank_main(case: str, folder: Path, backend: str) -> None:
    """Train; on the last rank do what the case says at step `AT_STEP`, or in each step."""
    rank = int(os.environ["RANK"])
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", rank % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group(backend, device_id=device if backend == "nccl" else None)
    threading.Thread(target=dump_on_request, args=(folder, rank), daemon=True).start()
    width = 2048 if gpus else 256
    weights = [torch.randn(width, width, device=device) for _ in range(4)]
    data = torch.randn(512, width, device=device)
    odd, end = rank == dist.get_world_size() - 1, time.monotonic() + 60
    step = 0
    while time.monotonic() < end and not (folder / "end").exists():
        out = data
        for weight in weights:
            out = torch.tanh(out @ weight)
        if odd and case == "slow_host":
            time.sleep(0.02)
        if odd and case == "slow_gpu":
            for _ in range(60 if device.type == "cuda" else 1):
                out = torch.tanh(out @ weights[0])
        gradient = out.mean(0)
        if step == AT_STEP and odd:
            stand_still(case, gradient, device)
        if not (step >= AT_STEP and odd and case == "call_missing"):
            dist.all_reduce(gradient)
        step += 1
        if step % 5 == 0:
            gradient.sum().item()
        if step == AT_STEP // 2:
            (folder / f"trains_{rank}").touch()
    print(f"rank {rank}: {step} steps", flush=True)
    os._exit(0)


def stand_still(case: str, gradient, device) -> None:
    """Stops the last rank at step `AT_STEP`, in the way of the case."""
    if case == "host_asleep":
        time.sleep(60)
    elif case == "other_size":
        dist.all_reduce(torch.ones(1 << 22, device=device))
    elif case == "other_dtype":
        dist.all_reduce(gradient.half())
    elif case == "other_collective":
        dist.all_gather_into_tensor(torch.empty(2 * len(gradient), device=device), gradient)
    elif case == "gpu_spins":
        torch.cuda._sleep(1 << 38)


def dump_on_request(folder: Path, rank: int) -> None:
    """Write the flight recorder of this rank once `folder/dump` exists; stacks would take seconds."""
    while not (folder / "dump").exists():
        time.sleep(0.2)
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            (folder / name.strip("_")).mkdir(exist_ok=True)
            (folder / name.strip("_") / f"dump_{rank}").write_bytes(
                dump(includeCollectives=True, includeStackTraces=False)
            )
    (folder / f"dumped_{rank}").touch()


def run(case: str, output: Path, backend: str, ranks: int) -> dict[str, object]:
    """One case: the answers of aorta while it runs, and of its dumps."""
    folder = output / case
    folder.mkdir(parents=True, exist_ok=True)
    env = os.environ | {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1"}
    env |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(29500 + hash(case) % 400),
        "WORLD_SIZE": str(ranks),
    }
    children = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank-of", case, "--output", str(folder), "--backend", backend],
            env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=(folder / f"rank{rank}.log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        for rank in range(ranks)
    ]
    began = time.monotonic()
    while time.monotonic() - began < 40 and not all(
        (folder / f"trains_{rank}").exists() for rank in range(ranks)
    ):
        time.sleep(0.2)
    time.sleep(1.0)
    pids = [str(child.pid) for child in children]
    attached = aorta(
        "attach",
        *(word for pid in pids for word in ("--pid", pid)),
        "--seconds",
        f"{LOOK_S:g}",
        "--json",
        "-",
    )
    stacks = {f"rank {rank}": innermost(pid) for rank, pid in enumerate(pids)}
    (folder / "dump").touch()
    limit = time.monotonic() + 8
    while time.monotonic() < limit and not all((folder / f"dumped_{rank}").exists() for rank in range(ranks)):
        time.sleep(0.1)
    time.sleep(2.5)  # a dump of open calls has to be older than a moment
    for path in folder.glob("dump_*/dump_*"):
        os.utime(path)
    (folder / "end").touch()
    for child in children:
        try:
            child.wait(3)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    return {"case": case, "attach": attached, "stacks": stacks, "recorders": recorded(folder, case, ranks)}


def aorta(*words: str) -> object:
    """What `aorta attach` says, in short; its error where there is one."""
    done = subprocess.run(
        [sys.executable, "-m", "aorta", *[word for word in words if word != "-"]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return (done.stdout + done.stderr)[-300:]
    gpus = [item.get("gpu") for item in found["by_rank"]]
    return {"kind": found["kind"], "ranks": found["ranks"], "statement": found["statement"], "gpus": gpus}


def innermost(pid: str) -> object:
    """The innermost frames of the main thread, by py-spy."""
    program = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    try:
        done = subprocess.run(
            [program, "dump", "--pid", pid, "--nonblocking"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except OSError:
        return "py-spy is not installed"
    lines = done.stdout.splitlines()
    start = next((number for number, line in enumerate(lines) if "MainThread" in line), None)
    return (
        [line.strip() for line in lines[start + 1 : start + 4]] if start is not None else done.stderr[-200:]
    )


def recorded(folder: Path, case: str, world: int) -> dict[str, Any]:
    """Returns the reader's answer to each kind of dump, and the newest calls of each rank."""
    kind, ranks = (CASES if world > 1 else ALONE)[case]
    answers: dict[str, Any] = {}
    for place in sorted(folder.glob("dump_*")):
        paths = flight.find([place])
        try:
            found = read_folder(paths).recordings if paths else []
            hang = hang_of_recordings(found)
        except Exception as error:
            answers[place.name] = f"{type(error).__name__}: {error}"
            continue
        said = None if hang is None else (hang.kind, [item.rank for item in hang.ranks])
        where = None if hang is None or hang.where is None else f"{hang.where.function}:{hang.where.line}"
        newest = {
            item.rank: [(call.number, call.started, call.finished) for call in item.calls[-3:]]
            for item in found
        }
        answers[place.name] = {"said": said, "expected": (kind, ranks), "files": len(paths), "where": where}
        answers[place.name] |= {"newest": newest}
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", help="cases, with commas")
    parser.add_argument("--seconds", type=float, default=110.0, help="no case begins later than this")
    parser.add_argument("--ranks", type=int, default=2, help="1: what one rank of NCCL on one GPU shows")
    parser.add_argument("--backend", choices=["nccl", "gloo"])
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        rank_main(options.rank_of, options.output, options.backend)
        return
    gpus = torch.cuda.device_count()
    backend = options.backend or ("nccl" if gpus > 1 else "gloo")
    print(f"{gpus} GPUs, torch {torch.__version__}, {backend}", flush=True)
    rows: list[dict[str, object]] = []
    start = time.monotonic()
    for case in options.only.split(",") if options.only else CASES:
        began = time.monotonic()
        if began - start > options.seconds:
            print(f"{case}: left out, no time", flush=True)
            continue
        try:
            row = run(case, options.output, backend, options.ranks)
        except Exception as error:
            row = {"case": case, "error": f"{type(error).__name__}: {error}"}
        rows.append(row)
        print(json.dumps(row | {"seconds": round(time.monotonic() - began, 1)}), flush=True)
    (options.output / "hangs_gpu.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
