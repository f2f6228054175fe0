"""Switched: a network whose layers read the width in use from an attribute.

    net.apply(lambda layer: setattr(layer, "width_mult", 0.5))     # how such networks are used elsewhere
    Switched(spec, net)                                            # the same network, served

US-Nets, slimmable and once-for-all networks work this way. Each choice gets its own frozen copy, so that two
widths can run at once.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from slimsched.models.adapters.adapter import Adapter, Function, as_segment, require
from slimsched.models.adapters.frozen import frozen_copy
from slimsched.models.elastic import Segment
from slimsched.models.model_error import ModelError, users_code
from slimsched.models.spec import ModelSpec

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
        return as_segment(_Chain(parts))

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


class _Chain:
    """Runs parts one after the other."""

    def __init__(self, parts: Sequence[Function]) -> None:
        self.parts = parts

    def __call__(self, *tensors: Any) -> Any:
        for part in self.parts:
            given = part(*tensors)
            tensors = given if isinstance(given, tuple) else (given,)
        return tensors


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
