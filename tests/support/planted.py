"""Forty secrets of a program: its variables, arguments, output; and a search for them in what was written."""

from __future__ import annotations

import base64
import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path


def secret(number: int) -> str:
    """One of the secrets: no word, no known form, and the same in every spelling."""
    return f"Pl4nted-{number:02d}-qZ7w"


VARIABLES = {
    name: secret(number)
    for number, name in enumerate(
        ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "WANDB_API_KEY", "MY_PASSWORD", "DB_PWD", "SERVICE_JWT",
         "SMTP_PASS", "GITHUB_TOKEN", "PRIVATE_KEY", "SESSION_COOKIE")
    )
}  # fmt: skip
ARGUMENTS = [
    word.format(secret(10 + number))
    for number, form in enumerate(
        (["--password", "{}"], ["--api-key={}"], ["logger.wandb.api_key={}"], ["WANDB_API_KEY={}"],
         ["--env=K={}"], ["--authToken", "{}"], ["--pw", "{}"], ["-p", "{}"], ["--cookie", "{}"],
         ["--bearer", "{}"], ["--connection-string", "{}"], ["https://host/x?a=1&sig={}"],
         ["https://u:{}@host/x"], ["--passphrase", "-{}"], ["+trainer.secret={}"], ["--url=s3://k:{}@b/"],
         ['--json={{"api_key": "{}"}}'], ["--header", "Authorization: Bearer {}"], ["-e", "A={}"],
         ["AccountName=x;AccountKey={};End"])
    )
    for word in form
]  # fmt: skip
REASONS = [
    f"login at https://me:{secret(30)}@host/ was refused",
    f"password={secret(31)}",
    f"Authorization: Bearer {secret(32)}",
    f"api_key: {secret(33)}",
    f"hf_{secret(34).replace('-', '')}",
    f"retry https://host/x?token={secret(35)}",
]
BARE = [f"hf_{secret(34).replace('-', '')}"]
CONFIGURED = {
    "dataset.path": f"s3://key:{secret(36)}@bucket/x",
    "training.output_dir": f"https://me:{secret(37)}@host/",
    "profiling.trace_filename": f"x?token={secret(38)}.json",
    "logging.level": f"password={secret(39)}",
}
SECRETS = [secret(number) for number in range(40)]
PROGRAM = """
import os, sys
for stream in (sys.stdout, sys.stderr):
    print("variables", dict(os.environ), file=stream)
    print("arguments", sys.argv, file=stream)
    print({reasons!r}, file=stream)
if {fail}:
    raise RuntimeError("; ".join({reasons!r} + sys.argv[1:]))
"""


def write_program(path: Path, *, fail: bool) -> None:
    """A program that prints all that it knows, and fails with it."""
    path.write_text(PROGRAM.format(reasons=REASONS, fail=fail))


def found(*folders: Path, spared: tuple[str, ...] = ()) -> list[str]:
    """`file: secret` of every secret in every file below the folders, unpacked where it is packed.

    Args:
        folders: to search.
        spared: names of files that are not searched.
    """
    hits = []
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name not in spared:
                for data in _contents(path.read_bytes()):
                    hits += [f"{path}: {one}" for one in SECRETS if _holds(data, one)]
        hits += [f"{path}: {one}" for path in folder.rglob("*") for one in SECRETS if one in str(path)]
    return hits


def _holds(data: bytes, one: str) -> bool:
    bare = one.replace("-", "")
    coded = base64.b64encode(one.encode()).rstrip(b"=")
    return one.encode() in data or bare.encode() in data or coded in data or one.encode("utf-16-le") in data


def _contents(data: bytes) -> Iterator[bytes]:
    yield data
    if data.startswith(b"\x1f\x8b"):
        yield from _contents(gzip.decompress(data))
    elif data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                yield from _contents(archive.read(name))
    elif data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                stream = archive.extractfile(member)
                if stream is not None:
                    yield from _contents(stream.read())
