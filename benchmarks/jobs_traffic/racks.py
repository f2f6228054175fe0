"""Machines as network namespaces in racks as bridges; cards and uplinks are slowed down by tc.

The network is the simulator's `congested` one at 1/500 of its speed: cards of 25 MB/s, and 3.125 MB/s out of
a rack of four machines. Needs root, `ip` and `tc` (Debian: apt install iproute2).
"""

import contextlib
import ctypes
import os
import subprocess

from slimsched.jobs.domain import Machine, Topology, fabric_named

SCALE = 500
"""How much slower the real links are than the simulated ones; real gradients are as much smaller."""
FABRIC = fabric_named("congested")
MACHINES_PER_RACK = 4
HEADERS = 1514 / 1448
"""Bytes on the wire for each byte that TCP carries: links are that much faster, so gangs get their rate."""
PREFIX = "slimtc"
NEW_NETWORK = 0x40000000


class Racks:
    """Racks of four machines with four GPUs each."""

    def __init__(self, racks: int = 2, gpus: int = 4) -> None:
        self.topology = Topology(
            [
                Machine(name=f"n{number + 1}", rack=f"rack{number // MACHINES_PER_RACK + 1}", gpus=gpus)
                for number in range(racks * MACHINES_PER_RACK)
            ],
            name="racks of namespaces",
        )

    def up(self) -> None:
        """Make namespaces, bridges and links."""
        self.down()
        core = f"{PREFIX}core"
        _bridge(core)
        uplink_bytes_per_s = FABRIC.rack_uplink_bytes_per_s(MACHINES_PER_RACK) / SCALE
        for number in range(len(self.topology.racks)):
            bridge, inner, outer = (f"{PREFIX}{kind}{number}" for kind in ("r", "i", "o"))
            _bridge(bridge)
            _ip("link", "add", inner, "type", "veth", "peer", "name", outer)
            for end, switch in ((inner, bridge), (outer, core)):
                _ip("link", "set", end, "master", switch, "up")
                _limit(["tc"], end, uplink_bytes_per_s)
        for number, machine in enumerate(self.topology.machines):
            self._plug_in(number, machine.name)

    def down(self) -> None:
        """Remove what `up` made; does nothing if it is not there."""
        for machine in self.topology.machines:
            _ip("netns", "del", PREFIX + machine.name, check=False)
        links = [
            f"{PREFIX}{kind}{number}" for kind in ("r", "i") for number in range(len(self.topology.racks))
        ]
        for link in (*links, f"{PREFIX}core"):
            _ip("link", "del", link, check=False)

    def _plug_in(self, number: int, name: str) -> None:
        """Give a machine a namespace with a card that hangs on its rack's bridge."""
        space, port = PREFIX + name, f"{PREFIX}v{number}"
        _ip("netns", "add", space)
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", port, "master", f"{PREFIX}r{self.topology.rack_of[number]}", "up")
        inside = ["ip", "netns", "exec", space]
        for what in (["addr", "add", f"{address(name)}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            _run([*inside, "ip", *what])
        _run([*inside, "ip", "link", "set", "lo", "up"])
        rate = FABRIC.nic_bytes_per_s / SCALE
        _limit(["tc"], port, rate)
        _limit([*inside, "tc"], "eth0", rate)


def address(machine: str) -> str:
    """The address of a machine, such as n3, in its own network."""
    return f"10.77.0.{machine.removeprefix('n')}"


def enter(machine: str) -> None:
    """Put this process into a machine's namespace; threads that it starts later are there, too."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{PREFIX}{machine}") as space:
        if libc.setns(space.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {machine}: {os.strerror(ctypes.get_errno())}")


def _bridge(name: str) -> None:
    _ip("link", "add", name, "type", "bridge")
    _ip("link", "set", name, "up")


def _limit(tc: list[str], link: str, bytes_per_s: float) -> None:
    """Let a link send no faster than this."""
    rate = f"{8 * bytes_per_s * HEADERS:.0f}bit"
    _run([*tc, "qdisc", "add", "dev", link, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "100ms"])


def _ip(*what: str, check: bool = True) -> None:
    with contextlib.nullcontext() if check else contextlib.suppress(subprocess.CalledProcessError):
        _run(["ip", *what])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
