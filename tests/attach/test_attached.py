"""What a node prints is read as it was seen: masking a secret must not break the line."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aorta.artefacts.attached import NodeView, ProcessView, decoded, encoded
from aorta.commands._say import say_encoded

PROCESS = ProcessView(
    pid=7, host="n1", command="", rank=None, world_size=None, parent=1, role="launcher", stacks=[],
    seconds=2.0, cpu_seconds=None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("command", "secret"),
    [
        ("python -u /home/me/train.py", None),
        ("python train.py --api-key sk-12345678901234567890abcd", "sk-12345678901234567890abcd"),
        ("curl -u me:hunter2secret http://x", "hunter2secret"),
    ],
)
def test_a_command_line_arrives_with_its_secrets_masked(capsys, command, secret):
    view = NodeView(host="n1", processes=[replace(PROCESS, command=command)], problems=["as said"])
    say_encoded(encoded(view))
    found = decoded(capsys.readouterr().out)
    assert found is not None
    assert replace(found.processes[0], command="") == PROCESS
    assert secret is None or secret not in found.processes[0].command
