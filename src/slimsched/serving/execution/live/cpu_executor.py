"""Runs batches on a CPU with a fixed number of threads, one batch at a time."""

from collections.abc import Sequence
from threading import Lock
from time import sleep, thread_time

import torch

from slimsched.models.elastic import Tensors
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.request import Key
from slimsched.serving.execution.live.hosted_model import HostedModel
from slimsched.serving.execution.live.memory_trim import trim_memory


class CpuExecutor:
    """One lane on a share of the cores; with `speed` below 1 it rests after each batch.

    An instance holds its segment at its own choice, for every previous choice. In a nested model, narrower
    choices are made on first use. Instances share weights, which are freed with the last user.
    """

    lanes = 1
    device = torch.device("cpu")

    def __init__(self, models: Sequence[HostedModel], *, threads: int = 1, speed: float = 1.0) -> None:
        torch.set_num_threads(threads)
        self._models = {model.served.number: model for model in models}
        self._rest = 1.0 / speed - 1.0
        self._users: dict[int, Instance] = {}
        self._lock = Lock()

    def host(self, model: HostedModel) -> None:
        """Try every key of a model with one example, then take it; what was made for that goes again."""
        model.rehearse()
        self._models[model.served.number] = model

    def release(self, model: int) -> None:
        """Let a model and its weights go."""
        self._models.pop(model, None)

    def load(self, instance: Instance) -> int:
        """Make the segment at the instance's choice, for all previous choices."""
        before = self.memory_bytes()
        model = self._models[instance.model]
        with self._lock:
            self._users[instance.id] = instance
            for key in model.served.keys.values():
                if key.place == instance.place:
                    model.segment(key)
        return self.memory_bytes() - before

    def unload(self, instance: int) -> None:
        """Drop every segment that no loaded instance can run, and give its memory back to the system."""
        with self._lock:
            model = self._models[self._users.pop(instance).model]
            for key in model.made():
                if not any(self._fits(user, key) for user in self._users.values()):
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

    def example(self, key: Key, rows: int) -> Tensors:
        """Make random inputs for a key."""
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

    def memory_bytes(self) -> int:
        """Bytes of the weights that loaded segments use."""
        return sum(model.weight_bytes() for model in list(self._models.values()))

    def _fits(self, user: Instance, key: Key) -> bool:
        if (user.model, user.segment) != (key.model, key.segment):
            return False
        nested = self._models[key.model].spec.nested
        return user.choice == key.choice or (nested and user.choice > key.choice)
