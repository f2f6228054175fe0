"""The shipped SlimResNet with its code on the CPU, and executors for it."""

import torch
from torch import Tensor

from cluster import MODEL, key
from slimsched.models.elastic import Tensors
from slimsched.models.loading import trained_model
from slimsched.models.network import Trained
from slimsched.models.slimresnet.elastic import SlimResNetModel
from slimsched.serving.domain.request import Key
from slimsched.serving.live.executor import CpuExecutor, HostedModel

CPU = torch.device("cpu")


def hosted(elastic: SlimResNetModel | None = None, device: torch.device = CPU) -> HostedModel:
    """The shipped network on a device; weights may be shared between several."""
    return HostedModel(MODEL, elastic or trained_model(), device)


def cpu_executor(elastic: SlimResNetModel | None = None) -> CpuExecutor:
    """An executor of the shipped network."""
    return CpuExecutor([hosted(elastic)])


def images(count: int) -> Tensor:
    """Random images as clients send them."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)


def legs(widths: tuple[float, ...]) -> list[Key]:
    """The keys of a plan, segment by segment."""
    return [
        key(segment, width, widths[segment - 1] if segment else None) for segment, width in enumerate(widths)
    ]


def run_legs(executor: CpuExecutor, widths: tuple[float, ...], raw: Tensor) -> Tensor:
    """What the segments of a plan give one by one."""
    rows: Tensors = (raw,)
    for leg in legs(widths):
        rows = executor.run(leg, rows)
    logits, *_ = rows  # then how sure the model is
    return logits


def whole_network(trained: Trained, raw: Tensor, widths: tuple[float, ...]) -> Tensor:
    """What the network gives in one go, as it was trained."""
    plain = SlimResNetModel(trained, precision=torch.float32)
    with torch.no_grad():
        logits: Tensor = trained.net(plain.prepare((raw,))[0], widths)
    return logits
