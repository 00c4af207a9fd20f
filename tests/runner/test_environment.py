"""Which variables and words may be written down."""

from __future__ import annotations

import pytest

from aorta.runner import environment


def test_only_listed_variables_and_no_secret_among_them():
    environ = {
        "RANK": "3",
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
        "NCCL_AUTH_TOKEN": "x",
        "SLURM_JOB_ID": "7",
        "HF_TOKEN": "x",
        "MY_SETTING": "x",
        "CUDA_VISIBLE_DEVICES": "GPU-8f3c1d2e-0000-1111-2222-333344445555",
    }
    assert sorted(environment.recorded(environ)) == ["CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "SLURM_JOB_ID"]
    shown = environment.shown(environ)
    assert sorted(shown) == ["CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "PATH", "RANK", "SLURM_JOB_ID"]


@pytest.mark.parametrize(
    ("value", "token"),
    [
        ("hf_abcdefghij", True),
        ("https://me:pass@host/x", True),
        ("Bearer eyJhbGciOiJIUzI1", True),
        ("0123456789abcdef0123456789abcdef", True),
        ("ml-16-node-[001-002,004]", False),
        ("/a/very/long/path/with/many/parts/2node/run_20250101", False),
        ("http://host:80/x", False),
        ("", False),
    ],
)
def test_values_that_look_like_tokens(value, token):
    assert environment.looks_like_token(value) is token
    assert environment.recorded({"NCCL_X": value}) == ({} if token else {"NCCL_X": value})


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (["t.py", "--password", "x", "--lr", "1"], ["t.py", "--password", "***", "--lr", "1"]),
        (["t.py", "--api-key=x", "--name=y"], ["t.py", "--api-key=***", "--name=y"]),
        (["t.py", "--tokenizer", "bert"], ["t.py", "--tokenizer", "bert"]),
        (["t.py", "--token", "--fast"], ["t.py", "--token", "--fast"]),
        (["t.py", "hf_abcdefghij", "--url=s3://a:b@c/"], ["t.py", "***", "--url=***"]),
    ],
)
def test_secrets_of_a_command_are_masked(command, kept):
    assert environment.without_secrets(command) == kept
