"""Chooses executor and peers by the kind of device that a server uses."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from slimsched.models.elastic import AS_IS, RunOptions, read_run_options
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.execution.live.cpu_executor import CpuExecutor
from slimsched.serving.execution.live.executor import Executor
from slimsched.serving.execution.live.hosted_model import HostedModel
from slimsched.serving.execution.live.input_arena import ArenaReader
from slimsched.serving.execution.live.server_spec import ServerSpec
from slimsched.serving.execution.live.unix_peers import UnixPeers
from slimsched.serving.scenario.files import load_elastic, read_model

SWITCH_S = 0.0005
"""Python's thread switch interval for CUDA servers: a batch is shorter than the default of 5 ms."""


def read_models(spec: ServerSpec) -> tuple[list[ServedModel], Profile]:
    """Return the models of a server in order, and one profile of them all."""
    numbers = spec.numbers or range(len(spec.models))
    models = [
        read_model(source, rated=False).numbered(number)
        for number, source in zip(numbers, spec.models, strict=True)
    ]
    parts = [record.profile(model) for record, model in zip(spec.profiles, models, strict=True)]
    return models, Profile.joined(parts)


def host_models(models: Sequence[ServedModel], device: torch.device) -> list[HostedModel]:
    """Load the code and weights of models onto a device."""
    return [HostedModel(model, load_elastic(model), device, _options(model, device)) for model in models]


def _options(model: ServedModel, device: torch.device) -> RunOptions:
    return read_run_options(Path(model.folder), device.type) if model.folder else AS_IS


def make_executor(spec: ServerSpec, models: Sequence[ServedModel]) -> Executor:
    """Make the executor of this server; it sees only the GPU it may use."""
    if spec.host.kind == "cpu":
        hosted = host_models(models, torch.device("cpu"))
        return CpuExecutor(hosted, threads=spec.host.threads, speed=spec.host.speed)
    from slimsched.serving.execution.live.cuda_executor import CudaExecutor, cuda_device

    sys.setswitchinterval(SWITCH_S)
    return CudaExecutor(host_models(models, cuda_device()), batch_limit=spec.scheduler.batch_limit)


def make_arena(spec: ServerSpec) -> ArenaReader | None:
    """Open the memory that holds large inputs; a GPU copies straight out of it."""
    if not spec.arena:
        return None
    if spec.host.kind == "cpu":
        return ArenaReader(Path(spec.arena))
    from slimsched.serving.execution.live.pinned_arena import PinnedArena

    return PinnedArena(Path(spec.arena))


def make_peers(spec: ServerSpec) -> UnixPeers:
    """Use shared memory between CPU servers, CUDA handles between GPU servers."""
    if spec.host.kind == "cpu":
        return UnixPeers(spec.shared_prefix, spec.secret)
    from slimsched.serving.execution.live.cuda_peers import CudaPeers

    return CudaPeers(spec.shared_prefix, spec.secret, torch.device("cuda", 0))
