"""Which calls of models are the forward pass: methods, teachers, and what torch makes of watched modules."""

from __future__ import annotations

from pathlib import Path

from tests.support.injected import run_program

METHODS = """
import torch
from torch import nn

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 4), nn.ReLU())
        self.heads = nn.ModuleDict({"policy": nn.Linear(4, 3), "unused": nn.Sigmoid()})
        self.norm = nn.LayerNorm(3)
    def act(self, x):
        return self.heads["policy"](self.body(x))

torch.manual_seed(0)
agent = Agent()
optimizer = torch.optim.SGD(agent.parameters(), lr=0.5)
for step in range(12):
    with torch.no_grad():
        agent.act(torch.ones(7, 2))
    agent.act(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("__call__" in vars(nn.Linear), "__call__" in vars(nn.Sequential), "__call__" in vars(nn.LayerNorm))
print([p.sum().item().hex() for p in agent.parameters()])
"""


def test_the_forward_pass_in_methods_of_a_model_is_seen(tmp_path: Path) -> None:
    """Updates 4 to 8 teach which modules count: the body and one head. Each step calls both twice, once
    without gradients: four pieces. The classes of the others get their own call back. The number of samples
    is not guessed.
    """
    (tmp_path / "plain").mkdir()
    (tmp_path / "hooks").mkdir()
    plain = run_program(METHODS, tmp_path / "plain", hooks=False)
    ended = run_program(METHODS, tmp_path / "hooks")
    assert ended.codes == [0], ended.err
    assert ended.out[0].splitlines()[-1] == plain.out[0].splitlines()[-1]
    pieces = [
        [piece.tag for piece in record.profile.ranges].count("forward")
        for record in ended.records()
        if record.profile
    ]
    assert pieces == [0] * 2 + [4] * 8
    assert {record.samples for record in ended.records()} == {None}
    told = [line for line in ended.out[0].splitlines() if line[0] in "TF"]
    assert told == ["False False False"] * 3 + ["True True True"] * 5 + ["True True False"] * 4
    assert "forward" in ended.status().seen


TEACHER = """
import torch
from torch import nn

student, teacher, loss = nn.Linear(2, 1), nn.Linear(2, 1).requires_grad_(False), nn.MSELoss()
optimizer = torch.optim.SGD(student.parameters(), lr=0.5)
for step in range(12):
    x = torch.ones(3, 2)
    with torch.no_grad():
        target = teacher(torch.ones(5, 2))
    loss(student(x), target[:3]).backward()
    optimizer.step()
"""


def test_the_pass_of_a_teacher_in_each_step_is_compute(tmp_path: Path) -> None:
    """Teacher and student make two pieces. Three samples train; the teacher's five do not."""
    ended = run_program(TEACHER, tmp_path)
    assert ended.codes == [0], ended.err
    for record in ended.records():
        assert record.profile is not None
        assert [piece.tag for piece in record.profile.ranges].count("forward") == 2
        assert record.samples == 3


def test_a_teacher_alone_is_no_forward_pass_that_trains(tmp_path: Path) -> None:
    script = TEACHER.replace("student(x)", "nn.functional.linear(x, student.weight)")
    ended = run_program(script, tmp_path)
    assert ended.codes == [0], ended.err
    assert "forward" not in ended.status().seen


LATER_COMPILED = (
    METHODS
    + """
act = torch.compile(agent.act, backend="eager", fullgraph=True)
for _ in range(3):
    loss = act(torch.ones(3, 2)).sum()
    loss.backward()
    optimizer.step()
    print("after", loss.item().hex())
import copy, pickle
for same in (copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))):
    print("after", same.act(torch.ones(1, 2)).sum().item().hex())
print("after", torch.jit.script(nn.Sequential(nn.Linear(2, 4)))(torch.zeros(1, 2)).shape)
print("after", [node.op for node in torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 4))).graph.nodes])
"""
)


def test_modules_whose_calls_are_watched_compile_copy_and_trace_as_usual(tmp_path: Path) -> None:
    said = []
    for hooks in (True, False):
        (tmp_path / str(hooks)).mkdir()
        ended = run_program(LATER_COMPILED, tmp_path / str(hooks), hooks=hooks)
        assert ended.codes == [0], ended.err
        said.append([line for line in ended.out[0].splitlines() if line.startswith("after")])
    assert len(said[0]) == 7
    assert said[0] == said[1]
