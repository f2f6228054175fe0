"""Warm-up: run every width once before a server says it is ready, so that no request pays for it."""

import torch

from slimsched.domain.instance import Instance
from slimsched.domain.key import KEYS
from slimsched.domain.network import NetworkShape
from slimsched.domain.width import SEGMENTS, WIDTHS
from slimsched.execution.live.executor import Executor


def warm_up(executor: Executor, shape: NetworkShape, batch: int) -> None:
    """Chains of each width, a single image and a full batch; whatever was loaded for it is unloaded again."""
    slots = [
        Instance(id=-1 - number, segment=segment, width=1.0, memory_bytes=0)
        for number, segment in enumerate(range(SEGMENTS))
    ]
    for slot in slots:
        executor.load(slot)
    for count in (1, batch):
        for width in WIDTHS:
            images = torch.zeros((count, 3, shape.image_size, shape.image_size), dtype=torch.uint8)
            rows = executor.inputs(images)
            for segment in range(SEGMENTS):
                rows = executor.run(KEYS[segment, width, width if segment else None], rows)
    for slot in slots:
        executor.unload(slot.id)
