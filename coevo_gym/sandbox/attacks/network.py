"""Attacks that try to reach the host's network or sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from coevo_gym.sandbox import is_readable
from coevo_gym.sandbox.attacks.host import HostObservations, reports_success
from coevo_gym.sandbox.attacks.payload import parse_payloads

_ATTACKS = r"""
## connect: connect to a port on the host
socket.create_connection(('127.0.0.1', host.tcp))

## name-lookup: query a name server for a name that contains a secret
query = b"\0\7\1\0\0\1\0\0\0\0\0\0" + b"\6secret\7example\0\0\1\0\1"
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(query, ("127.0.0.1", host.udp))

## unix-socket: connect to a daemon's socket file
socket.socket(socket.AF_UNIX).connect(host.unix)

## abstract-socket: connect to a socket without a file
socket.socket(socket.AF_UNIX).connect(host.abstract)

## listen: wait for connections
socket.create_server(('127.0.0.1', 0))

## raw-socket: create a raw socket
socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)

## packet-socket: capture all network packets
socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)

## list-interfaces: query the kernel's network interfaces
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)

## virtual-machine-socket: create a socket to the virtual machine's host
socket.socket(socket.AF_VSOCK)

## kernel-crypto-socket: create a socket for the kernel's ciphers
socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)

## send-elsewhere: send a datagram to a host socket through a socket that was passed in
letters = socket.socket(fileno=host.letters)
any_way(lambda: letters.sendto(b"x", host.mailbox),
        lambda: letters.sendmsg([b"x"], [], 0, host.mailbox))

## connect-what-is-given: connect a socket that was passed in to a host socket
letters = socket.socket(fileno=host.letters)
letters.connect(host.mailbox)
letters.send(b"x")

## take-a-name: bind a socket that was passed in to a name on the host
socket.socket(fileno=host.stream).bind(f'\0coevo-{os.getpid()}')

## host-interfaces: list the host's network interfaces through a socket that was passed in
request = bytes(16) + (1).to_bytes(4, sys.byteorder) + bytes(20)
any_way(*(lambda how=how: checked(libc.ioctl(host.stream, how, request))
          for how in (0x8910, 0x8912)))

## who-is-there: find out which process created a socket that was passed in
given = socket.socket(fileno=host.stream)
any_way(*(lambda how=how: given.getsockopt(socket.SOL_SOCKET, how, 12) for how in (17, 77)))

## set-what-is-given: set a filter or buffer size on a socket that was passed in
given = socket.socket(fileno=host.stream)
held = ctypes.create_string_buffer(bytes([6, *bytes(7)]), 8)
order = (1).to_bytes(8, sys.byteorder) + ctypes.addressof(held).to_bytes(8, sys.byteorder)
any_way(lambda: given.setsockopt(socket.SOL_SOCKET, 26, order),
        lambda: given.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20))

## out-of-band: send an out-of-band byte, which normal reads do not return
socket.socket(fileno=host.stream).send(b'x', socket.MSG_OOB)

## send-a-descriptor: send a file descriptor to the host
socket.send_fds(socket.socket(fileno=host.stream), [b"x"], [os.open("/dev/null", os.O_RDONLY)])
"""


def _contact_sign(listener: str) -> Callable[[HostObservations], bool]:
    """Return a function that checks whether one of the host's listeners received anything."""
    return lambda seen: seen.host.was_contacted(listener)


def _has_received_urgent_byte(seen: HostObservations) -> bool:
    """Return True if the host received an out-of-band byte."""
    try:
        return bool(seen.host.handed["stream"][0].recv(1, socket.MSG_OOB | socket.MSG_DONTWAIT))
    except OSError:
        return False


def _has_received_descriptor(seen: HostObservations) -> bool:
    """Return True if the host received a file descriptor."""
    ours, _ = seen.host.handed["stream"]
    if not is_readable(ours):
        return False
    _, descriptors, _, _ = socket.recv_fds(ours, 100, 10)
    for descriptor in descriptors:
        os.close(descriptor)
    return bool(descriptors)


PAYLOADS = parse_payloads(
    _ATTACKS,
    reports_success,
    before="import socket\n",
    after="\nsay('DONE')",
    signs={
        "connect": _contact_sign("tcp"),
        "name-lookup": _contact_sign("udp"),
        "unix-socket": _contact_sign("unix"),
        "abstract-socket": _contact_sign("abstract"),
        "send-elsewhere": _contact_sign("mailbox"),
        "connect-what-is-given": _contact_sign("mailbox"),
        "out-of-band": _has_received_urgent_byte,
        "send-a-descriptor": _has_received_descriptor,
    },
)
