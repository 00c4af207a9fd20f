"""The terms that reports use, and what they mean."""

from __future__ import annotations

from aorta.report.blocks import Bullet, Bullets, Heading, Strong, coded
from aorta.report.markdown import to_markdown

TERMS = (
    (
        "Scenario",
        "one configuration of the job that was run: `1node` is the job on one node. A report has one "
        "section per scenario.",
    ),
    (
        "Job, run, submission",
        "a submission starts one or more jobs, one per scenario. A run is what one job left in its "
        "run directory.",
    ),
    (
        "Step",
        "one optimizer step of one rank: loading a batch, forward, backward, update. Time between the "
        "recorded end of a step and the recorded start of the next one is not part of a step.",
    ),
    (
        "Warm-up",
        "the first `capture.warmup_steps` steps of a run. They are left out, because they contain "
        "start-up work such as filling caches.",
    ),
    (
        "Steady steps",
        "all steps after the warm-up that contain no validation, checkpoint or profiler start-up. Averages "
        "use only steady steps, and only monitor samples taken between the first and the last steady step.",
    ),
    (
        "Breakdown",
        "the parts of the mean step. The breakdown uses the traced steps if all ranks have traces, and "
        "otherwise the detailed steps.",
    ),
    (
        "Detailed step",
        "a step that was timed part by part. Other steps are only timed from start to end, which costs less.",
    ),
    (
        "Monitors",
        "programs that sample the use of CPUs and GPUs while the job runs, about once per second.",
    ),
    (
        "Compute",
        "time in which the device (GPU or CPU) computes anything except communication.",
    ),
    (
        "Exposed communication",
        "time in collectives that is not overlapped with compute. It includes waiting for late ranks.",
    ),
    (
        "Exposed transfer",
        "exposed communication without the waits: the data transfer itself.",
    ),
    (
        "All communication",
        "exposed and overlapped communication together.",
    ),
    (
        "Wait",
        "time in a collective until its last rank arrives.",
    ),
    (
        "Transfer",
        "time in a collective after its last rank has arrived: the data transfer itself.",
    ),
    (
        "Waiting that an earlier slow transfer causes",
        "waiting for a rank that arrives late because an earlier collective took longer on it than on the "
        "others.",
    ),
    (
        "Charge",
        "the part of a wait that is attributed to a cause. The cause is whichever of data loading, compute "
        "or host work took longer on the last rank than on the waiting rank. All charges together equal the "
        "exposed waits.",
    ),
    (
        "Median rank",
        "the rank with the middle value. With an even number of ranks, it is the rank with the lower of the "
        "two middle values. With two ranks, the slower rank is therefore compared with the faster one.",
    ),
    (
        "Worst rank",
        "the rank with the largest value.",
    ),
    (
        "Late, lateness",
        "a rank's lateness is the time between the median rank's arrival at a collective and its own "
        "arrival.",
    ),
    (
        "Data wait",
        "time in the loader with nothing else running. Without loader workers, data wait is the loading "
        "itself.",
    ),
    (
        "Host work",
        "Python and other CPU work: all of the step that is not compute, exposed communication, exposed "
        "copies or data wait. Launching kernels and synchronisation belong to it. By this definition, the "
        "parts of a step add up to exactly the step. The host is the CPU side of a rank, not a machine: "
        "machines are called nodes.",
    ),
    (
        "Unseen time",
        "time that could not be measured; the report gives the reason. Unseen time counts neither as "
        "compute nor as host work.",
    ),
    (
        "Between steps",
        "time between the end of a step and the start of the next one: validation, checkpoints, logging, "
        "the first batch.",
    ),
    (
        "Own time",
        "a step without its exposed communication. The other ranks wait for the rank with the longest "
        "own time.",
    ),
    (
        "Wait caused per other rank",
        "the time per step that each other rank loses waiting for this one (mean).",
    ),
    (
        "Finding, cause, symptom, sub-cause",
        "a finding is a measurement that passes its threshold. A cause is a finding that can be "
        "fixed. A symptom is a finding that goes away when its cause is fixed. A sub-cause says what "
        "is behind a cause.",
    ),
    (
        "Warning, critical",
        "a finding is critical if it takes at least half of the step, otherwise a warning.",
    ),
    (
        "Straggler",
        "a rank that takes longer for compute or host work, which makes the other ranks wait for it in "
        "collectives.",
    ),
    (
        "Host bound",
        "the device waits for the CPU, which launches work too slowly. In a job without GPUs, host bound "
        "means that Python and other work outside of compute takes most of the time.",
    ),
    (
        "Stall",
        "a single step or gap that lasts at least 10 times as long as the median step.",
    ),
    (
        "Pipeline bubble",
        "time in which a pipeline stage has no microbatch to work on.",
    ),
    (
        "Effective GPU utilisation",
        "compute time ÷ step time. The driver's utilisation counter also counts kernels that only wait.",
    ),
    (
        "Cost",
        "how much shorter the mean step would be without the cause: step × (1 − 1 ÷ best-case speed-up). It "
        "need not equal the measured time of the cause, because some of that time may remain.",
    ),
    (
        "Best-case speed-up",
        "step time now ÷ step time after the cause is removed completely. A fix that removes part of "
        "it gains less. The number comes from a replay of the measured steps, with a 95 % interval. "
        'If no replay reproduces the measured steps, the report gives an upper limit ("at most …"): '
        "the speed-up if all of the cause's time were removed.",
    ),
    (
        "Replay",
        "a calculation that repeats the recorded steps with some time removed. The job does not run again.",
    ),
    (
        "Confidence in the cause, or in a verdict without one",
        "high if nothing below applies. Medium: problems in the data, few steps, several nodes on one "
        "machine, sources that contradict each other, or no known sub-cause. Low: missing ranks, a job that "
        "did not complete, or other programs that left almost no free CPU core.",
    ),
    (
        "Confidence in the gain",
        "high if a replay gives a narrow range. Medium: not simulated (no replay), or a wide range: "
        "the highest speed-up is more than 1.25 times the lowest. Low: the highest speed-up is more "
        "than twice the lowest, or the range includes 1.00×.",
    ),
    (
        "Scaling curve, reference",
        "a scaling curve shows the throughput of several scenarios against their number of ranks. The "
        "reference is the smallest scenario; the others are compared with it.",
    ),
    (
        "Efficiency",
        "samples/s per rank ÷ samples/s per rank in the reference.",
    ),
    (
        "Efficiency factors (POP)",
        "the factors of the POP Centre of Excellence (Performance Optimisation and Productivity). Useful "
        "time is time in compute. Global efficiency is computation scalability × parallel efficiency. "
        "Computation scalability is useful time per sample in the reference ÷ useful time per sample in "
        "this run, so it is 100 % in the reference. Parallel efficiency is load balance × communication. "
        "Load balance is the mean useful time of the ranks ÷ the longest. Communication is the longest "
        "useful time ÷ the step, and equals serialisation × transfer. Serialisation is the efficiency that "
        "would remain if transferring data took no time, so only waits lower it. Transfer is the further "
        "efficiency lost to transferring data.",
    ),
    (
        "Operator and kernel traces",
        "recordings of torch.profiler, nsys or rocprofv3. See docs/traces.md.",
    ),
    (
        "-dirty",
        "follows a commit if the working copy had uncommitted changes.",
    ),
    (
        "Overall verdict",
        "the verdict of the scenario that loses the most time (ms per step × ranks).",
    ),
)


def glossary() -> Bullets:
    """The terms as a list."""
    return Bullets(tuple(Bullet((Strong(term), ": ", *coded(meaning))) for term, meaning in TERMS))


def glossary_page() -> str:
    """`docs/glossary.md`, which holds the same terms as each report."""
    return to_markdown([Heading("Terms", 1), glossary()])
