"""Programs that do what hooks could break: with the hooks they print what they print without."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.injected import PYTHON, Ended, run_program

ALONE = """
import copy, io, os, pickle, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def weights(model):
    return [parameter.detach().sum().item().hex() for parameter in model.parameters()]

def model_and_optimizer(lr=0.1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

def batch(step):
    return torch.full((3, 4), float(step))

model, optimizer = model_and_optimizer()
for step in range(6):
    model(batch(step)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("plain", weights(model))

twin = copy.deepcopy(model)
assert not twin._forward_hooks and not twin._forward_pre_hooks
assert list(vars(twin)) == list(vars(nn.Sequential()))
print("deepcopy", twin(batch(1)).sum().item().hex())
content = pickle.dumps(model)
assert b"aorta" not in content
print("pickle", pickle.loads(content)(batch(1)).sum().item().hex())
stream = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, stream)
other, its = model_and_optimizer()
stream.seek(0)
saved = torch.load(stream, weights_only=True)
other.load_state_dict(saved["model"])
its.load_state_dict(saved["optimizer"])
for step in range(3):
    other(batch(step)).sum().backward()
    its.step()
    its.zero_grad()
print("resumed", weights(other))
print("script", torch.jit.script(model)(batch(1)).sum().item().hex())
print("trace", torch.jit.trace(model, batch(1))(batch(2)).sum().item().hex())
print("fx", torch.fx.symbolic_trace(model)(batch(2)).sum().item().hex())

whole, its = model_and_optimizer()
compiled = torch.compile(whole, backend="eager", fullgraph=True)
for step in range(4):
    compiled(batch(step)).sum().backward()
    its.step()
    its.zero_grad()
print("compiled", weights(whole))
inplace, its = model_and_optimizer()
inplace.compile(backend="eager", fullgraph=True)
def loss_of(x):
    return (inplace(x) * x.to(torch.float64).sum()).sum()
step_of = torch.compile(loss_of, backend="eager", fullgraph=True)
for step in range(4):
    step_of(batch(step)).backward()
    its.step()
    its.zero_grad()
print("compiled in place", weights(inplace))

scaled, its = model_and_optimizer()
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
for step in range(4):
    loss = scaled(batch(step)).sum() * (float("inf") if step == 1 else 1.0)
    scaler.scale(loss).backward()
    scaler.step(its)
    scaler.update()
    its.zero_grad()
print("scaler", weights(scaled), scaler.get_scale())

torch.manual_seed(0)
fused = nn.Linear(4, 2)
each = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in fused.parameters()}
def update(parameter):
    each[parameter].step()
    each[parameter].zero_grad()
for parameter in fused.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for step in range(4):
    fused(batch(step)).sum().backward()
print("in backward", weights(fused))

closed, _ = model_and_optimizer()
lbfgs = torch.optim.LBFGS(closed.parameters(), max_iter=3)
def closure():
    lbfgs.zero_grad()
    loss = (closed(batch(1)) - 1).square().sum()
    loss.backward()
    return loss
for step in range(3):
    lbfgs.step(closure)
print("closure", weights(closed))

penal, its = model_and_optimizer()
for step in range(3):
    x = batch(step).requires_grad_()
    (slope,) = torch.autograd.grad(penal(x).sum(), x, create_graph=True)
    (penal(x).sum() + slope.square().sum()).backward()
    its.step()
    its.zero_grad()
print("penalty", weights(penal))

rows = TensorDataset(torch.arange(12.0).reshape(12, 1))
for workers, context in ((0, None), (1, "fork")):
    loader = DataLoader(rows, 4, num_workers=workers, multiprocessing_context=context)
    print("loader", [row.sum().item() for (row,) in loader])
if os.fork() == 0:
    model(batch(1)).sum().backward()
    optimizer.step()
    os._exit(0)
print("child", os.wait()[1])
print("random", torch.rand(1).item().hex(), __import__("random").Random(1).random())
print(sorted(name for name in sys.modules if name in ("msgspec", "yaml", "omegaconf", "click")))
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return run_program(ALONE, tmp_path_factory.mktemp("alone"))


def test_every_use_of_a_model_gives_what_it_gives_without_hooks(alone: Ended, tmp_path: Path) -> None:
    plain = run_program(ALONE, tmp_path, hooks=False)
    assert (alone.codes, plain.codes) == ([0], [0]), alone.err[0] + plain.err[0]
    assert alone.out == plain.out


def test_the_hooks_recorded_all_the_while(alone: Ended) -> None:
    status = alone.status()
    assert (status.hooks_off, status.note) == ({}, None)
    assert len(alone.records()) > 20


FAILS = """
import torch
from aorta.inject import parts

def broken(*_):
    raise RuntimeError("planted")

parts.StepMarks.saw = broken
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(6):
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
print(model.weight.sum().item().hex())
raise SystemExit(3)
"""


def test_a_hook_that_fails_costs_the_breakdown_and_nothing_else(tmp_path: Path) -> None:
    ended = run_program(FAILS, tmp_path)
    assert ended.codes == [3]  # the program's own
    assert ended.err[0].count("planted") == 1
    assert ended.status().hooks_off == {"forward": "RuntimeError: planted"}
    assert {record.breakdown for record in ended.records()} == {None}
    assert len(ended.records()) == 4


RANKS = """
import os, sys
import torch, torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

def train(rank, world, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with model.join():
        for step in range(6 + 2 * rank):  # uneven
            model(torch.full((3, 2), float(step))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    with open(f"{sys.argv[1] if len(sys.argv) > 1 else method}_{rank}", "w") as stream:
        stream.write(model.module.weight.sum().item().hex())
    dist.destroy_process_group()

if __name__ == "__main__":
    method = os.environ["METHOD"]
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name)
    mp.start_processes(train, args=(2, int(os.environ["PORT"])), nprocs=2, start_method=method)
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_that_the_program_starts_itself_are_recorded(tmp_path: Path, method: str) -> None:
    source = RANKS.replace("sys.argv[1] if len(sys.argv) > 1 else method", f"{method!r}")
    ended = run_program(source, tmp_path, variables={"METHOD": method, "PORT": "29571"})
    assert ended.codes == [0], ended.err
    # Six uneven updates of rank 0 and eight of rank 1, two of which are learned from.
    assert [len(ended.records(rank)) for rank in (0, 1)] == [4, 6]
    assert {record.world_size for record in ended.records(1)} == {2}


def test_the_flag_that_ignores_the_environment_leaves_a_plain_program(tmp_path: Path) -> None:
    ended = run_program("import torch; print(torch.ones(1))", tmp_path, flags=["-E"])
    assert (ended.codes, list(ended.run.iterdir())) == ([0], [])


def test_a_sitecustomize_of_the_site_runs_too(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins\nbuiltins.SITE = __name__\n")
    from tests.support.injected import environment

    done = subprocess.run(
        [PYTHON, "-c", "import sitecustomize; print(SITE, sitecustomize.__file__)"],
        env=environment(tmp_path / "run", path=[site]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["sitecustomize", str(site / "sitecustomize.py")]


RESTARTED = """
import os, signal, sys
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(6):
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    if step == 4 and os.environ["HOW"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 5 and os.environ["HOW"] == "aborted":
        import atexit
        atexit._run_exitfuncs()  # as at the end of a program
        os.abort()
if os.environ["HOW"].startswith("leaves"):
    os._exit(int(os.environ["HOW"][-1]))
if os.environ["HOW"] == "raises":
    raise ValueError("the program's own")
"""


def test_a_rank_that_is_started_again_begins_its_records_again(tmp_path: Path) -> None:
    killed = run_program(RESTARTED, tmp_path, variables={"HOW": "killed"})
    assert killed.codes == [-9]
    again = run_program(RESTARTED, tmp_path, variables={"HOW": "ends"})
    assert (again.codes, again.status().ended) == ([0], True)
    assert [record.global_step for record in again.records()] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("how", "code", "ended"),
    [("aborted", -6, True), ("raises", 1, False), ("leaves 0", 0, True), ("leaves 3", 3, False)],
)
def test_a_program_that_has_come_to_its_end_says_so(tmp_path: Path, how: str, code: int, ended: bool) -> None:
    found = run_program(RESTARTED, tmp_path, variables={"HOW": how})
    assert (found.codes, found.status().ended, len(found.records())) == ([code], ended, 4)


UNJOINED = """
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(4):
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
print("done")
"""


def test_ranks_that_never_meet_go_on_without_records_and_say_why(tmp_path: Path) -> None:
    found = run_program(UNJOINED, tmp_path, variables={"WORLD_SIZE": "2"})
    assert (found.codes, found.out) == ([0], ["done\n"])
    status = found.status()
    assert status.note == "the recording failed"
    assert "init_process_group" in status.hooks_off["optimizer"]
    assert found.err[0].count("[aorta]") == 1


FREED = """
import gc, os, sys
from aorta.inject.driver import Driver

class Events:
    def __init__(self):
        self.itself = self  # a recorder is part of a cycle, too

    def __del__(self):
        os.abort()  # as an event of a GPU does in a child

    def __getattr__(self, name):
        return lambda *_: 0

    __exit__ = hurries = lambda *_: None

os.environ["AORTA_RUN_DIR"] = "."
driver = Driver()
driver.recorder = driver._made = Events()
how = "{how}"
if how == "ended before":
    gc.disable()
    driver.abandon()
else:
    driver._parts, driver._quiet.ends = Events(), [Events()]
if os.fork() == 0:
    if how == "not told":
        driver.recorder = driver._made = driver._parts = driver._quiet.ends = None
    else:
        driver.forked()
        driver._quiet._recorder = None
    gc.collect()
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("how", "code"), [("recording", 3), ("ended before", 3), ("not told", -signal.SIGABRT)]
)
def test_a_child_frees_no_event_of_the_gpu(how: str, code: int) -> None:
    done = subprocess.run([PYTHON, "-c", FREED.format(how=how)], capture_output=True, text=True, check=True)
    assert int(done.stdout) == code


LEAVES = """
import os, sys
from aorta.inject import start

def noted(status):
    raise {error}

start._watch_exit(noted)
try:
    os._exit(4)
finally:
    os.abort()
"""


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit(0)"])
def test_a_second_interrupt_keeps_no_process_that_leaves(error: str) -> None:
    done = subprocess.run([PYTHON, "-c", LEAVES.format(error=error)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (4, b"")


NAMED = """
import torch

class Net(torch.nn.Linear):
    def forward(self, module, *, _):
        return super().forward(module) * _

class Other(Net):
    pass

for net in (Net(2, 1), Other(2, 1)):
    torch.nn.init.ones_(net.weight)
    if isinstance(net, Other):
        net._compiled_call_impl = net._call_impl  # as `compile` does
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for update in range(4):
        net(module=torch.ones(3, 2), _=0.5).sum().backward()
        optimizer.step()
print(net.weight.tolist())
"""


def test_arguments_of_a_model_may_have_any_name(tmp_path: Path) -> None:
    plain, hooked = (run_program(NAMED, tmp_path, hooks=hooks) for hooks in (False, True))
    assert (hooked.codes, hooked.out) == (plain.codes, plain.out) == ([0], plain.out), hooked.err
    assert "forward" in hooked.status().seen


CALLS = """
import functools
import torch
from torch import nn

class Twice:
    def __call__(self, x):
        return 2 * x

class Called(nn.Module):
    __call__ = Twice()
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1)

class Dispatched(Called):
    @functools.singledispatchmethod
    def __call__(self, x):
        return self.inner(x).sum()

unfinished = nn.Linear.__new__(nn.Linear)
called, dispatched = Called(), Dispatched()
optimizer = torch.optim.SGD(dispatched.parameters(), lr=0.1)
for step in range(6):
    called(1)
    dispatched(torch.ones(3, 2)).backward()
    optimizer.step()
print(called(1), dispatched.inner.weight.grad.tolist())
"""


def test_a_call_may_be_any_object_and_a_module_may_be_unfinished(tmp_path: Path) -> None:
    plain = run_program(CALLS, tmp_path, hooks=False)
    ended = run_program(CALLS, tmp_path)
    assert (ended.codes, ended.out, ended.err) == (plain.codes, plain.out, [""])
    assert (ended.codes, ended.status().hooks_off, len(ended.records())) == ([0], {}, 4)
