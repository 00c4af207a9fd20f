"""Garbage-collector pauses.

What it finds:
    Python's collector stops the training process now and then: a long stretch without any operator, in
    some steps.
Why it costs time:
    A full collection walks all objects of the process. The ranks pause at different times, so that
    every pause makes all wait.
What to do:
    Freeze what lives long and collect by hand on all ranks at the same step: `gc.freeze();
    gc.disable()`, then `gc.collect(1)` every 100 steps.
"""

from __future__ import annotations

from aorta.diagnosis.mistake import MistakeSpec

SPEC = MistakeSpec(
    id="gc_pauses",
    before="""\
for batch in loader:
    ...
""",
    after="""\
gc.freeze()
gc.disable()
for step, batch in enumerate(loader):
    ...
    if step % 100 == 0:
        gc.collect(1)
""",
    predicted_by="not predicted from traces: a trace does not name the collector",
    captures=(),
    look=None,
    shown_by="gc callbacks of the program; traces hold only the silent stretch",
)
