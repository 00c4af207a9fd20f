"""Terms of the reports, and what they mean here."""

from __future__ import annotations

from aorta.report.blocks import Bullet, Bullets, Heading, Strong
from aorta.report.render import to_markdown

TERMS = (
    (
        "Step",
        "one optimizer step of one rank, from the end of the step before to its own end: loading a batch, "
        "forward, backward, update.",
    ),
    (
        "Steady steps",
        "all steps after the warm-up that contain no validation, checkpoint or profiler start-up. Averages "
        "use only steady steps. Monitor samples count from the start of the first to the end of the last. "
        "The breakdown uses the traced steps if all ranks have traces, otherwise the steps timed in detail.",
    ),
    (
        "Detailed step",
        "a step that was timed part by part. Other steps are timed from end to end, which costs less.",
    ),
    ("Compute", "time in which the device computes anything except communication."),
    (
        "Exposed communication",
        "time in collectives that no compute hides. It includes waiting for a rank that is late.",
    ),
    ("Wait", "time in a collective until its last rank arrives."),
    ("Transfer", "time in a collective after its last rank has arrived: the exchange itself."),
    (
        "Charge",
        "an exposed wait belongs to what the last rank did longer than the waiting one: loading, compute or "
        "host work. Charges sum to the exposed waits.",
    ),
    ("Lateness", "how much later than the median rank a rank arrives at a collective."),
    ("Data wait", "time in the loader with nothing else running."),
    ("Host", "the rest of the step: launching, Python, synchronisation. The parts sum to the step exactly."),
    (
        "Unseen time",
        "time that was not measured, with the reason. It counts neither as compute nor as host.",
    ),
    ("Between steps", "time outside of steps: validation, checkpoints, logging, the first batch."),
    ("Own time", "a step less its exposed communication. The others wait for the rank with the longest."),
    (
        "Effective GPU utilisation",
        "compute over step time. The driver's counter also counts kernels that only wait.",
    ),
    (
        "Expected speed-up",
        "step time now over step time without the cause. It comes from a replay of the measured steps, with "
        'a 95 % interval. Where no replay reproduces the steps, it is "at most" what the cause takes.',
    ),
    ("Others wait", "what a rank that waits for this rank loses per step, mean over the others."),
    (
        "Confidence in the cause, or in a verdict without one",
        "high if nothing below applies. Medium: problems in the data, few steps, a shared machine, sources "
        "that contradict each other, or no known sub-cause. Low: missing ranks, or a job that did not "
        "complete.",
    ),
    (
        "Confidence in the gain",
        "high if a replay gives a narrow range. Medium: not simulated (no replay), or a wide range: the "
        "highest speed-up is more than 1.25 times the lowest. Low: it is more than twice the lowest, or the "
        "range holds no gain at all.",
    ),
    ("Efficiency", "samples/s per rank over samples/s per rank of the reference, the smallest run."),
    (
        "Efficiency tree (POP)",
        "global efficiency is computation scalability (useful time per sample at the reference over here) "
        "× parallel efficiency. Parallel efficiency is load balance (mean over longest useful time) × "
        "communication (longest useful time over step). Communication is serialisation (waits, on an ideal "
        "network) × transfer.",
    ),
    (
        "Overall verdict",
        "the verdict of the scenario that loses the most time (ms per step × ranks).",
    ),
)


def glossary() -> Bullets:
    """The terms as a list."""
    return Bullets(tuple(Bullet((Strong(term), f": {meaning}")) for term, meaning in TERMS))


def glossary_page() -> str:
    """`docs/glossary.md`, which holds the same terms as each report."""
    return to_markdown([Heading("Terms", 1), glossary()])
