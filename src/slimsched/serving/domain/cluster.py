"""The cluster as everyone knows it beforehand: servers, their profiles, the links between them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slimsched.models.accuracy import AccuracyTable
from slimsched.models.slimresnet.shape import NetworkShape
from slimsched.serving.domain.key import KEYS, Key
from slimsched.serving.domain.link import Link
from slimsched.serving.domain.profile import Profile

GATEWAY = -1
"""Where a request's image lies before its first segment."""


class Cluster:
    """Static facts a router may use; servers are numbered in order."""

    def __init__(
        self,
        *,
        names: Sequence[str],
        profiles: Sequence[Profile],
        network: NetworkShape,
        accuracy: AccuracyTable,
        links: Sequence[Link],
        gateway_link: Link,
        batch_limit: int,
    ) -> None:
        self.names = tuple(names)
        self.profiles = tuple(profiles)
        self.network = network
        self.accuracy = accuracy
        self.links = tuple(links)
        self.gateway_link = gateway_link
        self.batch_limit = batch_limit
        self._moves: dict[tuple[int, float | None, int], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        kinds = {id(profile): profile for profile in profiles}
        cheapest = {k: {key: p.work_s(key, batch_limit) for key in KEYS.values()} for k, p in kinds.items()}
        self.work_s: dict[Key, NDArray[np.float64]] = {
            key: np.array([cheapest[id(p)][key] for p in profiles]) for key in KEYS.values()
        }
        """Least device time of one image, by key, over the servers."""
        self.latency_s: dict[Key, NDArray[np.float64]] = {
            key: np.array([p.latency_s(key, 1) for p in profiles]) for key in KEYS.values()
        }
        """Time of a batch of one on an idle device, by key, over the servers."""

    def __len__(self) -> int:
        return len(self.names)

    def link_of(self, place: int) -> Link:
        """The link of a server, or of the gateway, to the network that joins them."""
        return self.gateway_link if place == GATEWAY else self.links[place]

    def input_bytes(self, segment: int, previous: float | None, source: int) -> int:
        """Bytes of one image's input to a segment: the image, or the activation at the previous width."""
        if previous is None:
            return self.network.image_bytes
        return self.network.output_elements(segment - 1, previous) * self.profiles[source].element_bytes

    def move_s(self, segment: int, previous: float | None, source: int, count: int) -> NDArray[np.float64]:
        """Time the inputs of `count` images take from where they lie to each server, on idle links."""
        found = self._moves.get((segment, previous, source))
        if found is None:
            size, away = self.input_bytes(segment, previous, source), self.link_of(source)
            fixed_s = np.array([away.latency_s + link.latency_s for link in self.links])
            image_s = np.array(
                [size / min(away.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s) for link in self.links]
            )
            if source != GATEWAY:
                fixed_s[source] = image_s[source] = 0.0
            found = self._moves[segment, previous, source] = (fixed_s, image_s)
        return found[0] + count * found[1]
