"""A profile as stored in a file: what one model's steps cost on one device."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from slimsched.kernel.errors import DataError
from slimsched.kernel.quantity import Amount, Bytes, Count, CountOrZero, PositiveSeconds, Seconds
from slimsched.models.spec import Step
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.served_model import ServedModel
from slimsched.serving.domain.service_noise import MEASURED_SPREAD


class ProfileRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file format of a Profile, with a description of the device it was measured on.

    `latency_s[k][c][b]`, `energy_j[k][b]`: k counts `steps`, c `concurrency`, b `batches`; `instance_bytes`
    and `load_s` count `places`. `spread` is the relative spread of repeated latencies (90th over 10th
    percentile, minus 1), averaged over the table.
    """

    name: str
    model: str
    source: str
    device: dict[str, str]
    steps: list[Step]
    places: list[tuple[CountOrZero, CountOrZero]]
    batches: tuple[Count, ...]
    concurrency: tuple[Count, ...]
    latency_s: list[list[list[PositiveSeconds]]]
    energy_j: list[list[Amount]]
    instance_bytes: list[Bytes]
    load_s: list[Seconds]
    idle_w: Amount
    element_bytes: Count
    energy_source: str = ""
    spread: Amount = 0.0
    format: Literal["slim-profile-2"] = "slim-profile-2"

    def profile(self, model: ServedModel) -> Profile:
        """Return the profile that this record describes, for one of a cluster's models."""
        self._check(model)
        keys = [model.keys[step] for step in self.steps]
        places = [(model.number, *place) for place in self.places]
        return Profile(
            name=self.name,
            source=self.source,
            batches=self.batches,
            concurrency=self.concurrency,
            latency_s=dict(zip(keys, self.latency_s, strict=True)),
            energy_j=dict(zip(keys, self.energy_j, strict=True)),
            instance_bytes=dict(zip(places, self.instance_bytes, strict=True)),
            load_s=dict(zip(places, self.load_s, strict=True)),
            idle_w=self.idle_w,
            element_bytes=self.element_bytes,
            energy_source=self.energy_source,
            spread=self.spread or MEASURED_SPREAD,
        )

    def _check(self, model: ServedModel) -> None:
        if sorted(self.steps) != sorted(model.keys):
            raise DataError(
                f"profile '{self.name}' was measured for model '{self.model}' with {len(self.steps)} steps; "
                f"model '{model.name}' has {len(model.keys)} of its own: measure them with slim profile"
            )
        steps, places = len(self.steps), len(self.places)
        lengths: Mapping[str, tuple[int, int]] = {
            "latency_s": (len(self.latency_s), steps),
            "energy_j": (len(self.energy_j), steps),
            "instance_bytes": (len(self.instance_bytes), places),
            "load_s": (len(self.load_s), places),
        }
        for name, (entries, wanted) in lengths.items():
            if entries != wanted:
                raise DataError(f"profile '{self.name}': {name} has {entries} entries, {wanted} are needed")


def record_of(profile: Profile, model: ServedModel) -> ProfileRecord:
    """Write one model's part of a profile down."""
    part = profile.part(model.number)
    steps, places = list(model.keys), [(segment, choice) for segment, choice in model.spec.places()]
    return ProfileRecord(
        name=part.name,
        model=model.name,
        source=part.source,
        device={},
        steps=steps,
        places=places,
        batches=part.batches,
        concurrency=part.concurrency,
        latency_s=[[list(row) for row in part.latency_table_s[model.keys[step]]] for step in steps],
        energy_j=[list(part.energy_table_j[model.keys[step]]) for step in steps],
        instance_bytes=[part.instance_bytes[model.number, *place] for place in places],
        load_s=[part.load_s[model.number, *place] for place in places],
        idle_w=part.idle_w,
        element_bytes=part.element_bytes,
        energy_source=part.energy_source,
        spread=part.spread,
    )
