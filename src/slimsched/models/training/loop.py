"""Training: sandwich steps under a cosine schedule, averaged weights, checkpoints between epochs, the card.

All random numbers of an epoch come from (seed, epoch), so a resumed run equals an uninterrupted one.
"""

import copy
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pickle import UnpicklingError

import msgspec
import numpy as np
import torch
from msgspec import Struct, structs
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.core.config import ConfigError, CountOrZero, DataError, Seconds
from slimsched.models.data.dataset import ScoredImages, held_out_amount, hold_out, open_images, scored_images
from slimsched.models.data.images import ImageSet
from slimsched.models.evaluate import image_inputs, measure
from slimsched.models.loading import build, folded
from slimsched.models.network import SlimNetwork, Trained, save
from slimsched.models.package import ModelCard
from slimsched.models.shipped import PUBLISHED_PERCENT
from slimsched.models.slimvit.vit import SlimVit
from slimsched.models.training.recipe import Recipe, TrainingRecipe, augment
from slimsched.models.width import SEGMENTS, WIDTH_TUPLES, WIDTHS, format_widths

# -- One training step by the sandwich rule: the widest tuple, the narrowest, and random tuples in between.
#
#     widest    cross-entropy with the labels and, if the recipe says so, with a teacher's soft outputs
#     others    cross-entropy with the labels, with the widest tuple's soft outputs (in-place distillation) or
#               with a teacher's, in the shares that the recipe gives
#
# Soft outputs are softmax(logits / T); their loss is multiplied by T^2.
#
# On CUDA, kernel launches limit eager PyTorch. So the first pass of a tuple, forward and backward, runs
# eagerly and is then captured as a graph. Later passes replay the graph.

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


# -- What the recipe says about learning rate and weight average.


def learning_rate(training: TrainingRecipe, epoch: float, epochs: int) -> float:
    """Linear warm-up, then half a cosine down to 0."""
    if epoch < training.warmup_epochs:
        return training.learning_rate * (epoch + 1e-2) / training.warmup_epochs
    done = (epoch - training.warmup_epochs) / max(epochs - training.warmup_epochs, 1)
    return training.learning_rate * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def average_keep(training: TrainingRecipe, step: int, steps: int) -> float:
    """Share of the average that a step keeps; the horizon is `average_share` of the run, at first less."""
    horizon = max(training.average_share * steps, 1.0)
    return min(1 - 1 / horizon, (1 + step) / (10 + step))


# -- The optimizers that a recipe can name.


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
# A checkpoint is replaced in one step, so an interrupted write leaves the previous one intact. It is read as
# tensors and numbers only, so a foreign file cannot run code.

NAME, CURVE = "checkpoint.pt", "epochs.jsonl"


class EpochProgress(Struct, frozen=True, kw_only=True):
    """Epochs done, total epochs and seconds spent."""

    recipe: Recipe
    epoch: CountOrZero = 0
    epochs: CountOrZero = 0
    seconds: Seconds = 0.0


Parts = dict[str, nn.Module | torch.optim.Optimizer]
"""What keeps a state, by name."""


def save_checkpoint(folder: Path, progress: EpochProgress, parts: Parts) -> None:
    """Write the checkpoint of a run into its folder."""
    path = folder / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save({"progress": msgspec.json.encode(progress), **states}, partial)
    partial.replace(path)


def load_checkpoint(folder: Path, recipe: Recipe, parts: Parts) -> EpochProgress:
    """Restore a checkpoint and return its progress; the recipe must not have changed."""
    path = folder / NAME
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        progress = msgspec.json.decode(content["progress"], type=EpochProgress)
        if progress.recipe != recipe:
            raise DataError(
                f"{path} is of a run with another recipe; resume with that one or name another folder"
            )
        for name, part in parts.items():
            part.load_state_dict(content[name])
    except (UnpicklingError, KeyError, RuntimeError, ValueError, msgspec.DecodeError, OSError) as error:
        raise DataError(f"checkpoint {path} does not fit this run ({error}); start a new folder") from None
    return progress


class EpochReport(Struct, frozen=True):
    """The figures of one epoch; accuracies (percent by plan) only if the run held images out."""

    epoch: int
    epochs: int
    loss_widest: float
    loss_others: float
    learning_rate: float
    epoch_s: float
    elapsed_s: float
    accuracy: dict[str, float] = {}


def train(
    recipe: Recipe,
    data: ImageSet,
    out: Path,
    *,
    device: torch.device,
    held_out: ImageSet | None = None,
    teacher: SlimNetwork | None = None,
    start: SlimNetwork | None = None,
    report: Callable[[EpochReport], None] = lambda report: None,
    advance: Callable[[int, int], None] = lambda step, steps: None,
    limit_s: float | None = None,
) -> tuple[Trained, EpochProgress]:
    """Train, or resume the run in `out`; return the averaged network and the progress.

    With `start`, training begins with these weights. The run stops before an epoch that would end later than
    `limit_s` seconds from now, and leaves a checkpoint to resume from.
    """
    called_s = began_s = time.perf_counter()
    training = recipe.training
    if training.teacher == "model" and teacher is None:
        raise ConfigError('the recipe says teacher = "model", but none was named; name one with --teacher')
    if teacher is not None and teacher.shape.classes != len(data.classes):
        raise DataError(
            f"the teacher knows {teacher.shape.classes} classes, the data has {len(data.classes)}"
        )
    trainer = Trainer(recipe, data, name=out.name, device=device, teacher=teacher)
    epochs = max(training.epochs, math.ceil(training.least_steps / trainer.steps))
    progress = EpochProgress(recipe=recipe, epochs=epochs)
    if (out / NAME).exists():
        progress = load_checkpoint(out, recipe, trainer.parts)
    elif start is not None:
        trainer.begin_with(start)
    out.mkdir(parents=True, exist_ok=True)
    began_s -= progress.seconds
    epoch_times_s: list[float] = []
    while progress.epoch < progress.epochs:
        started_s = time.perf_counter()
        widest, others, rate = trainer.run_epoch(progress.epoch, progress.epochs, advance)
        now_s = time.perf_counter()
        epoch_times_s.append(now_s - started_s)
        progress = structs.replace(progress, epoch=progress.epoch + 1, seconds=now_s - began_s)
        out_of_time = limit_s is not None and now_s - called_s + 1.5 * max(epoch_times_s[-3:]) > limit_s
        last = out_of_time or progress.epoch == progress.epochs
        if last or progress.epoch % training.checkpoint_every == 0:
            save_checkpoint(out, progress, trainer.parts)
        accuracy = {}
        if held_out is not None and (last or progress.epoch % training.validate_every == 0):
            accuracy = validate(trainer.trained, held_out)
        epoch_s, done = epoch_times_s[-1], progress
        one = EpochReport(done.epoch, done.epochs, widest, others, rate, epoch_s, done.seconds, accuracy)
        with (out / CURVE).open("ab") as log:
            log.write(msgspec.json.encode(one) + b"\n")
        report(one)
        if last:
            break
    card = structs.replace(trainer.trained.card, epochs=progress.epoch, training_s=round(progress.seconds, 1))
    return structs.replace(trainer.trained, card=card), progress


class Trainer:
    """A network in training: its weights, their average, the optimizer, and the images on their device."""

    def __init__(
        self,
        recipe: Recipe,
        data: ImageSet,
        *,
        name: str,
        device: torch.device,
        teacher: SlimNetwork | None = None,
    ) -> None:
        torch.manual_seed(recipe.training.seed)
        torch.backends.cudnn.benchmark = device.type == "cuda"
        self.recipe = recipe
        self.net = build(recipe.shape(len(data.classes))).to(device)
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        card = ModelCard(
            name=name,
            shape=self.net.shape,
            colours=data.colours(),
            classes=data.classes,
            recipe=msgspec.to_builtins(recipe),
            epochs=0,
            training_s=0.0,
            trained_on=f"{len(data)} images, {device}",
        )
        self.trained = Trained(net=self.average, card=card)
        if recipe.training.compile and isinstance(self.net, SlimVit):
            self.net.use_compiled_blocks()
        self.optimizer = make_optimizer(self.net, recipe.training)
        self.parts: Parts = {"net": self.net, "average": self.average, "optimizer": self.optimizer}
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
                classes=self.net.shape.classes,
                colours=self.trained.card.colours,
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


def validate(trained: Trained, images: ImageSet) -> dict[str, float]:
    """Measure the accuracy of the paper's eight plans on images, in percent."""
    model = folded(trained, precision=torch.float32)
    plans = [model.spec.path(text) for text in PUBLISHED_PERCENT]
    inputs, device = image_inputs(images, trained.net.shape.classes), next(trained.net.parameters()).device
    correct = measure(model, inputs, plans=plans, batch=1000, device=str(device)).correct
    shares = correct.mean(axis=1).tolist()
    return {text: round(100 * share, 2) for text, share in zip(PUBLISHED_PERCENT, shares, strict=True)}


# -- A whole run: open the images, hold some out, train, score, write the model and its card.

CHANCE_DEVIATIONS = 3.0
"""Standard deviations above the expected score that pure guessing is still likely to reach."""


def run_training(
    recipe: Recipe,
    data: Path,
    out: Path,
    *,
    device: torch.device,
    teacher: SlimNetwork | None = None,
    start: SlimNetwork | None = None,
    report: Callable[[EpochReport], None] = lambda report: None,
    advance: Callable[[int, int], None] = lambda step, steps: None,
    limit_s: float | None = None,
) -> tuple[ModelCard, EpochProgress]:
    """Train on a folder of images, score the result and write model and card to `out`.

    A note on the card warns of widths that only guess. The time limit includes the time to read the images.
    """
    started_s = time.perf_counter()
    images = open_images(data, "train", side=recipe.image_size)
    amount = held_out_amount(recipe.training.held_out, data)
    held_out = None
    if amount:
        images, held_out = hold_out(images, amount, seed=recipe.training.seed, run=out)
    trained, progress = train(
        recipe,
        images,
        out,
        device=device,
        held_out=held_out,
        teacher=teacher,
        start=start,
        report=report,
        advance=advance,
        limit_s=limit_s and max(limit_s - (time.perf_counter() - started_s), 0.1),
    )
    card, scored = trained.card, None
    if held_out is not None:
        scored = ScoredImages(images=held_out, kind="held-out pictures")
    elif progress.epoch == progress.epochs:
        scored = scored_images(data, side=recipe.image_size, classes=images.classes, run=None)
    if scored is not None:
        accuracy = validate(trained, scored.images)
        by_width = {width: accuracy[format_widths((width,) * SEGMENTS)] for width in WIDTHS}
        warning = chance_warning(by_width, scored.images.labels)
        card = structs.replace(
            card,
            scored_on=scored.description,
            accuracy_percent=accuracy,
            notes=(warning,) if warning else (),
        )
    return save(out, trained.net, card), progress


def chance_warning(percent_by_width: dict[float, float], labels: NDArray[np.int64]) -> str | None:
    """Return a warning that names the widths at chance level, or None if there are none.

    Guessing the most common class is likely to reach p + 3 sqrt(p (1 - p) / n) at most, where p is the share
    of that class among n images.
    """
    share = float(np.bincount(labels).max()) / len(labels)
    limit = 100 * (share + CHANCE_DEVIATIONS * math.sqrt(share * (1 - share) / len(labels)))
    at_chance = [width for width, percent in percent_by_width.items() if percent <= limit]
    if share == 1.0 or not at_chance:
        return None
    names = ", ".join(f"{width:g} ({percent_by_width[width]:.1f} %)" for width in at_chance)
    reach = f"guessing can reach {min(limit, 100):.1f} % here"
    return (
        f"WARNING: no better than guessing at width {names}: {reach}. "
        "Do not use this model; train longer (epochs, least_steps), add pictures, or check the labels"
    )
