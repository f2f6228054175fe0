"""Nested: a transformer whose feed-forward layers and attention heads can be cut to their leading part.

    Nested(spec, net, cut=[["embed", "block0"], ["block1", "head"]], hidden=[("fc1", "fc2")])

At choice "0.5" every pair of linear layers named in `hidden` uses half its inner size, and every
nn.MultiheadAttention half its heads. The outputs of blocks keep their size, so all plans fit together.
MatFormer, HAT and Gemma 3n nest their sizes this way. Slices are views: they take no memory.
"""

from collections.abc import Mapping, Sequence

from torch import nn

from slimsched.models.adapters.adapter import Function
from slimsched.models.adapters.sliced import SlicedAttention, leading, sliced_linear
from slimsched.models.adapters.switched import Cut, Switched
from slimsched.models.model_error import ModelError
from slimsched.models.spec import ModelSpec

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
