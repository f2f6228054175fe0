"""The model that all contenders serve: our executor's code, with all four segments in a row at one width."""

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from slimsched.models.slimresnet.weights import load
from slimsched.models.width import SEGMENTS
from slimsched.serving.domain.instance import Instance
from slimsched.serving.domain.key import KEYS
from slimsched.serving.execution.live.cpu_executor import CpuExecutor

_held: list[int] = []


class FixedWidth:
    """Turns raw images into classes, on one thread of one core."""

    def __init__(self, width: float, batch: int = 1) -> None:
        claim_core()
        model = load()
        self._executor = CpuExecutor(model, threads=1)
        self._keys = [KEYS[segment, width, width if segment else None] for segment in range(SEGMENTS)]
        for key in self._keys:
            self._executor.load(Instance(id=key.segment, segment=key.segment, width=width, memory_bytes=0))
        self._shape = (-1, 3, model.card.shape.image_size, model.card.shape.image_size)
        for size in {1, batch}:
            self.classify([bytes(3 * self._shape[2] * self._shape[3])] * size)

    def classify(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Run several requests of raw uint8 images as one batch; return the int64 classes of each."""
        counts = [len(body) // (3 * self._shape[2] * self._shape[3]) for body in bodies]
        pixels = torch.frombuffer(bytearray(b"".join(bodies)), dtype=torch.uint8)
        rows = self._executor.inputs(pixels.view(self._shape))
        for key in self._keys:
            rows = self._executor.run(key, rows)
        classes = rows.argmax(dim=1).numpy().astype(np.int64)
        return [part.tobytes() for part in np.split(classes, np.cumsum(counts)[:-1])]


def claim_core() -> None:
    """Bind this process to a core that no other process has claimed, as our own servers do."""
    for core in sorted(os.sched_getaffinity(0), reverse=True):
        file = os.open(Path(tempfile.gettempdir()) / f"slim-peer-core-{core}", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            continue
        _held.append(file)
        os.sched_setaffinity(0, {core})
        return
