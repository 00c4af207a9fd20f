"""Parameters gathered in fp32.

What it finds:
    FSDP gathers parameters in fp32 although the model computes in bf16.
Why it costs time:
    Twice the bytes travel in each all-gather and reduce-scatter.
What to do:
    Pass `MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)`.
"""

from __future__ import annotations

from aorta.diagnosis.mistake import MistakeSpec

SPEC = MistakeSpec(
    id="fsdp_fp32",
    before="""\
fully_shard(block)
""",
    after="""\
fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
""",
    predicted_by="not predicted from traces without the dtype of collectives",
    captures=(),
    look=None,
    shown_by="the dtype of collectives, which the analysis does not read yet",
)
