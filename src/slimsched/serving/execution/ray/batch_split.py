"""A batch may hold blocks of several gateways; each hears of its own."""

from slimsched.serving.domain.block import Block
from slimsched.serving.execution.live.messages import BatchDone
from slimsched.serving.execution.ray.greeting import gateway_of


def split_by_gateway(done: BatchDone) -> list[tuple[int, BatchDone]]:
    """The parts of a batch by gateway: its blocks, its rows of the logits, its share of the energy."""
    gateways = {gateway_of(block.id) for block in done.blocks}
    if len(gateways) == 1:
        return [(gateways.pop(), done)]
    size = sum(len(block.requests) for block in done.blocks)
    row_bytes = len(done.logits) // size
    parts = {gateway: _Part() for gateway in sorted(gateways)}
    row = 0
    for block, queue_s in zip(done.blocks, done.queue_s, strict=True):
        part, count = parts[gateway_of(block.id)], len(block.requests)
        part.blocks.append(block)
        part.queue_s.append(queue_s)
        part.logits.append(done.logits[row * row_bytes : (row + count) * row_bytes])
        part.size += count
        row += count
    return [
        (
            gateway,
            BatchDone(
                width=done.width,
                blocks=part.blocks,
                queue_s=part.queue_s,
                busy_s=done.busy_s,
                energy_j=done.energy_j * part.size / size,
                logits=b"".join(part.logits),
                ahead=done.ahead,
                legs_s=done.legs_s,
            ),
        )
        for gateway, part in parts.items()
    ]


class _Part:
    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.queue_s: list[float] = []
        self.logits: list[bytes] = []
        self.size = 0
