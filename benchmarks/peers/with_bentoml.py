"""Our model behind BentoML: one process per worker, each with its own adaptive batching.

BentoML's server does not accept raw bytes (nor, from outside, the pickles that its services exchange), so the
input is a BentoML input type that reads the raw body.
"""

from __future__ import annotations

from typing import Any

import bentoml
import numpy as np
from _bentoml_sdk.io_models import IORootModel
from fixed_width import FixedWidth
from setting import read_setting

setting = read_setting()


class RawImages(IORootModel[Any]):
    """The body as an array of raw images, one row each."""

    @classmethod
    async def from_http_request(cls, request: Any, serde: Any) -> RawImages:
        """Read the body without parsing it."""
        body = np.frombuffer(await request.body(), np.uint8)
        return cls.model_construct(root=body.reshape(-1, 3 * 32 * 32))


@bentoml.service(
    workers=setting.workers,
    traffic={
        "timeout": 60,
        "max_concurrency": setting.workers * setting.queue,
    },  # one worker may get them all
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Classify:
    """Classifies raw images. Adaptive batching drops requests that it expects to exceed the latency limit."""

    def __init__(self) -> None:
        self._model = FixedWidth(setting.width, setting.batch * setting.images)

    @bentoml.api(
        batchable=True,
        input_spec=RawImages,
        max_batch_size=setting.batch * setting.images,
        max_latency_ms=round(1e3 * setting.deadline_s),
    )
    def classify(self, images: np.ndarray) -> np.ndarray:
        """Classify one batch."""
        return np.frombuffer(self._model.classify([images.tobytes()])[0], np.int64)
