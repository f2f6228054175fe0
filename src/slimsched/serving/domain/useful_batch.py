"""The batch limit that a device's profile suggests: larger batches would give hardly more throughput."""

from collections.abc import Sequence

from slimsched.serving.domain.key import onward
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.served_model import ServedModel

ENOUGH = 0.97
"""A smaller batch is good enough if it gives this share of the best throughput."""

DEADLINE_SHARE = 1 / 3
"""A batch takes at most this share of the deadline: a request may wait for one batch and run in the next."""


def useful_batch(profile: Profile, models: Sequence[ServedModel], longest_s: float) -> int:
    """Return the smallest measured size that gives nearly the best throughput at every model's widest plan.

    Sizes that take longer than `longest_s` do not count; 0 means no limit.
    """
    return max(_of_model(profile, model, longest_s) for model in models)


def _of_model(profile: Profile, model: ServedModel, longest_s: float) -> int:
    legs = model.legs(model.spec.widest)
    key = onward(legs[0], tuple(leg.choice for leg in legs[1:]))
    took_s = {size: profile.latency_s(key, size) for size in profile.part(model.number).batches}
    sizes = [size for size in took_s if not 0.0 < longest_s < took_s[size]] or [min(took_s)]
    best_per_s = max(size / took_s[size] for size in sizes)
    return min(size for size in sizes if size / took_s[size] >= ENOUGH * best_per_s)
