"""One training step by the sandwich rule: the widest tuple, the narrowest, and random tuples in between.

    widest    cross-entropy with the labels and, if the recipe says so, with a teacher's soft outputs
    others    cross-entropy with the labels, with the widest tuple's soft outputs (in-place distillation) or
              with a teacher's, in the shares that the recipe gives

Soft outputs are softmax(logits / T); their loss is multiplied by T^2.

On CUDA, kernel launches limit eager PyTorch. So the first pass of a tuple, forward and backward, runs eagerly
and is then captured as a graph. Later passes replay the graph.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.models.network import SlimNetwork
from slimsched.models.training.recipe import TrainingRecipe
from slimsched.models.width import SEGMENTS, WIDTH_TUPLES, WIDTHS

Widths = tuple[float, ...]
WIDEST: Widths = (WIDTHS[-1],) * SEGMENTS
NARROWEST: Widths = (WIDTHS[0],) * SEGMENTS


NARROW_TUPLES = [widths for widths in WIDTH_TUPLES if widths[0] == WIDTHS[0] and widths[1] <= WIDTHS[1]]
"""Tuples that begin narrow: the cheapest ways to an answer, at any width of the last segments."""


def draw_tuples(recipe: TrainingRecipe, rng: np.random.Generator) -> list[Widths]:
    """Draw random tuples in mirrored pairs (w and 1.25 - w), so that all steps cost about the same."""
    pool = np.random.default_rng(recipe.seed).permutation(len(WIDTH_TUPLES))[: recipe.tuple_pool or None]
    tuples: list[Widths] = []
    while len(tuples) < recipe.random_tuples:
        if recipe.narrow_share and rng.random() < recipe.narrow_share:
            tuples.append(NARROW_TUPLES[rng.integers(len(NARROW_TUPLES))])
            continue
        widths = WIDTH_TUPLES[rng.choice(pool)]
        tuples += [widths, tuple(1.25 - width for width in widths)]
    return tuples[: recipe.random_tuples]


class GraphCache:
    """CUDA graphs by key. All share one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[object, torch.cuda.CUDAGraph] = {}

    def run(self, key: object, work: Callable[[], None]) -> None:
        """Replay the graph of this key; the first time, do the work eagerly and capture it."""
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        self._graphs[key] = graph

    def __len__(self) -> int:
        return len(self._graphs)


class Sandwich:
    """Adds the gradients of all passes of a step to the network's parameters."""

    def __init__(
        self, net: SlimNetwork, teacher: SlimNetwork, recipe: TrainingRecipe, *, batch: int, capture: bool
    ) -> None:
        device = next(net.parameters()).device
        shape, side = net.shape, net.shape.image_size
        dtype = torch.bfloat16 if recipe.precision == "bf16" else torch.float32
        self.net, self.teacher, self.recipe = net, teacher, recipe
        self._images = torch.zeros((batch, 3, side, side), device=device, dtype=dtype).to(
            memory_format=torch.channels_last
        )
        self._targets = torch.zeros((batch, shape.classes), device=device)
        self._soft = torch.zeros((batch, shape.classes), device=device)
        self._losses = torch.zeros(2, device=device)  # widest, sum of the others; added up over steps
        self._graphs = GraphCache(device) if capture else None
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def __call__(self, images: Tensor, targets: Tensor, tuples: list[Widths]) -> None:
        """Compute the gradients of one step; `tuples` are the random tuples."""
        self._images.copy_(images)
        smoothing = self.recipe.label_smoothing
        self._targets.copy_(targets * (1 - smoothing) + smoothing / targets.shape[1])
        self._run("widest", self._widest_pass)
        if self.recipe.tuples == "widest":
            return
        for widths in [NARROWEST, *tuples]:
            self._run(widths, partial(self._student_pass, widths))

    def take_losses(self) -> tuple[float, float]:
        """Return the losses of the widest tuple and of the others, summed since the last call."""
        widest, others = self._losses.tolist()
        self._losses.zero_()
        return widest, others

    def _run(self, key: object, work: Callable[[], None]) -> None:
        if self._graphs is None:
            work()
        else:
            self._graphs.run(key, work)

    def _widest_pass(self) -> None:
        gradients = [p.grad for p in self.net.parameters() if p.grad is not None]
        torch._foreach_zero_(gradients)
        recipe = self.recipe
        if recipe.teacher_share > 0 or recipe.in_place_share < 1:
            with torch.no_grad():
                self._soft.copy_(self._softened(self.teacher(self._images, WIDEST)))
        logits = self.net(self._images, WIDEST).float()  # (N, classes)
        loss = cross_entropy(logits, self._targets)
        if recipe.teacher_share > 0:
            loss = (1 - recipe.teacher_share) * loss + recipe.teacher_share * self._distillation(logits)
        loss.backward()  # type: ignore[no-untyped-call]
        self._soft.lerp_(self._softened(logits.detach()), recipe.in_place_share)
        self._losses[0] += loss.detach()

    def _student_pass(self, widths: Widths) -> None:
        logits = self.net(self._images, widths).float()  # (N, classes)
        share = self.recipe.label_share
        loss = share * cross_entropy(logits, self._targets) if share > 0 else logits.new_zeros(())
        if share < 1:
            loss = loss + (1 - share) * self._distillation(logits)
        loss.backward()
        self._losses[1] += loss.detach()

    def _softened(self, logits: Tensor) -> Tensor:
        return F.softmax(logits.float() / self.recipe.temperature, dim=1)

    def _distillation(self, logits: Tensor) -> Tensor:
        temperature = self.recipe.temperature
        return cross_entropy(logits / temperature, self._soft) * temperature**2


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over the batch of -sum(targets log softmax(logits)); targets (N, classes) sum to one."""
    return -(targets * F.log_softmax(logits, dim=1)).sum(dim=1).mean()


def update_average(average: nn.Module, net: nn.Module, *, keep: float) -> None:
    """average <- keep average + (1 - keep) net."""
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(net.parameters()), 1 - keep)
