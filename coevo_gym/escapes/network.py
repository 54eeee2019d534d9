"""Attempts to reach the network, and sockets of the host."""

from __future__ import annotations

from coevo_gym.escapes.host import Seen, done
from coevo_gym.escapes.payload import Payload


def _contacted(name: str, what: str, code: str, listener: str) -> Payload[Seen]:
    """An attempt that shows at a listener of the host."""

    def sign(seen: Seen) -> bool:
        return seen.host.contacted(listener)

    return Payload(name, what, f"import socket\n{code.strip()}", sign)


def _made(name: str, what: str, code: str) -> Payload[Seen]:
    """An attempt that has worked when it is through."""
    return Payload(name, what, f"import socket\n{code.strip()}\nsay('DONE')", done)


PAYLOADS: tuple[Payload[Seen], ...] = (
    _contacted(
        "connect",
        "connect to a port of the host",
        "socket.create_connection(('127.0.0.1', host.tcp))",
        "tcp",
    ),
    _contacted(
        "name-lookup",
        "ask a name server, with the secret in the name",
        """
query = b"\\0\\7\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + b"\\6secret\\7example\\0\\0\\1\\0\\1"
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(query, ("127.0.0.1", host.udp))
""",
        "udp",
    ),
    _contacted(
        "unix-socket",
        "connect to a daemon's socket file",
        "socket.socket(socket.AF_UNIX).connect(host.unix)",
        "unix",
    ),
    _contacted(
        "abstract-socket",
        "connect to a socket without a file",
        "socket.socket(socket.AF_UNIX).connect(host.abstract)",
        "abstract",
    ),
    _made("listen", "wait for connections", "socket.create_server(('127.0.0.1', 0))"),
    _made(
        "raw-socket",
        "make a raw socket",
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
    ),
    _made(
        "packet-socket",
        "listen in on all packets",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)",
    ),
    _made(
        "list-interfaces",
        "ask the kernel about its networks",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    ),
    _made("virtual-machine-socket", "talk to the machine's host", "socket.socket(socket.AF_VSOCK)"),
    _made(
        "kernel-crypto-socket",
        "make a socket of the kernel's ciphers",
        "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    ),
)
