"""A profile as it is written down: lists in the order of KEYS and of (segment, width)."""

from typing import Literal

from msgspec import Struct

from slimsched.kernel.errors import DataError
from slimsched.models.width import SEGMENTS, WIDTHS
from slimsched.serving.domain.key import KEYS
from slimsched.serving.domain.profile import Profile

PLACES = tuple((segment, width) for segment in range(SEGMENTS) for width in WIDTHS)


class ProfileRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file form of a Profile, with a description of the device it was measured on.

    `latency_s[k][c][b]`, `energy_j[k][b]`: k counts KEYS, c `concurrency`, b `batches`. `spread` is the
    relative spread of repeated latencies (90th over 10th percentile, minus 1), averaged over the table.
    """

    name: str
    source: str
    device: dict[str, str]
    batches: tuple[int, ...]
    concurrency: tuple[int, ...]
    latency_s: list[list[list[float]]]
    energy_j: list[list[float]]
    instance_bytes: list[int]
    load_s: list[float]
    idle_w: float
    element_bytes: int
    energy_source: str = ""
    spread: float = 0.0
    format: Literal["slim-profile-1"] = "slim-profile-1"

    def profile(self) -> Profile:
        """The profile this record describes."""
        for name, values, wanted in (
            ("latency_s", len(self.latency_s), len(KEYS)),
            ("energy_j", len(self.energy_j), len(KEYS)),
            ("instance_bytes", len(self.instance_bytes), len(PLACES)),
            ("load_s", len(self.load_s), len(PLACES)),
        ):
            if values != wanted:
                raise DataError(f"profile '{self.name}': {name} has {values} entries, {wanted} are needed")
        keys = KEYS.values()
        return Profile(
            name=self.name,
            source=self.source,
            batches=self.batches,
            concurrency=self.concurrency,
            latency_s=dict(zip(keys, self.latency_s, strict=True)),
            energy_j=dict(zip(keys, self.energy_j, strict=True)),
            instance_bytes=dict(zip(PLACES, self.instance_bytes, strict=True)),
            load_s=dict(zip(PLACES, self.load_s, strict=True)),
            idle_w=self.idle_w,
            element_bytes=self.element_bytes,
        )


def record_of(profile: Profile) -> ProfileRecord:
    """Write a profile down again."""
    keys = KEYS.values()
    return ProfileRecord(
        name=profile.name,
        source=profile.source,
        device={},
        batches=profile.batches,
        concurrency=profile.concurrency,
        latency_s=[[list(row) for row in profile.latency_table_s[key]] for key in keys],
        energy_j=[list(profile.energy_table_j[key]) for key in keys],
        instance_bytes=[profile.instance_bytes[place] for place in PLACES],
        load_s=[profile.load_s[place] for place in PLACES],
        idle_w=profile.idle_w,
        element_bytes=profile.element_bytes,
    )
