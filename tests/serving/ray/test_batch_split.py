"""A batch with blocks of two gateways: each hears of its own."""

from cluster import choice, key, path, requests
from slimsched.serving.domain.request import block_of, onward
from slimsched.serving.gateway.messages import SegmentFinished
from slimsched.serving.live.wire import BatchDone
from slimsched.serving.ray.messages import GATEWAY_BITS
from slimsched.serving.ray.server import split_by_gateway

KEY = onward(key(2, 0.5, 0.5), path(0.5))
FIRST, SECOND = 1 << GATEWAY_BITS, 2 << GATEWAY_BITS


def test_blocks_outputs_and_energy_go_to_the_gateway_they_belong_to() -> None:
    blocks = (
        block_of(FIRST + 1, KEY, requests(2, first=FIRST)),
        block_of(SECOND + 1, KEY, requests(1, first=SECOND)),
        block_of(FIRST + 2, KEY, requests(1, first=FIRST + 2)),
    )
    finished = SegmentFinished(
        server=3,
        choice=choice(0.5),
        blocks=blocks,
        ahead=path(0.5),
        size=4,
        busy_s=1.0,
        energy_j=8.0,
        queue_s=(0.1, 0.2, 0.3),
        legs_s=(0.6, 0.4),
    )
    (one, first), (two, second) = split_by_gateway(
        BatchDone(finished=finished, outputs=[b"aabbccdd", b"1234"])
    )
    mine, theirs = first.finished, second.finished
    assert (one, two) == (1, 2)
    assert first.outputs == [b"aabbdd", b"124"]
    assert second.outputs == [b"cc", b"3"]
    assert (mine.blocks, mine.queue_s, mine.energy_j) == (blocks[::2], (0.1, 0.3), 6.0)
    assert (theirs.blocks, theirs.queue_s, theirs.energy_j) == ((blocks[1],), (0.2,), 2.0)
    assert (mine.examples, theirs.examples) == (3, 1)
    assert mine.size == theirs.size == 4, "they ran together"
    assert mine.busy_s == theirs.busy_s == 1.0
    assert (mine.ahead, mine.legs_s) == (theirs.ahead, theirs.legs_s) == (path(0.5), (0.6, 0.4))


def test_a_batch_of_one_gateway_stays_as_it_is() -> None:
    blocks = (block_of(FIRST + 1, KEY, requests(2, first=FIRST)),)
    done = BatchDone(finished=SegmentFinished(server=3, choice=choice(0.5), blocks=blocks, queue_s=(0.1,)))
    assert split_by_gateway(done) == [(1, done)]
