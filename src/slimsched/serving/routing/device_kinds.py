"""The kinds of devices in a cluster: servers with the same profile are alike."""

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.domain.cluster import Cluster


def kinds_of(cluster: Cluster) -> tuple[NDArray[np.int64], list[int]]:
    """Return the kind of each server, by its profile, and the first server of each kind."""
    kinds = {id(profile): None for profile in cluster.profiles}
    number = {profile: kind for kind, profile in enumerate(kinds)}
    kind_of = np.array([number[id(profile)] for profile in cluster.profiles], dtype=np.int64)
    return kind_of, [int(np.flatnonzero(kind_of == kind)[0]) for kind in range(len(kinds))]
