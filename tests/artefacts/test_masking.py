from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aorta.artefacts import names
from aorta.artefacts.io import json_bytes, read_json, write_exact, write_json, write_text
from aorta.artefacts.masking import (
    MASK,
    Masker,
    argument_values,
    here,
    looks_like_token,
    remember,
    secret_name,
    secret_values,
    told_to_children,
)

SECRET = "Xq7-planted.value"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("--password {}", "--password ***"),
        ("--pw {}", "--pw ***"),
        ("-p {}", "-p ***"),
        ("--authToken {}", "--authToken ***"),
        ("--cookie {}", "--cookie ***"),
        ("--bearer {}", "--bearer ***"),
        ("--connection-string {}", "--connection-string ***"),
        ("--connectionString={}", "--connectionString=***"),
        ("--api-key={}", "--api-key=***"),
        ("logger.wandb.api_key={}", "logger.wandb.api_key=***"),
        ("WANDB_API_KEY={}", "WANDB_API_KEY=***"),
        ("--env=K={}", "--env=K=***"),
        ("--env K={}", "--env K=***"),
        ("-e A={}", "-e A=***"),
        ("-u me:{}", "-u me:***"),
        ("+trainer.secret={}", "+trainer.secret=***"),
        ("https://h/x?a=1&sig={}&b=2", "https://h/x?a=1&sig=***&b=2"),
        ("https://u:{}@h/x", MASK),
        ("--url=https://u:{}@h/x", "--url=***"),
        ('--json={{"api_key":"{}"}}', '--json={"api_key":***}'),
        ("--header 'Authorization: Basic {}'", "--header Authorization:***"),
        ("-H X-Api-Key:{}", "-H X-Api-Key:***"),
        ("--pin {}", "--pin ***"),
        ("--otp={}", "--otp=***"),
        ("--session-id {}", "--session-id ***"),
        ("++secrets.any={}", "++secrets.any=***"),
        ("-p{}", "-p***"),
        ("https://h/?key={}", MASK),
        ('--json={{"wandb":{{"key":"{}"}}}}', '--json={"wandb":{"key":***}}'),
        ("--client_secret {}", "--client_secret ***"),
        ("--passphrase -{}", "--passphrase ***"),
        ("AccountName=x;AccountKey={};End", "AccountName=x;AccountKey=***;End"),
    ],
)
def test_secrets_in_arguments(words: str, kept: str) -> None:
    command = ["train.py", *shlex.split(words.format(SECRET)), "--lr", "1"]
    shown = Masker().command(command)
    assert shown == ["train.py", *shlex.split(kept), "--lr", "1"]
    assert any(SECRET in value for value in argument_values(command))


@pytest.mark.parametrize(
    "words",
    [
        "--tokenizer bert",
        "--max_tokens=512",
        "--num-key-value-heads 8",
        "training.batch_size=8",
        "--nodes 2",
        "--pin-memory",
        "monitor.interval_s=0.5",
        "https://host:80/x",
        "--use-auth --fast",
        "key.sub=value",
        "s3://bucket/key=part/file",
        "--keyboard us",
        "-m package",
        "-H node1:4",
        "-p8080",
        "token == eos",
    ],
)
def test_other_arguments_stay(words: str) -> None:
    assert Masker().command(words.split()) == words.split()


@pytest.mark.parametrize(
    "text",
    [
        "GET https://u:{}@h/ failed",
        "Authorization: Bearer {}",
        "password={} is wrong",
        "api_key: {}",
        'bad request: {{"token": "{}"}}',
        "--authToken={}",
        "DB_PASSWORD='{}'",
        "see ?X-Amz-Signature={}&x=1",
        "invalid API key {}",
        "token {} has ended",
        "secret_access_key = '{}'",
        "<Password>{}</Password>",
        "curl -u me:{} h",
        "https://hooks.slack.com/services/T0/B0/{}",
    ],
)
def test_secrets_by_form_in_any_text(text: str) -> None:
    assert SECRET not in Masker().text(text.format(SECRET))


@pytest.mark.parametrize(
    "token",
    [
        "hf_abcdefghijk",
        "sk-abcdefgh1234",
        "ghp_0123456789abcdef",
        "github_pat_11ABCDEFG0",
        "glpat-abcdefgh12",
        "xoxb-123456789012",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def",
        "AIzaSyA1234567890abc",
    ],
)
def test_known_tokens_are_masked_wherever_they_stand(token: str) -> None:
    assert Masker().text(f"RuntimeError: {token}, again") == f"RuntimeError: {MASK}, again"
    assert looks_like_token(token)


@pytest.mark.parametrize(
    "text",
    [
        "tokens: 12,000",
        "training.tokens=5",
        "ok: waits take 12 %",
        "override 'x' is not written as key.sub=value",
        "rank_0_metrics.jsonl, line 3: a part of step 4 is negative",
        "0123456789abcdef0123456789abcdef",
        "pass=2",
        "_=5 and key: 7",
        '{"cmd":"python -u train.py","pid":1234567}',
        "void at::native::key_value_kernel<float>(int)",
        "session: token None",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert Masker().text(text) == text


def test_values_of_secret_variables_are_masked_in_every_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "p\"q'r s&1"
    monkeypatch.setenv("MY_DB_PASSWORD", value)
    for spelled in (value, json.dumps(value), shlex.quote(value), "p%22q%27r%20s%261"):
        text = here().text(f"it is {spelled} here")
        assert not any(part in text for part in (value, "r s&1", "s%261"))
    monkeypatch.delenv("MY_DB_PASSWORD")
    assert here().text(value) == value


def test_short_and_plain_values_are_no_secrets() -> None:
    environ = {
        "HF_TOKEN": "hf_1",
        "TOKENIZERS_PARALLELISM": "false",
        "AUTH_MODE": "kerberos"[:7],
        "KEY_FILE": "/etc/x",
        "API_KEY": "hunter2",
        "A": "0123456789abcdef0123456789abcdef",
    }
    assert secret_values(environ) == {"API_KEY": "hunter2", "A": environ["A"]}
    assert secret_name("wandbApiKey")
    assert secret_name("DB_PWD")
    assert not secret_name("MONKEY_MODE")
    assert not secret_name("tokenizer")


def test_what_is_written_has_no_secret_and_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "12345678")
    path = tmp_path / "a.json"
    write_json(path, {"wall_ns": 12345678901, "why": "got 12345678 \udce9", "token": "abc"})
    assert json.loads(path.read_text()) == {"wall_ns": 12345678901, "why": "got *** \\xe9", "token": "abc"}
    write_text(path, "a 12345678 \udce9")
    assert path.read_text() == "a *** \\xe9"
    write_exact(path, "a 12345678 \udce9", private=True)
    assert path.read_bytes() == b"a 12345678 \xe9"
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text('{"why": "12345678"}')
    assert read_json(path, dict) == {"why": MASK}


def test_a_child_is_told_the_secrets_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aorta.artefacts.masking._REMEMBERED", [])
    assert told_to_children() == {}
    remember(["t.py", "--pw", SECRET])
    assert here().text(f"x {SECRET}") == f"x {MASK}"
    told = told_to_children()
    monkeypatch.setattr("aorta.artefacts.masking._REMEMBERED", [])
    assert here().text(f"x {SECRET}") == f"x {SECRET}"
    monkeypatch.setenv(names.SECRET_VALUES, told[names.SECRET_VALUES])
    assert here().text(f"x {SECRET}") == f"x {MASK}"


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80))
def test_masking_twice_is_masking_once(text: str) -> None:
    once = Masker([SECRET]).text(text)
    assert Masker([SECRET]).text(once) == once
    assert SECRET not in Masker([SECRET]).text(text + SECRET + text)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=60))
def test_lines_without_secrets_stay_as_they_are(line: bytes) -> None:
    assert Masker().line(line) == line or b"***" in Masker().line(line)


def test_json_of_a_record_is_left_as_it_is_where_nothing_is_secret() -> None:
    record = {"a": [1, 2.5, None, "x"], "b": {"c": "d"}}
    assert json.loads(json_bytes(record)) == record
