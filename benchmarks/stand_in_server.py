"""A server process without a device: all but the arithmetic is real, batches take what the profile says."""

import io
import sys
import time
from collections.abc import Sequence

import msgspec
import torch

from slimsched.models.elastic import DTYPES, Tensors
from slimsched.serving.domain.cluster import Host, Instance
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.request import Key
from slimsched.serving.live import server
from slimsched.serving.live.executor import Executor
from slimsched.serving.live.server import read_models
from slimsched.serving.live.wire import ServerSpec, ServerStart


class StandIn(Executor):
    """An executor that waits as long as a batch would take, and answers with zeros."""

    def __init__(self, models: Sequence[ServedModel], profile: Profile) -> None:
        super().__init__([])
        self.device, self.lanes = torch.device("cpu"), 4
        self._served, self._profile = {model.number: model for model in models}, profile
        self._due_s = 0.0

    def load(self, instance: Instance) -> int:
        """Load nothing."""
        return instance.memory_bytes

    def unload(self, instance: int) -> None:
        """Unload nothing."""

    def run(self, key: Key, inputs: Tensors) -> Tensors:
        """Note how long a segment takes; after the last one, wait for all of them."""
        count = len(inputs[0])
        self._due_s += self._profile.latency_s(key, count)
        if not self.ends(key):
            return inputs
        due_s, self._due_s = self._due_s, 0.0
        time.sleep(due_s)
        outputs = self._served[key.model].spec.outputs
        return tuple([torch.zeros((count, *one.shape), dtype=DTYPES[one.datatype]) for one in outputs])

    def example(self, key: Key, rows: int) -> Tensors:
        """Make inputs of the right number."""
        return (torch.zeros(rows),)

    def ends(self, key: Key) -> bool:
        """Whether a key completes a plan."""
        spec = self._served[key.model].spec
        return spec.ends(key.last_segment, key.choices[-1])

    def is_confident(self, model: int) -> bool:
        """It is not."""
        return False


def main() -> None:
    """Serve as the spec on standard input says, on no device."""
    start = msgspec.json.decode(sys.stdin.buffer.read(), type=ServerStart)
    bare = msgspec.structs.replace(start.spec, host=Host(kind="cpu"), sensors="modelled")
    raw = msgspec.json.encode(msgspec.structs.replace(start, spec=bare))
    sys.stdin = io.TextIOWrapper(io.BytesIO(raw))

    def make(spec: ServerSpec, models: Sequence[ServedModel]) -> Executor:
        return StandIn(models, read_models(spec)[1])

    server.make_executor = make
    server.warm_up = lambda *_: None
    server.main()


if __name__ == "__main__":
    main()
