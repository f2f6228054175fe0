"""Models that come and go while requests are served: gateway and servers are told in the same words."""

from msgspec import Struct

from slimsched.kernel.quantity import CountOrZero, PositiveAmount


class ModelEntry(Struct, frozen=True, kw_only=True):
    """One model of a running cluster.

    `number` is its place in the cluster's list, which no other model gets while the cluster runs. `source` is
    its folder, or the name of the shipped one; from it a replay can read the model again.
    """

    number: CountOrZero
    source: str
    weight: PositiveAmount = 1.0


class ModelsChanged(Struct, frozen=True, kw_only=True, tag=True):
    """Models were added, which are loaded and warm everywhere; others take no new requests any more.

    Requests to retired models that are under way are still answered by them.
    """

    added: tuple[ModelEntry, ...] = ()
    retired: tuple[CountOrZero, ...] = ()
