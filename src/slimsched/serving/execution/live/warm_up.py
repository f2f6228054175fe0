"""Warm-up: run everything once before a server says it is ready, so that no request pays for it."""

from collections.abc import Sequence

import torch

from slimsched.models.slimresnet.shape import NetworkShape
from slimsched.models.width import SEGMENTS, WIDTHS
from slimsched.serving.domain.instance import Instance
from slimsched.serving.domain.key import KEYS
from slimsched.serving.execution.live.executor import Executor


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


def touch(executor: Executor, shape: NetworkShape, resident: Sequence[float]) -> None:
    """One image through every key that what is resident can run: slices are made at first use, and stay."""
    for key in KEYS.values():
        if key.width <= max(resident, default=0.0):
            if key.segment == 0:
                side = shape.image_size
                rows = executor.inputs(torch.zeros((1, 3, side, side), dtype=torch.uint8))
            else:
                channels, side = shape.channels_at(key.segment - 1, key.previous), shape.side(key.segment - 1)
                rows = executor.activation((1, channels, side, side))
            executor.run(key, rows)
