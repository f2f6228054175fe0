"""Tensors for a spec: torch types by protocol name, and random inputs."""

import torch
from torch import Tensor

from slimsched.models.elastic import ElasticModel, Tensors
from slimsched.models.spec import ModelSpec, TensorSpec

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
    """Draw inputs: floats from the normal distribution, bytes over their range, other integers 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(_random(tensor, count, generator) for tensor in spec.inputs)


def example_inputs(model: ElasticModel, count: int, *, seed: int = 0) -> Tensors:
    """Take the model's own examples if it has any, else random inputs."""
    return model.examples(count) or random_inputs(model.spec, count, seed=seed)


def _random(tensor: TensorSpec, count: int, generator: torch.Generator) -> Tensor:
    dtype, shape = DTYPES[tensor.datatype], (count, *tensor.shape)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    above = 256 if dtype == torch.uint8 else 2
    return torch.randint(0, above, shape, generator=generator).to(dtype)


def shape_text(tensors: Tensors) -> str:
    """Write shapes without the batch dimension, such as '(N, 16, 8, 8) float32'."""
    return ", ".join(
        f"({', '.join(['N', *map(str, one.shape[1:])])}) {str(one.dtype).removeprefix('torch.')}"
        for one in tensors
    )
