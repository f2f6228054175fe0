"""GPUs in Slurm's texts: `gpu:a100:4(S:0-1)`, `gres/gpu=8`, `cpu=8,gres/gpu=4,gres/gpu:a100=4`."""

import re

_GPUS = re.compile(r"\bgpu(?P<kind>[:/][A-Za-z][^:=,()]*)?[:=](?P<count>\d+)")


def gpu_count(text: object) -> int:
    """Return the GPUs in all; where Slurm names the total and the kinds besides, the total counts."""
    named = [(one["kind"], int(one["count"])) for one in _GPUS.finditer(str(text or ""))]
    totals = [count for kind, count in named if not kind]
    return sum(totals or [count for _, count in named])
