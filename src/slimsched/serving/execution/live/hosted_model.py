"""A model loaded on a device: the segment that each key runs, and random inputs for it."""

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from slimsched.models.elastic import (
    AS_IS,
    DTYPES,
    ElasticModel,
    ModelError,
    RunOptions,
    Segment,
    Tensors,
    example_inputs,
    users_code,
)
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Key
from slimsched.serving.execution.live.host_copies import HostCopies

FAR = 1e9
"""Confidences that are infinite become this, and those that are no number its opposite."""


@runtime_checkable
class WeightedSegment(Protocol):
    """A segment that is not a module but can list its weights."""

    def weights(self) -> Sequence[Tensor]:
        """List the tensors that the segment keeps."""
        ...


@runtime_checkable
class MovableSegment(Protocol):
    """A segment whose weights may leave the device alone: no other choice uses them."""

    def own_modules(self) -> Sequence[nn.Module]:
        """List the modules that hold the weights."""
        ...


Place = tuple[int, int]
"""(segment, choice): what an instance is loaded for. Keys of one place differ in the choice before."""


class Layout(NamedTuple):
    """The memory layout of one tensor of an activation: shape and strides of a row, and the type."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return prod(self.shape) * self.dtype.itemsize

    def view(self, flat: Tensor, rows: int) -> Tensor:
        """Return a view of the start of a flat byte buffer as rows of this layout."""
        numbers = flat[: rows * self.row_bytes].view(self.dtype)
        return numbers.as_strided((rows, *self.shape), (prod(self.shape), *self.strides))

    def empty(self, rows: int, device: torch.device) -> Tensor:
        """Allocate rows of this layout."""
        return self.view(torch.empty(rows * self.row_bytes, dtype=torch.uint8, device=device), rows)


class HostedModel:
    """One model on one device. Segments are made on first use and kept until `drop`.

    `off_load` moves weights to the host, and the next use copies them back. It moves weights that belong to
    one segment at one choice. Other models keep one set of weights for all choices; it leaves the device when
    nothing of the model is wanted.
    """

    def __init__(
        self,
        served: ServedModel,
        elastic: ElasticModel,
        device: torch.device,
        options: RunOptions = AS_IS,
    ) -> None:
        self.served, self.spec, self.device = served, served.spec, device
        self._elastic, self._options = elastic, options
        elastic.place(device)
        if options != AS_IS:
            _convert(elastic, options)
        self._segments: dict[Key, Segment] = {}
        self._layouts: dict[tuple[int, int], tuple[Layout, ...]] = {}
        self._copies = HostCopies(device)
        self._away: dict[Place, dict[Key, Segment]] = {}
        self._resting: list[nn.Module] = []

    def segment(self, key: Key) -> Segment:
        """Return the segment of a key, with `prepare` before the first and `finish` after the last."""
        segment = self._segments.get(key)
        if segment is None:
            self._bring_back((key.segment, key.choice))
            segment = self._segments.get(key) or self._segments.setdefault(key, self._made(key))
        return segment

    def off_load(self, wanted: Callable[[Key], bool]) -> None:
        """Move the weights of all keys that nobody wants to the host; places are wanted as a whole."""
        if self._options.compile:
            return  # compiled code knows where its weights are
        for key, segment in list(self._segments.items()):
            if not wanted(key) and (modules := _own_modules(segment)):
                self._away.setdefault((key.segment, key.choice), {})[key] = self._segments.pop(key)
                for module in modules:
                    self._copies.off_load(module)
        if not any(wanted(key) for key in self._segments):
            self._rest()

    def _rest(self) -> None:
        """Move weights that all choices share to the host: nothing of the model is wanted."""
        shared = [module for module in self._elastic.modules() if _is_on(module, self.device)]
        if shared:
            self._segments.clear()
        for module in shared:
            self._copies.off_load(module)
        self._resting += shared

    def _bring_back(self, place: Place) -> None:
        """Copy the weights of a place to the device, if they were moved to the host."""
        while self._resting:
            self._copies.load(self._resting.pop())
        for key, segment in self._away.pop(place, {}).items():
            for module in _own_modules(segment):
                self._copies.load(module)
            self._segments[key] = segment

    def ends(self, key: Key) -> bool:
        """Whether a key completes a plan."""
        return self.spec.ends(key.last_segment, key.choices[-1])

    @property
    def is_confident(self) -> bool:
        """Whether complete plans give one more tensor after the outputs: how sure each answer is."""
        return self._elastic.is_confident

    def drop(self, key: Key) -> None:
        """Drop a key's segment and the weights that only it uses."""
        self._segments.pop(key, None)

    def made(self) -> list[Key]:
        """List the keys whose segments are loaded."""
        return list(self._segments)

    def weight_bytes(self) -> int:
        """Bytes of the weights of all loaded segments; shared weights count once."""
        storages: dict[int, int] = {}
        for segment in list(self._segments.values()):
            for tensor in _weights(segment):
                storages[_address(tensor)] = tensor.numel() * tensor.element_size()
        return sum(storages.values())

    @torch.no_grad()
    def rehearse(self) -> None:
        """Run every key with one made-up example; raise what is wrong with the first that cannot run."""
        for key in self.served.keys.values():
            with users_code(f"model '{self.served.name}', {self.served.key_text(key)}"):
                rows = self.segment(key)(tuple(tensor.to(self.device) for tensor in self.example(key, 1)))
            if self.ends(key):
                self._check_outputs(rows)
        for key in self.made():
            self.drop(key)

    def inputs(self, rows: int) -> Tensors:
        """Make random raw inputs on the host, as clients send them."""
        return example_inputs(self._elastic, rows)

    @torch.no_grad()
    def example(self, key: Key, rows: int) -> Tensors:
        """Make random inputs for a key: raw inputs for the first segment, else activations."""
        if key.segment == 0:
            return self.inputs(rows)
        return tuple(_random(layout, rows, self.device) for layout in self.layouts(key))

    def layouts(self, key: Key) -> tuple[Layout, ...]:
        """Return the memory layouts of a key's inputs."""
        if key.segment == 0:
            return tuple(
                Layout(tensor.shape, _contiguous(tensor.shape), DTYPES[tensor.datatype])
                for tensor in self.spec.inputs
            )
        before = (key.segment - 1, key.previous)
        if before not in self._layouts:
            self._layouts[before] = self._dry_run(key)
        return self._layouts[before]

    @property
    def element_bytes(self) -> int:
        """Bytes per number of an activation, or of an input if the model has one segment."""
        *_, last = sorted(self.served.keys.values(), key=lambda key: key.segment)
        return self.layouts(last)[0].dtype.itemsize

    @torch.no_grad()
    def _dry_run(self, key: Key) -> tuple[Layout, ...]:
        """Run two random rows through a plan up to this key, and return the layouts of its inputs."""
        plan = next(plan for plan in self.served.tree.plans if key in self.served.legs(plan))
        rows: Tensors = tuple(tensor.to(self.device) for tensor in self.inputs(2))
        for leg in self.served.legs(plan)[: key.segment]:
            rows = self.segment(leg)(rows)
        return tuple(Layout(tuple(t.shape[1:]), tuple(t.stride()[1:]), t.dtype) for t in rows)

    def _check_outputs(self, rows: Tensors) -> None:
        """Refuse outputs of other shapes than the spec says."""
        if self.is_confident and tuple(rows[-1].shape) != (1,):
            raise ModelError(
                f"model '{self.spec.name}' gives confidence the shape {list(rows[-1].shape)} for one example",
                remedy="return one number per row",
            )
        for tensor, wanted in zip(rows, self.spec.outputs, strict=not self.is_confident):
            if tuple(tensor.shape) != (1, *wanted.shape):
                raise ModelError(
                    f"model '{self.spec.name}' gives '{wanted.name}' the shape {list(tensor.shape)}, but "
                    f"its spec says [1, {', '.join(map(str, wanted.shape))}] for one example",
                    remedy="check it with slim model check",
                )

    def _made(self, key: Key) -> Segment:
        names = self.spec.segments
        previous = names[key.segment - 1][key.previous] if key.previous >= 0 else None
        segment = self._elastic.segment(key.segment, names[key.segment][key.choice], previous)
        first, last = key.segment == 0, self.ends(key)
        if first or last:
            segment = _Wrapped(segment, self._elastic, self._options, first=first, last=last)
        if self._options.compile:
            segment = torch.compile(segment, dynamic=self.device.type == "cpu")
        return segment


class _Wrapped:
    """A segment with `prepare` before it if it is the first, and `finish` after it if it is the last.

    After the last, a model that says how sure it is adds that to the outputs.
    """

    def __init__(
        self, segment: Segment, elastic: ElasticModel, options: RunOptions, *, first: bool, last: bool
    ) -> None:
        self.segment, self._elastic, self._first, self._last = segment, elastic, first, last
        self._options = options
        self._dtypes = [DTYPES[tensor.datatype] for tensor in elastic.spec.outputs]

    def __call__(self, rows: Tensors) -> Tensors:
        rows = self.segment(self._prepared(rows) if self._first else rows)
        if not self._last:
            return rows
        outputs = self._elastic.finish(rows)
        ready = [tensor.to(dtype) for tensor, dtype in zip(outputs, self._dtypes, strict=True)]
        sure = self._elastic.confidence(rows)
        return tuple(ready) if sure is None else (*ready, sure.float().nan_to_num(-FAR, FAR, -FAR))

    def _prepared(self, rows: Tensors) -> Tensors:
        """Prepare raw inputs, then convert them to the precision and memory format of the weights."""
        prepared = self._elastic.prepare(rows)
        if self._options == AS_IS:
            return prepared
        return tuple([_converted(tensor, self._options) for tensor in prepared])


def _convert(elastic: ElasticModel, options: RunOptions) -> None:
    """Convert a model's weights to another precision or memory format."""
    for module in elastic.modules():
        module.to(getattr(torch, options.precision))
        if options.channels_last:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _converted(tensor: Tensor, options: RunOptions) -> Tensor:
    if tensor.is_floating_point():
        tensor = tensor.to(getattr(torch, options.precision))
    if options.channels_last and tensor.dim() == 4:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def _weights(segment: Segment) -> Sequence[Tensor]:
    """Return the weights of a segment, as far as they are known."""
    inner = segment.segment if isinstance(segment, _Wrapped) else segment
    if isinstance(inner, nn.Module):
        return [*inner.parameters(), *inner.buffers()]
    return inner.weights() if isinstance(inner, WeightedSegment) else []


def _own_modules(segment: Segment) -> Sequence[nn.Module]:
    inner = segment.segment if isinstance(segment, _Wrapped) else segment
    return inner.own_modules() if isinstance(inner, MovableSegment) else []


def _is_on(module: nn.Module, device: torch.device) -> bool:
    tensors = [*module.parameters(), *module.buffers()]
    return device.type != "cpu" and any(tensor.device.type == device.type for tensor in tensors)


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.layout == torch.strided else id(tensor)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[place + 1 :]) for place in range(len(shape)))


def _random(layout: Layout, rows: int, device: torch.device) -> Tensor:
    tensor = layout.empty(rows, device)
    return tensor.uniform_() if layout.dtype.is_floating_point else tensor.zero_()
