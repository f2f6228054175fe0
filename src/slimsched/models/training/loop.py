"""The training loop: sandwich steps under a cosine schedule, averaged weights, checkpoints between epochs.

All random numbers of an epoch come from (seed, epoch), so a resumed run equals an uninterrupted one.

A step trains the widest tuple, the narrowest and random ones between (the sandwich rule). A checkpoint holds
all that a run needs to resume: weights, average, momentum and progress.
"""

import copy
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch
from msgspec import Struct, structs
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.core.config import ConfigError, CountOrZero, DataError, Seconds
from slimsched.models.data.images import Colours, ImageSet
from slimsched.models.evaluate import Evaluator, accuracy_percent
from slimsched.models.loading import build
from slimsched.models.network import SlimNetwork
from slimsched.models.slimresnet.shape import MIXED, UNIFORM
from slimsched.models.slimvit.vit import SlimVit
from slimsched.models.training.recipe import Recipe, TrainingRecipe, augment
from slimsched.models.width import SEGMENTS, WIDTH_TUPLES, WIDTHS

# -- One training step by the sandwich rule: the widest tuple, the narrowest, and random tuples in between.
#
#     widest    cross-entropy with the labels and, if the recipe says so, with a teacher's soft outputs
#     others    cross-entropy with the labels, with the widest tuple's soft outputs (in-place distillation) or
#               with a teacher's, in the shares that the recipe gives
#
# Soft outputs are softmax(logits / T); their loss is multiplied by T^2.
#
# On CUDA, kernel launches limit eager PyTorch. So the first pass of a tuple, forward and backward, runs
# eagerly
# and is then captured as a graph. Later passes replay the graph.

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


# -- Computes learning rate, weight average and number of epochs from the recipe.

MEASURED_EPOCHS = 3
FIX_EPOCHS_AFTER = 8


def learning_rate(training: TrainingRecipe, epoch: float, epochs: int) -> float:
    """Linear warm-up, then half a cosine down to 0; constant while the number of epochs is unknown."""
    if epoch < training.warmup_epochs:
        return training.learning_rate * (epoch + 1e-2) / training.warmup_epochs
    if not epochs:
        return training.learning_rate
    done = (epoch - training.warmup_epochs) / max(epochs - training.warmup_epochs, 1)
    return training.learning_rate * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def fixed_epochs(training: TrainingRecipe, steps: int) -> int:
    """Return the total epochs, enough for `least_steps`; 0 if the recipe gives minutes instead."""
    if training.minutes:
        return 0
    return max(training.epochs, math.ceil(training.least_steps / steps))


def average_keep(training: TrainingRecipe, step: int, steps: int) -> float:
    """Share of the average that a step keeps; the horizon is `average_share` of the run, at first less."""
    horizon = max(training.average_share * steps, 1.0) if steps else 1e9
    return min(1 - 1 / horizon, (1 + step) / (10 + step))


def epochs_that_fit(
    training: TrainingRecipe, epoch: int, elapsed_s: float, epoch_times_s: Sequence[float]
) -> int:
    """Return the total epochs that fit into the minutes, by recent speed; 0 while too few were measured."""
    if len(epoch_times_s) < FIX_EPOCHS_AFTER:
        return 0
    epoch_s = sum(epoch_times_s[-MEASURED_EPOCHS:]) / MEASURED_EPOCHS
    return epoch + max(1, int((training.minutes * 60 - elapsed_s) / epoch_s))


# -- The optimizers that a recipe can name.

STATE_NAMES = ("momentum_buffer", "exp_avg", "exp_avg_sq", "step")
"""The optimizer state of each parameter, by PyTorch's names."""


def make_optimizer(net: SlimNetwork, training: TrainingRecipe) -> torch.optim.Optimizer:
    """Make SGD with Nesterov momentum, or AdamW. Weight decay applies to weights only."""
    named = list(net.named_parameters())
    decayed: list[Tensor] = [parameter for name, parameter in named if decays(name, parameter)]
    others: list[Tensor] = [parameter for name, parameter in named if not decays(name, parameter)]
    groups = [
        {"params": decayed, "weight_decay": training.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    fused = next(net.parameters()).is_cuda
    if training.optimizer == "adamw":
        betas = (training.momentum, training.square_momentum)
        return torch.optim.AdamW(groups, lr=training.learning_rate, betas=betas, fused=fused)
    return torch.optim.SGD(
        groups, lr=training.learning_rate, momentum=training.momentum, nesterov=True, fused=fused
    )


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: yes for matrices and convolutions, no for all other parameters."""
    return name.endswith("weight") and parameter.dim() > 1


# -- Checkpoints: all that a training run needs to resume (weights, average, momentum, progress).
#
# A checkpoint is a safetensors file with JSON in its header. It is replaced in one step, so an interrupted
# write leaves the previous checkpoint intact.

NAME = "checkpoint.safetensors"


class EpochProgress(Struct, frozen=True, kw_only=True):
    """Epochs done, total epochs (0: not decided yet) and seconds spent."""

    recipe: Recipe
    epoch: CountOrZero = 0
    epochs: CountOrZero = 0
    seconds: Seconds = 0.0


def save(
    folder: Path,
    progress: EpochProgress,
    net: SlimNetwork,
    average: SlimNetwork,
    optimizer: torch.optim.Optimizer,
) -> Path:
    """Write the checkpoint of a run into its folder."""
    tensors = _tensors(net, average, optimizer)
    path = folder / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    save_file(
        {name: tensor.contiguous().cpu() for name, tensor in tensors.items()},
        partial,
        metadata={"progress": msgspec.json.encode(progress).decode()},
    )
    partial.replace(path)
    return path


def exists(folder: Path) -> bool:
    """Whether this folder holds a checkpoint."""
    return (folder / NAME).exists()


def load(
    folder: Path, recipe: Recipe, net: SlimNetwork, average: SlimNetwork, optimizer: torch.optim.Optimizer
) -> EpochProgress:
    """Restore a checkpoint and return its progress; the recipe must not have changed."""
    path = folder / NAME
    try:
        progress, tensors = _read(path, recipe)
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                parameter.copy_(tensors[f"net.{name}"])
                for key in STATE_NAMES:
                    state = tensors.get(f"{key}.{name}")
                    if state is not None:
                        optimizer.state[parameter][key] = _like(parameter, state)
            for name, parameter in average.named_parameters():
                parameter.copy_(tensors.get(f"average.{name}", tensors[f"net.{name}"]))
    except (SafetensorError, KeyError, RuntimeError, msgspec.DecodeError, OSError) as error:
        raise DataError(f"checkpoint {path} does not fit this run ({error}); start a new folder") from None
    return progress


def _read(path: Path, recipe: Recipe) -> tuple[EpochProgress, dict[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        progress = msgspec.json.decode(file.metadata()["progress"], type=EpochProgress)
        if progress.recipe != recipe:
            raise DataError(
                f"{path} is of a run with another recipe; resume with that one or name another folder"
            )
        return progress, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _like(parameter: Tensor, state: Tensor) -> Tensor:
    """Copy the state to the parameter's device and memory layout; a step count stays a scalar."""
    if state.dim() == 0:
        return state.to(parameter.device)
    return torch.empty_like(parameter).copy_(state)


def _tensors(net: SlimNetwork, average: SlimNetwork, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return all tensors, each under its part and the name of its parameter."""
    states = {
        f"{key}.{name}": state
        for key in STATE_NAMES
        for name, parameter in net.named_parameters()
        if (state := optimizer.state[parameter].get(key)) is not None
    }
    return {
        **{f"net.{name}": parameter.detach() for name, parameter in net.named_parameters()},
        **{f"average.{name}": parameter.detach() for name, parameter in average.named_parameters()},
        **states,
    }


class EpochReport(Struct, frozen=True, kw_only=True):
    """The figures of one epoch; accuracies (percent by tuple) only if the run held images out."""

    epoch: int
    epochs: int
    loss_widest: float
    loss_others: float
    learning_rate: float
    epoch_s: float
    elapsed_s: float
    accuracy: dict[tuple[float, ...], float] = {}


def train(
    recipe: Recipe,
    data: ImageSet,
    *,
    colours: Colours,
    folder: Path,
    device: torch.device,
    held_out: ImageSet | None = None,
    teacher: SlimNetwork | None = None,
    start: SlimNetwork | None = None,
    report: Callable[[EpochReport], None] = lambda report: None,
    advance: Callable[[int, int], None] = lambda step, steps: None,
    stop_after: int | None = None,
    limit_s: float | None = None,
) -> tuple[SlimNetwork, EpochProgress]:
    """Train, or resume the run in `folder`; return the averaged network and the progress.

    The run stops after epoch `stop_after`, or before an epoch that would end later than `limit_s` seconds
    from now. It leaves a checkpoint to resume from.
    """
    called_s = began_s = time.perf_counter()
    training = recipe.training
    check_teacher(training, teacher, len(data.classes))
    trainer = Trainer(recipe, data, colours=colours, device=device, teacher=teacher)
    if start is not None and not exists(folder):
        trainer.begin_with(start)
    progress = EpochProgress(recipe=recipe, epochs=fixed_epochs(training, trainer.steps))
    if exists(folder):
        progress = load(folder, recipe, trainer.net, trainer.average, trainer.optimizer)
    began_s -= progress.seconds
    epoch_times_s: list[float] = []
    while not progress.epochs or progress.epoch < progress.epochs:
        started_s = time.perf_counter()
        widest, others, rate = trainer.run_epoch(progress.epoch, progress.epochs, advance)
        now_s = time.perf_counter()
        epoch_times_s.append(now_s - started_s)
        progress = structs.replace(progress, epoch=progress.epoch + 1, seconds=now_s - began_s)
        if not progress.epochs:
            epochs = epochs_that_fit(training, progress.epoch, progress.seconds, epoch_times_s)
            progress = structs.replace(progress, epochs=epochs)
        out_of_time = limit_s is not None and now_s - called_s + 1.5 * max(epoch_times_s[-3:]) > limit_s
        last = out_of_time or progress.epoch in (stop_after, progress.epochs)
        if last or progress.epoch % training.checkpoint_every == 0:
            save(folder, progress, trainer.net, trainer.average, trainer.optimizer)
        accuracy = {}
        if held_out is not None and (last or progress.epoch % training.validate_every == 0):
            accuracy = validate(trainer.average, held_out, colours)
        report(
            EpochReport(
                epoch=progress.epoch,
                epochs=progress.epochs,
                loss_widest=widest,
                loss_others=others,
                learning_rate=rate,
                epoch_s=epoch_times_s[-1],
                elapsed_s=progress.seconds,
                accuracy=accuracy,
            )
        )
        if last:
            break
    return trainer.average, progress


class Trainer:
    """A network in training: its weights, their average, the optimizer, and the images on their device."""

    def __init__(
        self,
        recipe: Recipe,
        data: ImageSet,
        *,
        colours: Colours,
        device: torch.device,
        teacher: SlimNetwork | None = None,
    ) -> None:
        torch.manual_seed(recipe.training.seed)
        torch.backends.cudnn.benchmark = device.type == "cuda"
        self.recipe, self.colours, self.classes = recipe, colours, len(data.classes)
        self.net = build((recipe.vit or recipe.network).shape(self.classes)).to(device)
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        if recipe.training.compile and isinstance(self.net, SlimVit):
            self.net.use_compiled_blocks()
        self.optimizer = make_optimizer(self.net, recipe.training)
        self.batch = min(recipe.training.batch, len(data))
        self.steps = len(data) // self.batch
        self._images = torch.from_numpy(np.array(data.images)).to(device)
        self._labels = torch.from_numpy(data.labels).to(device)
        self._sandwich = Sandwich(
            self.net,
            teacher or self.average,
            recipe.training,
            batch=self.batch,
            capture=device.type == "cuda",
        )

    def begin_with(self, start: SlimNetwork) -> None:
        """Take the weights of another network of the same shape."""
        if start.shape != self.net.shape:
            raise ConfigError(f"the start has the shape {start.shape}, the recipe asks for {self.net.shape}")
        for one in (self.net, self.average):
            one.load_state_dict(start.state_dict())

    def run_epoch(
        self, epoch: int, epochs: int, advance: Callable[[int, int], None]
    ) -> tuple[float, float, float]:
        """One pass over the data; mean losses of the widest and the other tuples, and the last rate."""
        training, device = self.recipe.training, self._images.device
        rng = np.random.default_rng((training.seed, epoch))
        generator = torch.Generator(device).manual_seed(int(rng.integers(2**62)))
        order = torch.from_numpy(rng.permutation(len(self._labels))).to(device)
        rate = 0.0
        for step in range(self.steps):
            index = order[step * self.batch : (step + 1) * self.batch]
            x, targets = augment(
                self._images[index],
                self._labels[index],
                classes=self.classes,
                colours=self.colours,
                recipe=self.recipe.augmentation,
                generator=generator,
            )
            rate = learning_rate(training, epoch + step / self.steps, epochs)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self._sandwich(x, targets, draw_tuples(training, rng))
            self.optimizer.step()
            keep = average_keep(training, epoch * self.steps + step, epochs * self.steps)
            update_average(self.average, self.net, keep=keep)
            advance(step + 1, self.steps)
        widest, others = self._sandwich.take_losses()
        return widest / self.steps, others / self.steps / (1 + training.random_tuples), rate


def check_teacher(training: TrainingRecipe, teacher: SlimNetwork | None, classes: int) -> None:
    """Raise an error if the recipe's teacher is missing or was trained for a different number of classes."""
    if training.teacher == "model" and teacher is None:
        raise ConfigError('the recipe says teacher = "model", but none was named; name one with --teacher')
    if teacher is not None and teacher.shape.classes != classes:
        raise DataError(f"the teacher knows {teacher.shape.classes} classes, the data has {classes}")


def validate(net: SlimNetwork, held_out: ImageSet, colours: Colours) -> dict[tuple[float, ...], float]:
    """Measure the accuracy of the paper's eight tuples on images not used for training."""
    tuples = (*UNIFORM, *MIXED)
    correct = Evaluator(net, colours).correct(held_out, tuples, batch=1000)
    return {widths: accuracy_percent(row) for widths, row in zip(tuples, correct, strict=True)}
