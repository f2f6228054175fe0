"""The profile of a joined model, from the profiles of its members on the same device."""

from collections.abc import Sequence
from pathlib import Path

from slimsched.kernel.errors import DataError
from slimsched.models.joined_folder import read_joined
from slimsched.serving.domain.key import key_of
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.served_model import ServedModel


def joined_profile(model: ServedModel, parts: Sequence[Profile]) -> Profile:
    """Give each key of a joined model what the member's key costs; the parts come in the order of members."""
    first, joined = parts[0], read_joined(Path(model.folder))
    for part in parts[1:]:
        _check_same_device(model, first, part)
    origin = {key: joined.member_step(step) for step, key in model.keys.items()}
    places = {(model.number, *at): (member, (0, at[0], own)) for at, (member, own) in joined.home.items()}
    return Profile(
        name=first.name,
        source=first.source,
        batches=first.batches,
        concurrency=first.concurrency,
        latency_s={
            key: parts[member].latency_table_s[key_of(0, *step)] for key, (member, step) in origin.items()
        },
        energy_j={
            key: parts[member].energy_table_j[key_of(0, *step)] for key, (member, step) in origin.items()
        },
        instance_bytes={at: parts[member].instance_bytes[own] for at, (member, own) in places.items()},
        load_s={at: parts[member].load_s[own] for at, (member, own) in places.items()},
        idle_w=first.idle_w,
        element_bytes=max(part.element_bytes for part in parts),
        energy_source=first.energy_source,
        spread=max(part.spread for part in parts),
    )


def _check_same_device(model: ServedModel, one: Profile, other: Profile) -> None:
    """Refuse profiles that cannot be compared: of two machines, or with other batch sizes."""
    where = f"profile '{one.name}' of model '{model.name}'"
    again = f"measure the joined model on one machine: slim model profile {model.folder} --name {one.name}"
    if one.source != other.source:
        raise DataError(
            f"{where}: its members were measured on two machines ({one.source}; {other.source}), so their "
            f"times cannot be compared; {again}"
        )
    if (one.batches, one.concurrency) != (other.batches, other.concurrency):
        raise DataError(f"{where}: its members were measured at other batch sizes; {again}")
