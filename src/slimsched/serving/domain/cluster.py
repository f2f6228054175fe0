"""The cluster as it is known before a run: servers, profiles, links and models."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.domain.key import Key
from slimsched.serving.domain.link import Link
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.served_model import ServedModel

Values = NDArray[np.float64]

GATEWAY = -1
"""The gateway's place: it holds a request's input before the first segment."""


class Cluster:
    """Static facts that a router may use; servers and models are numbered in order.

    A model that was taken away keeps its number, so that requests under way can still be answered: it is one
    of `models`, but none of the `active` ones.
    """

    def __init__(
        self,
        *,
        names: Sequence[str],
        profiles: Sequence[Profile],
        models: Sequence[ServedModel],
        links: Sequence[Link],
        gateway_link: Link,
        batch_limit: int,
        retired: frozenset[int] = frozenset(),
    ) -> None:
        self.names = tuple(names)
        self.profiles = tuple(profiles)
        self.models = tuple(model.numbered(number) for number, model in enumerate(models))
        self.retired = retired
        self.active = tuple(model for model in self.models if model.number not in retired)
        """The models that take new requests."""
        self.links = tuple(links)
        self.gateway_link = gateway_link
        self.batch_limit = batch_limit
        self._moves: dict[tuple[int, int, int, int], tuple[Values, Values]] = {}
        self._work_s: dict[tuple[Key, int], float] = {}
        keys = [key for model in self.models for key in model.keys.values()]
        kinds = {id(profile): profile for profile in profiles}
        cheapest = {k: {key: p.work_s(key, batch_limit) for key in keys} for k, p in kinds.items()}
        self.work_s: dict[Key, Values] = {
            key: np.array([cheapest[id(p)][key] for p in profiles]) for key in keys
        }
        """Least device time per example: by key, one value per server."""
        self.latency_s: dict[Key, Values] = {
            key: np.array([p.latency_s(key, 1) for p in profiles]) for key in keys
        }
        """Time of a batch of one on an idle device: by key, one value per server."""

    def __len__(self) -> int:
        return len(self.names)

    def part(self, pick: slice) -> "Cluster":
        """Return the same cluster with only some of its servers."""
        return Cluster(
            names=self.names[pick],
            profiles=self.profiles[pick],
            models=self.models,
            links=self.links[pick],
            gateway_link=self.gateway_link,
            batch_limit=self.batch_limit,
            retired=self.retired,
        )

    def with_model(self, model: ServedModel, profiles: Sequence[Profile]) -> "Cluster":
        """The same cluster with one more model, last in the list; `profiles` has its own by server."""
        joined: dict[int, Profile] = {}
        for whole, part in zip(self.profiles, profiles, strict=True):
            if id(whole) not in joined:  # servers with equal profiles must share them
                joined[id(whole)] = Profile.joined([*whole.parts, part])
        return Cluster(
            names=self.names,
            profiles=[joined[id(whole)] for whole in self.profiles],
            models=[*self.models, model],
            links=self.links,
            gateway_link=self.gateway_link,
            batch_limit=self.batch_limit,
            retired=self.retired,
        )

    def without(self, numbers: Collection[int]) -> "Cluster":
        """The same cluster where these models take no new requests."""
        return Cluster(
            names=self.names,
            profiles=self.profiles,
            models=self.models,
            links=self.links,
            gateway_link=self.gateway_link,
            batch_limit=self.batch_limit,
            retired=self.retired | frozenset(numbers),
        )

    def link_of(self, place: int) -> Link:
        """Return the link that connects a server, or the gateway, to the network."""
        return self.gateway_link if place == GATEWAY else self.links[place]

    def input_bytes(self, key: Key, source: int) -> int:
        """Return the bytes per example of the input to a key's first segment, as stored at `source`."""
        element_bytes = 1 if source == GATEWAY else self.profiles[source].element_bytes
        return self.models[key.model].input_bytes(key.segment, key.previous, element_bytes)

    def key_s(self, key: Key, server: int) -> float:
        """Return the least device time per example of all segments of a key, on one server."""
        known = self._work_s.get((key, server))
        if known is None:
            known = self._work_s[key, server] = sum([float(self.work_s[leg][server]) for leg in key.legs])
        return known

    def plan_s(self, model: ServedModel, plan: tuple[int, ...]) -> Values:
        """Return the least device time per example of a whole plan, one value per server."""
        total: Values = np.sum([self.work_s[key] for key in model.legs(plan)], axis=0)
        return total

    def move_s(self, model: int, segment: int, previous: int, source: int, count: int) -> Values:
        """Return the time to move the inputs of `count` examples to each server, on idle links."""
        known = self._moves.get((model, segment, previous, source))
        if known is None:
            size = self.input_bytes(Key(segment, 0, previous, (), model), source)
            away = self.link_of(source)
            fixed_s = np.array([away.latency_s + link.latency_s for link in self.links])
            each_s = np.array(
                [size / min(away.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s) for link in self.links]
            )
            if source != GATEWAY:
                fixed_s[source] = each_s[source] = 0.0
            known = self._moves[model, segment, previous, source] = (fixed_s, each_s)
        return known[0] + count * known[1]
