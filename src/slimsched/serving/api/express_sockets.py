"""The sockets that a compiled line listens at."""

import socket


def listen(host: str, port: int, *, shares_port: bool) -> list[socket.socket]:
    """Listen at each address that a host has; port 0 picks one that is free, the same for all."""
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shares_port:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.setblocking(False)
            one.bind((address[0], sockets[0].getsockname()[1] if len(sockets) > 1 else port, *address[2:]))
            one.listen(1024)
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets
