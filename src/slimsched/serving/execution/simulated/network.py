"""The simulated network between gateway and servers: transfers take time and queue at both ends."""

from slimsched.serving.domain.cluster import GATEWAY, Cluster


class SimulatedNetwork:
    """A star: each place has one link, equally fast both ways, that serves transfers one after another."""

    def __init__(self, cluster: Cluster) -> None:
        places = [GATEWAY, *range(len(cluster))]
        self._links = {place: cluster.link_of(place) for place in places}
        self._slowdown = dict.fromkeys(places, 1.0)
        self._out_free_s = dict.fromkeys(places, 0.0)
        self._in_free_s = dict.fromkeys(places, 0.0)

    def send(self, source: int, target: int, size_bytes: float, now_s: float) -> float:
        """Queue a transfer at the sender's link, then at the receiver's; return when the last byte arrives.

        The receiver takes bytes in while they are sent, so on idle links the slower one sets the pace.
        """
        if source == target:
            return now_s
        out, into = self._links[source], self._links[target]
        start_s = max(now_s, self._out_free_s[source])
        sent_s = start_s + size_bytes * self._slowdown[source] / out.bandwidth_bytes_per_s
        into_s = size_bytes * self._slowdown[target] / into.bandwidth_bytes_per_s
        taken_s = max(sent_s, max(start_s, self._in_free_s[target]) + into_s)
        self._out_free_s[source], self._in_free_s[target] = sent_s, taken_s
        return taken_s + self._message_s(source, target)

    def slow(self, place: int, factor: float) -> None:
        """From now on, let transfers over a link take `factor` times as long as its bandwidth says."""
        self._slowdown[place] = factor

    def notify(self, source: int, target: int, now_s: float) -> float:
        """Return when a message arrives that is too small to queue."""
        return now_s + self._message_s(source, target)

    def _message_s(self, source: int, target: int) -> float:
        return self._links[source].latency_s + self._links[target].latency_s
