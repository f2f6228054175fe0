"""The model that all contenders serve: our executor's code, with all four segments in a row at one width."""

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from slimsched.serving.domain.cluster import Instance
from slimsched.serving.live.executor import CpuExecutor
from slimsched.serving.live.server import host_models
from slimsched.serving.scenario.files import shipped_model

_held: list[int] = []


class FixedWidth:
    """Turns raw images into classes, on one thread of one core."""

    def __init__(self, width: float, batch: int = 1) -> None:
        claim_core()
        model = shipped_model()
        self._executor = CpuExecutor(host_models([model], torch.device("cpu")), threads=1)
        self._keys = model.legs(model.spec.path(str(float(width))))
        for key in self._keys:
            slot = Instance(id=key.segment, segment=key.segment, choice=key.choice, memory_bytes=0)
            self._executor.load(slot)
        self._shape = (-1, *model.spec.inputs[0].shape)
        for size in {1, batch}:
            self.classify([bytes(3 * self._shape[2] * self._shape[3])] * size)

    def classify(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Run several requests of raw uint8 images as one batch; return the int64 classes of each."""
        counts = [len(body) // (3 * self._shape[2] * self._shape[3]) for body in bodies]
        pixels = torch.frombuffer(bytearray(b"".join(bodies)), dtype=torch.uint8)
        rows: tuple[torch.Tensor, ...] = (pixels.view(self._shape),)
        for key in self._keys:
            rows = self._executor.run(key, rows)
        classes = rows[0].argmax(dim=1).numpy().astype(np.int64)
        return [part.tobytes() for part in np.split(classes, np.cumsum(counts)[:-1])]


def claim_core() -> None:
    """Bind this process to a core that no other process has claimed, as our own servers do."""
    for core in sorted(os.sched_getaffinity(0), reverse=True):
        name = Path(tempfile.gettempdir()) / f"slim-peer-core-{core}"
        file = os.open(name, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            continue
        _held.append(file)
        os.sched_setaffinity(0, {core})
        return
