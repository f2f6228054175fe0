"""The executor and the way to other servers that go with the kind of device a server sits on."""

import sys

from slimsched.models.slimresnet.weights import TrainedModel
from slimsched.serving.execution.live.cpu_executor import CpuExecutor
from slimsched.serving.execution.live.executor import Executor
from slimsched.serving.execution.live.server_spec import ServerSpec
from slimsched.serving.execution.live.unix_peers import UnixPeers

SWITCH_S = 0.0005
"""How long a thread may keep others of a CUDA server waiting: a batch takes less than Python's usual 5 ms."""


def make_executor(spec: ServerSpec, model: TrainedModel) -> Executor:
    """The executor of this server; a GPU it may use is the only one it sees."""
    if spec.host.kind == "cpu":
        return CpuExecutor(model, threads=spec.host.threads, speed=spec.host.speed)
    from slimsched.serving.execution.live.cuda_executor import CudaExecutor

    sys.setswitchinterval(SWITCH_S)
    return CudaExecutor(model, batch_limit=spec.scheduler.batch_limit)


def make_peers(spec: ServerSpec) -> UnixPeers:
    """Shared memory between CPU servers, CUDA handles between those on a GPU."""
    if spec.host.kind == "cpu":
        return UnixPeers(spec.shared_prefix)
    import torch

    from slimsched.serving.execution.live.cuda_peers import CudaPeers

    return CudaPeers(spec.shared_prefix, torch.device("cuda", 0))
