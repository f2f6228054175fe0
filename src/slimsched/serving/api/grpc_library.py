"""The server of the gRPC library: for TLS, for Unix sockets, and where our own thread is not compiled."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from slimsched.serving.api.limits import Limits

LEAST_PING_MS, PING_STRIKES = 4500, 3
"""Clients may ask every five seconds whether the connection lives; who asks too soon too often must go."""

Unary = Callable[[Any, Any], Awaitable[bytes]]
Stream = Callable[[Any, Any], Awaitable[None]]


class GrpcLibrary:
    """Listens, and lets methods serve the calls that come.

    With `shares_port`, other processes may listen at the same port.
    """

    def __init__(self, limits: Limits, longest_bytes: int, *, shares_port: bool) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", longest_bytes),
                ("grpc.max_concurrent_streams", limits.calls),
                ("grpc.http2.bdp_probe", 0),  # it lets each call send megabytes before its turn to be read
                ("grpc.max_allowed_incoming_connections", limits.connections),
                ("grpc.max_connection_idle_ms", int(1e3 * limits.idle_s)),
                ("grpc.so_reuseport", int(shares_port)),
                ("grpc.http2.min_ping_interval_without_data_ms", LEAST_PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_ping_strikes", PING_STRIKES),
            ],
            maximum_concurrent_rpcs=limits.calls,
        )

    def add(self, service: str, unary: Mapping[str, Unary], streams: Mapping[str, Stream]) -> None:
        """Serve these methods, by their names."""
        handlers = {
            name: grpc.stream_unary_rpc_method_handler(method)  # on the wire the same; we read it
            for name, method in unary.items()
        }
        for name, stream in streams.items():
            handlers[name] = grpc.stream_stream_rpc_method_handler(stream)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    async def start(self, address: str, credentials: Any) -> int:
        """Start to listen at host:port, or at unix:PATH; return the port. Port 0 picks a free one."""
        if credentials is None:
            bound = self._server.add_insecure_port(address)
        else:
            bound = self._server.add_secure_port(address, credentials)
        await self._server.start()
        return int(bound)

    async def stop(self, within_s: float | None) -> None:
        """Refuse new calls and let those under way finish in this time; without one, end them at once."""
        await self._server.stop(grace=within_s)
