"""Examples to send to models: real ones where the user has them, made-up ones where not."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimsched.core.config import ConfigError
from slimsched.models.spec import SHIPPED_MODELS, ModelSpec
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.execution.live.example_set import ExampleSet, made_up_examples


def examples_of(models: Sequence[ServedModel], data: Path | None) -> list[ExampleSet]:
    """One set of examples per model.

    A shipped model takes CIFAR-100's test images from `data` or SLIM_DATA. Another model takes the labelled
    examples of `data`: a folder of class folders, or an .npz file.
    """
    if data is not None and len(models) > 1:
        raise ConfigError("--data names the examples of one model; leave it out with several models")
    return [test_examples(model.spec, data) for model in models]


def describe(examples: Sequence[ExampleSet]) -> str:
    """Say what is sent."""
    return "; ".join(dict.fromkeys(one.source for one in examples))


def test_examples(spec: ModelSpec, data: Path | None) -> ExampleSet:
    """Examples for any model: CIFAR-100's test images for a shipped one, what `data` holds for others."""
    if spec.name in SHIPPED_MODELS and (data is None or data.is_dir()):
        return _cifar_examples(spec, data)
    if data is None:
        return made_up_examples(spec)
    from slimsched.models.data.dataset import read_inputs

    inputs = read_inputs(data, spec, labelled=False)
    return ExampleSet(inputs=inputs.arrays, labels=inputs.labels, source=f"examples of {data.name}")


def _cifar_examples(spec: ModelSpec, data: Path | None) -> ExampleSet:
    from slimsched.models.data import cifar

    folder = data or (Path(os.environ["SLIM_DATA"]) if "SLIM_DATA" in os.environ else None)
    if folder is None or (data is None and cifar.find(folder) is None):
        return made_up_examples(spec, count=1000)
    test_set = cifar.read(folder, "test")
    images: NDArray[Any] = test_set.images
    if spec.inputs[0].datatype == "FP32":
        images = images.astype(np.float32) / np.float32(255)
    return ExampleSet(inputs=(images,), labels=test_set.labels, source="CIFAR-100 test images")
