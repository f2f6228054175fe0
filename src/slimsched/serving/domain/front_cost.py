"""What lies between clients and the gateway: fronts that read calls, pass them on and write answers."""

from msgspec import Struct

from slimsched.kernel.quantity import Count, Seconds
from slimsched.serving.domain.bundling import LONGEST_S


class Pauses(Struct, frozen=True, kw_only=True):
    """How long the gateway stops, in order and again from the start, each time after a number of requests.

    A request counts in its arrival and once more in the report of its batch.
    """

    every: Count = 1
    pause_s: tuple[Seconds, ...] = ()


class FrontCost(Struct, frozen=True, kw_only=True):
    """How long HTTP takes, and how fronts pass calls on.

    A call that a client sends at t has been read at t + inward(t). Its front passes it on once the gateway
    has taken what came before; the message takes `message_s`. Its client has the answer `outward` after the
    gateway gave it.
    """

    fronts: Count = 1
    inward_s: tuple[Seconds, ...] = (0.0,)
    outward_s: tuple[Seconds, ...] = (0.0,)
    message_s: Seconds = 0.0  # between a front and the gateway
    longest_s: Seconds = LONGEST_S  # how much later than the first of its bundle a call may come
    gathers: bool = False  # let calls gather while every server is busy, as those with known heads do
    pauses: Pauses = Pauses()  # of the gateway


class MessageCost(Struct, frozen=True, kw_only=True):
    """How long messages between gateway and servers really take; routers go on to believe the links."""

    to_servers_s: tuple[Seconds, ...] = (0.0,)
    to_gateway_s: tuple[Seconds, ...] = (0.0,)
