"""The executor and the way to other servers that go with the kind of device a server sits on."""

import sys
from collections.abc import Sequence

import torch

from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.served_model import ServedModel
from slimsched.serving.execution.live.cpu_executor import CpuExecutor
from slimsched.serving.execution.live.executor import Executor
from slimsched.serving.execution.live.hosted_model import HostedModel
from slimsched.serving.execution.live.server_spec import ServerSpec
from slimsched.serving.execution.live.unix_peers import UnixPeers
from slimsched.serving.execution.model_source import load_elastic, read_model

SWITCH_S = 0.0005
"""How long a thread may keep others of a CUDA server waiting: a batch takes less than Python's usual 5 ms."""


def read_models(spec: ServerSpec) -> tuple[list[ServedModel], Profile]:
    """The models of a server in order, and one profile of all of them."""
    numbers = spec.numbers or range(len(spec.models))
    models = [
        read_model(source).numbered(number) for number, source in zip(numbers, spec.models, strict=True)
    ]
    parts = [record.profile(model) for record, model in zip(spec.profiles, models, strict=True)]
    return models, Profile.joined(parts)


def host_models(models: Sequence[ServedModel], device: torch.device) -> list[HostedModel]:
    """Load the code and weights of models onto a device."""
    return [HostedModel(model, load_elastic(model), device) for model in models]


def make_executor(spec: ServerSpec, models: Sequence[ServedModel]) -> Executor:
    """The executor of this server; a GPU it may use is the only one it sees."""
    if spec.host.kind == "cpu":
        hosted = host_models(models, torch.device("cpu"))
        return CpuExecutor(hosted, threads=spec.host.threads, speed=spec.host.speed)
    from slimsched.serving.execution.live.cuda_executor import CudaExecutor, cuda_device

    sys.setswitchinterval(SWITCH_S)
    return CudaExecutor(host_models(models, cuda_device()), batch_limit=spec.scheduler.batch_limit)


def make_peers(spec: ServerSpec) -> UnixPeers:
    """Shared memory between CPU servers, CUDA handles between those on a GPU."""
    if spec.host.kind == "cpu":
        return UnixPeers(spec.shared_prefix)
    from slimsched.serving.execution.live.cuda_peers import CudaPeers

    return CudaPeers(spec.shared_prefix, torch.device("cuda", 0))
