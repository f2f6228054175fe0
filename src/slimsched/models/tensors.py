"""Tensors for a spec: torch types by protocol name, and random inputs."""

import torch

from slimsched.models.elastic import ElasticModel, Tensors
from slimsched.models.random_arrays import random_arrays
from slimsched.models.spec import ModelSpec

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}


def random_inputs(spec: ModelSpec, count: int, *, seed: int = 0) -> Tensors:
    """Draw random inputs as tensors."""
    return tuple(torch.from_numpy(array) for array in random_arrays(spec, count, seed=seed))


def example_inputs(model: ElasticModel, count: int, *, seed: int = 0) -> Tensors:
    """Take the model's own examples if it has any, else random inputs."""
    return model.examples(count) or random_inputs(model.spec, count, seed=seed)


def shape_text(tensors: Tensors) -> str:
    """Write shapes without the batch dimension, such as '(N, 16, 8, 8) float32'."""
    return ", ".join(
        f"({', '.join(['N', *map(str, one.shape[1:])])}) {str(one.dtype).removeprefix('torch.')}"
        for one in tensors
    )
