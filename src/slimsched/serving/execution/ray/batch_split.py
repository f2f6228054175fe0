"""A batch may hold blocks of several gateways; each hears of its own."""

from msgspec.structs import replace

from slimsched.serving.domain.block import Block
from slimsched.serving.execution.live.messages import BatchDone
from slimsched.serving.execution.ray.greeting import gateway_of


def split_by_gateway(done: BatchDone) -> list[tuple[int, BatchDone]]:
    """The parts of a batch by gateway: its blocks, its rows of the logits, its share of the energy."""
    finished = done.finished
    gateways = {gateway_of(block.id) for block in finished.blocks}
    if len(gateways) == 1:
        return [(gateways.pop(), done)]
    images = finished.images
    row_bytes = len(done.logits) // images
    parts = {gateway: _Part() for gateway in sorted(gateways)}
    row = 0
    for block, queue_s in zip(finished.blocks, finished.queue_s, strict=True):
        part, count = parts[gateway_of(block.id)], len(block.requests)
        part.blocks.append(block)
        part.queue_s.append(queue_s)
        part.logits.append(done.logits[row * row_bytes : (row + count) * row_bytes])
        part.images += count
        row += count
    return [
        (
            gateway,
            BatchDone(
                finished=replace(
                    finished,
                    blocks=tuple(part.blocks),
                    queue_s=tuple(part.queue_s),
                    energy_j=finished.energy_j * part.images / images,
                ),
                logits=b"".join(part.logits),
            ),
        )
        for gateway, part in parts.items()
    ]


class _Part:
    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.queue_s: list[float] = []
        self.logits: list[bytes] = []
        self.images = 0
