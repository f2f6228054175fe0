"""Adapters make an elastic model of an ordinary network: early exits, a family, nested or switched widths.

Each makes one callable per segment and choice; callables of different choices share no state but weights.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.models.elastic import (
    ElasticModel,
    ModelError,
    Segment,
    Tensors,
    named_weights,
    users_code,
)
from slimsched.models.spec import ModelSpec, Path

# -- Narrower layers made of views: the leading outputs, inputs or heads of a wider layer's weights.
#
# Views take no extra memory. Slices are made when a segment is loaded, after the weights are in place.


def sliced_linear(linear: nn.Linear, *, out: int | None = None, into: int | None = None) -> nn.Linear:
    """Return a linear layer that uses the leading outputs and inputs of another."""
    return _linear(linear.weight[:out, :into], None if linear.bias is None else linear.bias[:out])


class SlicedAttention(nn.Module):
    """The leading heads of an nn.MultiheadAttention; same inputs and outputs, batch first.

    Head h uses rows [h·d, (h+1)·d) of the query, key and value weights and the same columns of the output.
    """

    batch_first = True
    in_proj_bias = None  # keeps nn.TransformerEncoderLayer from its fast path, which reads weights itself

    def __init__(self, attention: nn.MultiheadAttention, heads: int) -> None:
        super().__init__()
        size = attention.embed_dim
        used = heads * attention.head_dim
        assert attention.in_proj_weight is not None
        self.heads = self.num_heads = heads
        self.query, self.key, self.value = (
            _linear(
                attention.in_proj_weight[start : start + used],
                None if attention.in_proj_bias is None else attention.in_proj_bias[start : start + used],
            )
            for start in (0, size, 2 * size)
        )
        self.out = _linear(attention.out_proj.weight[:, :used], attention.out_proj.bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Any, attn_mask: Tensor | None = None, **__: Any
    ) -> tuple[Tensor, None]:
        """(N, T, size) three times -> (N, T, size), and no attention weights."""
        q, k, v = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (N, heads, T, d)
            for layer, x in ((self.query, query), (self.key, key), (self.value, value))
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.out(mixed.transpose(1, 2).flatten(2)), None


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Make a linear layer whose parameters use the memory of these tensors."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def leading(count: int, share: float) -> int:
    """Return how many of `count` heads or channels a share keeps; at least one."""
    return max(1, round(count * share))


# -- Frozen copies of a module, which share its tensors and nothing else.
#
# Elastic networks usually keep the width in use as an attribute of their layers. A server runs several widths
# at once, so each width gets its own copy of the module tree. All copies use the same parameters and buffers,
# so a copy costs a few kilobytes, and weights are in memory once.

M = TypeVar("M", bound=nn.Module)


def frozen_copy(module: M) -> M:
    """Copy a module tree that shares all its tensors with the original."""
    shared: dict[int, object] = {}
    for part in module.modules():
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False), *vars(part).values()):
            if isinstance(tensor, Tensor):
                shared[id(tensor)] = tensor  # deepcopy reuses these instead of copying them
    return deepcopy(module, shared)


# -- The base of all adapters: turns functions of tensors into segments, and keeps `prepare` and `finish`.

Function = Callable[..., Any]
"""A user's function or module; it takes tensors as arguments and returns one tensor or several."""


class Adapter(ElasticModel):
    """Takes the user's own `prepare` and `finish`, which work on tensors instead of tuples of tensors."""

    def __init__(
        self, spec: ModelSpec, *, prepare: Function | None = None, finish: Function | None = None
    ) -> None:
        self.spec = spec
        self._prepare = as_segment(prepare) if prepare is not None else None
        self._finish = as_segment(finish) if finish is not None else None

    def prepare(self, raw: Tensors) -> Tensors:
        """Run the user's `prepare`, if there is one."""
        return raw if self._prepare is None else self._prepare(raw)

    def finish(self, last: Tensors) -> Tensors:
        """Run the user's `finish`, if there is one."""
        return last if self._finish is None else self._finish(last)


def as_segment(function: Function) -> Segment:
    """Turn a module or function that returns one tensor or several into a segment."""

    def run(tensors: Tensors) -> Tensors:
        given = function(*tensors)
        if isinstance(given, Tensor):
            return (given,)
        return tuple(given)

    return run


def require(fits: bool, what: str, remedy: str) -> None:
    """Raise ModelError if a description does not fit an adapter."""
    if not fits:
        raise ModelError(what, remedy=remedy)


# -- Exits: a chain that can stop early, with a small head at every exit.
#
#     Exits(spec, bodies=[first, second, third], heads=[head1, head2, head3])
#
# Every segment but the last has two choices: stop at its head, or go on. The last has one. For three segments
# `plans = [["exit"], ["on", "exit"], ["on", "on", "last"]]`.


class Exits(Adapter):
    """One body and one head per segment. All heads give the outputs of the spec."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        bodies: Sequence[nn.Module],
        heads: Sequence[nn.Module],
        prepare: Function | None = None,
        finish: Function | None = None,
    ) -> None:
        super().__init__(spec, prepare=prepare, finish=finish)
        count = len(spec.segments)
        require(
            len(bodies) == len(heads) == count,
            f"model '{spec.name}' has {count} segments, not {len(bodies)} bodies and {len(heads)} heads",
            "give one body and one head per segment",
        )
        sizes = [len(choices) for choices in spec.segments]
        require(
            sizes == [2] * (count - 1) + [1],
            f"model '{spec.name}' has {sizes} choices by segment; exits need two everywhere but in the last",
            'describe choices = ["exit", "on"], and one choice such as ["last"] at the end',
        )
        require(
            set(spec.plans) <= set(exit_plans(count)),
            f"model '{spec.name}' has plans that go on after an exit, or stop without one",
            f"describe plans = {[[spec.segments[s][c] for s, c in enumerate(p)] for p in exit_plans(count)]}",
        )
        self.bodies, self.heads = nn.ModuleList(bodies), nn.ModuleList(heads)

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        """Run a body and, at an exit, its head."""
        body, head = self.bodies[index], self.heads[index]
        goes_on = choice == self.spec.segments[index][-1] and index < len(self.bodies) - 1
        return as_segment(body if goes_on else lambda *tensors: head(body(*tensors)))


def exit_plans(segments: int) -> tuple[Path, ...]:
    """List one plan per exit, the first exit first."""
    return tuple((1,) * index + (0,) for index in range(segments))


# -- Family: unrelated models for the same task, the smaller ones for when time is short.
#
#     Family(spec, {"lite0": small, "lite1": medium, "lite2": large})
#
# The model has one segment, whose choices are the members. They share no weights.


class Family(Adapter):
    """One segment whose choices are the modules given, by the names of the choices."""

    def __init__(
        self,
        spec: ModelSpec,
        members: Mapping[str, nn.Module],
        *,
        prepare: Function | None = None,
        finish: Function | None = None,
    ) -> None:
        super().__init__(spec, prepare=prepare, finish=finish)
        require(
            len(spec.segments) == 1,
            f"model '{spec.name}' has {len(spec.segments)} segments; a family has one",
            "describe one [[segment]] whose choices are the members",
        )
        require(
            set(spec.segments[0]) == set(members),
            f"model '{spec.name}' has choices {', '.join(spec.segments[0])}, but the members given are "
            f"{', '.join(members)}",
            "give one member per choice",
        )
        require(
            not spec.nested,
            f"model '{spec.name}' says nested = true, but the members of a family share no weights",
            "set nested = false",
        )
        self.members = dict(members)

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        """Return one member."""
        return as_segment(self.members[choice])

    def modules(self) -> list[nn.Module]:
        """List all members."""
        return list(self.members.values())

    def weights(self) -> dict[str, Tensor]:
        """Name each member's tensors, with the member's name in front."""
        return named_weights(self.members)


# -- Switched: a network whose layers read the width in use from an attribute.
#
#     net.apply(lambda layer: setattr(layer, "width_mult", 0.5))     # how such networks are used elsewhere
#     Switched(spec, net)                                            # the same network, served
#
# US-Nets, slimmable and once-for-all networks work this way. Each choice has a frozen copy of its own, so two
# widths can run at once.

SetWidth = Callable[[Any, str], object]
"""Sets a copy of the module to a choice, given by its name."""

Part = str | nn.Module | Function
"""One step of a segment: a submodule, by name or itself, or a function of tensors such as torch.flatten."""

Cut = Sequence[Part] | Function
"""One segment: parts to run one after the other, or a function (module, tensors…) -> tensors."""


class Switched(Adapter):
    """A module that can be set to a width, cut into the segments of the spec.

    `cut` has one entry per segment; without it the whole module is the only segment. `set_width` sets a copy
    to a choice; without it, `attribute` of every submodule becomes the choice as a number.
    """

    def __init__(
        self,
        spec: ModelSpec,
        module: nn.Module,
        *,
        cut: Sequence[Cut] | None = None,
        attribute: str = "width_mult",
        set_width: SetWidth | None = None,
        prepare: Function | None = None,
        finish: Function | None = None,
    ) -> None:
        super().__init__(spec, prepare=prepare, finish=finish)
        segments = len(spec.segments)
        require(
            cut is not None or segments == 1,
            f"model '{spec.name}' has {segments} segments, and Switched was not told where to cut",
            "give cut=[…] with one entry per segment, or describe one segment",
        )
        require(
            cut is None or len(cut) == segments,
            f"cut has {len(cut or ())} entries, but model '{spec.name}' has {segments} segments",
            "give one entry per segment",
        )
        self.module = module
        self._cut = None if cut is None else [self._named(entry) for entry in cut]
        self._set_width = set_width or _attribute_setter(attribute)

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        """Cut one segment out of a frozen copy at this choice."""
        module = self.at(choice)
        if self._cut is None:
            return as_segment(module)
        entry = self._cut[index]
        if not isinstance(entry, list):
            return as_segment(lambda *tensors: entry(module, *tensors))
        parts = [module.get_submodule(part) if isinstance(part, str) else part for part in entry]
        return as_segment(_chain(parts))

    def whole(self, plan: tuple[str, ...]) -> Segment | None:
        """Return the uncut module, for plans that take one choice everywhere."""
        uncut = self._cut is not None and len(set(plan)) == 1 and len(plan) == len(self.spec.segments)
        return as_segment(self.at(plan[0])) if uncut else None

    def at(self, choice: str) -> nn.Module:
        """Copy the module and set the copy to a choice."""
        module = frozen_copy(self.module)
        with users_code(f"setting model '{self.spec.name}' to '{choice}'"):
            self._set_width(module, choice)
        return module.eval()

    def _named(self, entry: Cut) -> list[str | Function] | Function:
        """Write submodules as names, so that they can be found in a copy."""
        if not isinstance(entry, Sequence):
            return entry
        names = {id(part): name for name, part in self.module.named_modules()}
        parts: list[str | Function] = []
        for part in entry:
            if isinstance(part, nn.Module) and (id(part) in names or part.state_dict()):
                require(
                    id(part) in names,
                    f"cut names a {type(part).__name__} that is not part of {type(self.module).__name__}",
                    "name submodules of the module given to the adapter",
                )
                parts.append(names[id(part)])
            else:
                parts.append(self._checked(part))
        return parts

    def _checked(self, part: str | Function) -> str | Function:
        if isinstance(part, str):
            try:
                self.module.get_submodule(part)
            except AttributeError:
                known = ", ".join(name for name, _ in self.module.named_children())
                raise ModelError(
                    f"cut names '{part}', which {type(self.module).__name__} does not have",
                    remedy=f"its submodules are {known}",
                ) from None
        return part


def _chain(parts: Sequence[Function]) -> Function:
    """Return a function that runs parts one after the other."""

    def run(*tensors: Any) -> Any:
        for part in parts:
            given = part(*tensors)
            tensors = given if isinstance(given, tuple) else (given,)
        return tensors

    return run


def _attribute_setter(attribute: str) -> SetWidth:
    def set_width(module: nn.Module, choice: str) -> None:
        try:
            width = float(choice)
        except ValueError:
            raise ModelError(
                f"choice '{choice}' is no number, so it cannot become {attribute}",
                remedy="give set_width=, a function (module, choice) of your own",
            ) from None
        for part in module.modules():
            setattr(part, attribute, width)

    return set_width


# -- Nested: a transformer whose feed-forward layers and attention heads can be cut to their leading part.
#
#     Nested(spec, net, cut=[["embed", "block0"], ["block1", "head"]], hidden=[("fc1", "fc2")])
#
# At choice "0.5" every pair of linear layers named in `hidden` uses half its inner size, and every
# nn.MultiheadAttention half its heads. The outputs of blocks keep their size, so all plans fit together.
# MatFormer, HAT and Gemma 3n nest their sizes this way. Slices are views: they take no memory.

TORCH_LAYER = ("linear1", "linear2")
"""The feed-forward pair of torch's own TransformerEncoderLayer."""


class Nested(Switched):
    """Slices feed-forward pairs and heads by the choice, a share such as "0.5".

    `hidden` names pairs of linear layers (first, second) that are attributes of one block; `shares` gives the
    share of each choice if names are not numbers; `heads=False` leaves attention as it is.
    """

    def __init__(
        self,
        spec: ModelSpec,
        module: nn.Module,
        *,
        cut: Sequence[Cut] | None = None,
        hidden: Sequence[tuple[str, str]] = (TORCH_LAYER,),
        heads: bool = True,
        shares: Mapping[str, float] | None = None,
        prepare: Function | None = None,
        finish: Function | None = None,
    ) -> None:
        self._hidden, self._heads = tuple(hidden), heads
        self._shares = dict(shares or {})
        super().__init__(spec, module, cut=cut, set_width=self._narrow, prepare=prepare, finish=finish)

    def _narrow(self, module: nn.Module, choice: str) -> None:
        """Replace layers of a frozen copy with slices of themselves."""
        share = self._share(choice)
        for block in list(module.modules()):
            for first, second in self._hidden:
                _narrow_pair(block, first, second, share)
            for name, child in list(block.named_children()):
                if self._heads and isinstance(child, nn.MultiheadAttention):
                    _check_attention(name, child)
                    setattr(block, name, SlicedAttention(child, leading(child.num_heads, share)))

    def _share(self, choice: str) -> float:
        try:
            share = self._shares[choice] if self._shares else float(choice)
        except (KeyError, ValueError):
            share = 0.0
        if not 0.0 < share <= 1.0:
            raise ModelError(
                f"choice '{choice}' of model '{self.spec.name}' stands for no share in (0, 1]",
                remedy="name choices by their share, or give shares={name: share}",
            )
        return share


def _narrow_pair(block: nn.Module, first: str, second: str, share: float) -> None:
    """Keep the leading outputs of the first layer and the same inputs of the second."""
    into, out = getattr(block, first, None), getattr(block, second, None)
    if isinstance(into, nn.Linear) and isinstance(out, nn.Linear):
        size = leading(into.out_features, share)
        setattr(block, first, sliced_linear(into, out=size))
        setattr(block, second, sliced_linear(out, into=size))


def _check_attention(name: str, attention: nn.MultiheadAttention) -> None:
    if not attention.batch_first or attention.in_proj_weight is None or attention.bias_k is not None:
        raise ModelError(
            f"attention '{name}' cannot be sliced",
            remedy="build it with batch_first=True, without kdim, vdim and add_bias_kv",
        )
