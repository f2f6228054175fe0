"""The interface of executors, which run a server's batches on a device.

Here are the one for CPUs and what all share: a model loaded on a device, and host copies of its weights.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import prod
from threading import Lock
from time import sleep, thread_time
from typing import NamedTuple, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

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
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Key

# -- Gives freed memory back to the system, so that unloading shows in a process's resident memory.


def trim_memory() -> None:
    """Ask the C library to return what it keeps for later; does nothing where it cannot."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        return  # not the GNU C library


# -- Host copies of weights: what a device lets go of when an instance is unloaded, and gets back on loading.
#
# Weights of a served model never change, so each is copied to the host once, the first time it leaves the
# device.

HOST = torch.device("cpu")


class HostCopies:
    """Moves the weights of modules between a device and the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: WeakKeyDictionary[nn.Module, dict[str, Tensor]] = WeakKeyDictionary()

    def off_load(self, module: nn.Module) -> None:
        """Let the device's copy of a module's weights go."""
        for part, name, tensor in _weights_by_part(module):
            if tensor.device.type != HOST.type:
                _put(part, name, self._copy(part, name, tensor))

    def load(self, module: nn.Module) -> None:
        """Copy a module's weights to the device, unless they are there."""
        for part, name, tensor in _weights_by_part(module):
            if tensor.device.type != self._device.type:
                _put(part, name, self._copy(part, name, tensor).to(self._device))

    def _copy(self, part: nn.Module, name: str, tensor: Tensor) -> Tensor:
        """Return a weight on the host; it is copied there the first time only."""
        copies = self._copies.setdefault(part, {})
        if name not in copies:
            copies[name] = tensor.detach().to(HOST)
        return copies[name]


def _weights_by_part(module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """List every weight with the submodule that holds it, and its name there."""
    for part in module.modules():
        for name, tensor in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]:
            yield part, name, tensor


def _put(part: nn.Module, name: str, tensor: Tensor) -> None:
    if name in part._parameters:
        part.get_parameter(name).data = tensor
    else:
        part._buffers[name] = tensor


# -- A model loaded on a device: the segment that each key runs, and random inputs for it.

FAR = 1e9
"""Confidences that are infinite become this, and those that are no number its opposite."""


@runtime_checkable
class MovableSegment(Protocol):
    """A segment whose weights may leave the device alone: no other choice uses them."""

    def own_modules(self) -> Sequence[nn.Module]:
        """List the modules that hold the weights."""


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

    def random(self, rows: int, device: torch.device) -> Tensor:
        """Make rows of this layout: random numbers, or zeros where they are whole."""
        raw = torch.empty(rows * self.row_bytes, dtype=torch.uint8, device=device)
        tensor = self.view(raw, rows)
        return tensor.uniform_() if self.dtype.is_floating_point else tensor.zero_()


class HostedModel:
    """One model on one device. Segments are made on first use and kept until `drop`.

    `off_load` moves weights to the host, and the next use copies them back. It moves weights that belong to
    one segment at one choice. Other models keep one set of weights for all choices; it leaves the device when
    nothing of the model is wanted.
    """

    def __init__(
        self, served: ServedModel, elastic: ElasticModel, device: torch.device, options: RunOptions = AS_IS
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
                address = tensor.data_ptr() if tensor.layout == torch.strided else id(tensor)
                storages[address] = tensor.numel() * tensor.element_size()
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
        return tuple(layout.random(rows, self.device) for layout in self.layouts(key))

    def layouts(self, key: Key) -> tuple[Layout, ...]:
        """Return the memory layouts of a key's inputs."""
        if key.segment == 0:
            raws = [
                torch.empty(one.shape, dtype=DTYPES[one.datatype], device="meta") for one in self.spec.inputs
            ]
            return tuple(Layout(tuple(raw.shape), raw.stride(), raw.dtype) for raw in raws)
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
        if self._first:
            rows = self._elastic.prepare(rows)
            if self._options != AS_IS:  # to the precision and memory format of the weights
                rows = tuple([_converted(tensor, self._options) for tensor in rows])
        rows = self.segment(rows)
        if not self._last:
            return rows
        outputs = self._elastic.finish(rows)
        ready = [tensor.to(dtype) for tensor, dtype in zip(outputs, self._dtypes, strict=True)]
        sure = self._elastic.confidence(rows)
        return tuple(ready) if sure is None else (*ready, sure.float().nan_to_num(-FAR, FAR, -FAR))


def _convert(elastic: ElasticModel, options: RunOptions) -> None:
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
    inner = segment.segment if isinstance(segment, _Wrapped) else segment
    modules = [inner] if isinstance(inner, nn.Module) else _own_modules(segment)
    return [tensor for module in modules for _, _, tensor in _weights_by_part(module)]


def _own_modules(segment: Segment) -> Sequence[nn.Module]:
    inner = segment.segment if isinstance(segment, _Wrapped) else segment
    return inner.own_modules() if isinstance(inner, MovableSegment) else []


def _is_on(module: nn.Module, device: torch.device) -> bool:
    tensors = [*module.parameters(), *module.buffers()]
    return device.type != "cpu" and any(tensor.device.type == device.type for tensor in tensors)


# -- The interface of executors, with what they have in common.


class Launched(Protocol):
    """Segments that are running on a device."""

    @property
    def legs_s(self) -> tuple[float, ...]:
        """How long the device worked for each of several segments, if it can tell; known after `wait`."""

    def ready(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self) -> list[Tensors]:
        """Wait for the result of the last segment, with what those before it gave if it was kept.

        Call this once.
        """


class Executor(ABC):
    """Loads and unloads instances and runs batches of one key; any thread may call `run`."""

    device: torch.device
    lanes = 1
    """How many batches may run at once."""
    overlaps = False
    """Whether the device works in parallel with the host; then `launch` starts batches."""

    def __init__(self, models: Sequence[HostedModel]) -> None:
        self._models = {model.served.number: model for model in models}

    @abstractmethod
    def load(self, instance: Instance) -> int:
        """Load an instance; return the bytes it takes."""

    @abstractmethod
    def unload(self, instance: int) -> None:
        """Unload an instance and free its memory."""

    @abstractmethod
    def run(self, key: Key, inputs: Tensors) -> Tensors:
        """Run one segment; the result is complete when this returns.

        The first segment takes raw inputs; the last segment of a plan returns the outputs for clients.
        """

    def launch(
        self,
        legs: Sequence[Key],
        pieces: Sequence[Tensors],
        instances: Sequence[int] = (),
        *,
        keep: bool = False,
    ) -> Launched | None:
        """Start segments one after the other on these instances, and return at once; None: `run` them.

        The inputs come in pieces: the rows of one, then those of the next. With `keep`, what each segment
        gave is part of the result.
        """
        return None

    def prepare_plans(self) -> None:
        """Get whole plans ready that loaded instances can run."""
        return

    def host(self, model: HostedModel) -> None:
        """Try every key of a model with one example, then take it; what was made for that goes again."""
        model.rehearse()
        self._models[model.served.number] = model

    def release(self, model: int) -> None:
        """Let a model and its weights go, of which nothing is loaded any more."""
        self._models.pop(model, None)

    def example(self, key: Key, rows: int) -> Tensors:
        """Make random inputs for a key: raw inputs on the host, activations where the device expects them."""
        return self._models[key.model].example(key, rows)

    def ends(self, key: Key) -> bool:
        """Whether a key completes a plan."""
        return self._models[key.model].ends(key)

    def is_confident(self, model: int) -> bool:
        """Whether complete plans of a model give one more tensor: how sure each answer is."""
        return self._models[model].is_confident

    def element_bytes(self, model: int) -> int:
        """Bytes per number in a model's activations."""
        return self._models[model].element_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on the device."""
        return sum(model.weight_bytes() for model in list(self._models.values()))


def fits(instance: Instance, key: Key, *, nested: bool) -> bool:
    """Whether an instance can run a key; in a nested model, narrower choices too."""
    if (instance.model, instance.segment) != (key.model, key.segment):
        return False
    return key.choice == instance.choice or (nested and key.choice < instance.choice)


# -- Runs batches on a CPU with a fixed number of threads, one batch at a time.


class CpuExecutor(Executor):
    """One lane on a share of the cores; with `speed` below 1 it rests after each batch.

    An instance holds its segment at its own choice, for every previous choice. In a nested model, narrower
    choices are made on first use. Instances share weights, which are freed with the last user.
    """

    device = HOST

    def __init__(self, models: Sequence[HostedModel], *, threads: int = 1, speed: float = 1.0) -> None:
        super().__init__(models)
        torch.set_num_threads(threads)
        self._rest = 1.0 / speed - 1.0
        self._users: dict[int, Instance] = {}
        self._lock = Lock()

    def load(self, instance: Instance) -> int:
        """Make the segment at the instance's choice, for all previous choices."""
        before = self.weight_bytes
        model = self._models[instance.model]
        with self._lock:
            self._users[instance.id] = instance
            for key in model.served.keys.values():
                if key.place == instance.place:
                    model.segment(key)
        return self.weight_bytes - before

    def unload(self, instance: int) -> None:
        """Drop every segment that no loaded instance can run, and give its memory back to the system."""
        with self._lock:
            model = self._models[self._users.pop(instance).model]
            for key in model.made():
                if not any(fits(user, key, nested=model.spec.nested) for user in self._users.values()):
                    model.drop(key)
        trim_memory()

    @torch.inference_mode()
    def run(self, key: Key, inputs: Tensors) -> Tensors:
        """Run one segment, then rest if this server is set to be slow."""
        segment = self._models[key.model].segment(key)
        began_s = thread_time()
        outputs = segment(inputs)
        if self._rest > 0.0:
            sleep(self._rest * (thread_time() - began_s))  # for its own work, not for others' on its core
        return outputs
