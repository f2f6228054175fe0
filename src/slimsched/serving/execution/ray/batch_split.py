"""Splits the result of a batch that holds blocks of several gateways."""

from msgspec.structs import replace

from slimsched.serving.domain.request import Block
from slimsched.serving.execution.ray.greeting import gateway_of
from slimsched.serving.live.wire import BatchDone


def split_by_gateway(done: BatchDone) -> list[tuple[int, BatchDone]]:
    """Split a result by gateway: each gets its blocks, its output rows and its share of the energy."""
    finished = done.finished
    gateways = {gateway_of(block.id) for block in finished.blocks}
    if len(gateways) == 1:
        return [(gateways.pop(), done)]
    examples = finished.examples
    row_bytes = [len(raw) // examples for raw in done.outputs]
    parts = {gateway: _Part(len(row_bytes)) for gateway in sorted(gateways)}
    row = 0
    for block, queue_s in zip(finished.blocks, finished.queue_s, strict=True):
        part, count = parts[gateway_of(block.id)], block.examples
        part.blocks.append(block)
        part.queue_s.append(queue_s)
        for rows, raw, size in zip(part.outputs, done.outputs, row_bytes, strict=True):
            rows.append(raw[row * size : (row + count) * size])
        part.examples += count
        row += count
    return [
        (
            gateway,
            BatchDone(
                finished=replace(
                    finished,
                    blocks=tuple(part.blocks),
                    queue_s=tuple(part.queue_s),
                    energy_j=finished.energy_j * part.examples / examples,
                ),
                outputs=[b"".join(rows) for rows in part.outputs],
            ),
        )
        for gateway, part in parts.items()
    ]


class _Part:
    def __init__(self, outputs: int) -> None:
        self.blocks: list[Block] = []
        self.queue_s: list[float] = []
        self.outputs: list[list[bytes]] = [[] for _ in range(outputs)]
        self.examples = 0
