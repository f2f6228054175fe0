"""The executor and the way to other servers that go with the kind of device a server sits on."""

import sys

from slimsched.execution.live.cpu_executor import CpuExecutor
from slimsched.execution.live.executor import Executor
from slimsched.execution.live.server_spec import ServerSpec
from slimsched.execution.live.unix_peers import UnixPeers
from slimsched.slimmable.weights import TrainedModel

SWITCH_S = 0.0005
"""How long a thread may keep others of a CUDA server waiting: a batch takes less than Python's usual 5 ms."""


def make_executor(spec: ServerSpec, model: TrainedModel) -> Executor:
    """The executor of this server; a GPU it may use is the only one it sees."""
    if spec.host.kind == "cpu":
        return CpuExecutor(model, threads=spec.host.threads, speed=spec.host.speed)
    from slimsched.execution.live.cuda_executor import CudaExecutor

    sys.setswitchinterval(SWITCH_S)
    return CudaExecutor(model, batch_limit=spec.scheduler.batch_limit)


def make_peers(spec: ServerSpec) -> UnixPeers:
    """Shared memory between CPU servers, CUDA handles between those on a GPU."""
    if spec.host.kind == "cpu":
        return UnixPeers(spec.shared_prefix)
    import torch

    from slimsched.execution.live.cuda_peers import CudaPeers

    return CudaPeers(spec.shared_prefix, torch.device("cuda", 0))
