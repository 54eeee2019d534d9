"""Argument rules for system calls that sandboxed programs need but may not use freely.

For calls with many operations, only the needed operations are allowed. All others are denied,
including those added by later kernels.
"""

from __future__ import annotations

from typing import NamedTuple


class ArgumentTest(NamedTuple):
    """A test of one argument of a system call.

    Attributes:
        argument: index of the argument, from 0.
        values: values to compare it with.
        bits: True to match a value if any bit is shared; False to match equal values.
        found: True to deny the call if a value matches; False to deny it if none does.
        upper: True to compare the upper 32 bits; the kernel ignores them for plain numbers.
    """

    argument: int
    values: tuple[int, ...]
    bits: bool = False
    found: bool = True
    upper: bool = False


class Rule(NamedTuple):
    """A system call that is denied if all tests of its arguments hold."""

    call: str
    tests: tuple[ArgumentTest, ...]


def _is(argument: int, value: int) -> ArgumentTest:
    return ArgumentTest(argument, (value,))


def _is_none_of(argument: int, *values: int) -> ArgumentTest:
    return ArgumentTest(argument, values, found=False)


def _has(argument: int, bits: int) -> ArgumentTest:
    return ArgumentTest(argument, (bits,), bits=True)


def _lacks(argument: int, bits: int) -> ArgumentTest:
    return ArgumentTest(argument, (bits,), bits=True, found=False)


# No leases, locks and notifications, which can block the host; no owner, which gets signals.
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL = 0, 1, 2, 3, 4
_F_DUPFD_CLOEXEC, _F_GETPIPE_SZ = 1030, 1032
_O_ASYNC = 0x2000
_FCNTL = (
    _is_none_of(
        1, _F_DUPFD, _F_DUPFD_CLOEXEC, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_GETPIPE_SZ
    ),
)
_ASYNC = (_is(1, _F_SETFL), _has(2, _O_ASYNC))

# The same operations through ioctl; also no file flags, host networks or terminal input.
_TCGETS, _TCGETS2, _TIOCGWINSZ = 0x5401, 0x802C542A, 0x5413
_FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX = 0x541B, 0x5421, 0x5450, 0x5451
_IOCTL = (_is_none_of(1, _TCGETS, _TCGETS2, _TIOCGWINSZ, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX),)

# Only to the connected peer, without out-of-band data; an address would reach another socket.
_MSG_DONTWAIT, _MSG_EOR, _MSG_NOSIGNAL, _MSG_MORE = 0x40, 0x80, 0x4000, 0x8000
_PLAIN = _MSG_DONTWAIT | _MSG_EOR | _MSG_NOSIGNAL | _MSG_MORE
_FLAGS = (_has(3, ~_PLAIN & 0xFFFFFFFF),)
_ADDRESS = (_is_none_of(4, 0),)
_ADDRESS_ABOVE = (_is_none_of(4, 0)._replace(upper=True),)

# The kind of socket, but no information about its peer.
_SOL_SOCKET = 1
_SO_TYPE, _SO_ERROR, _SO_ACCEPTCONN, _SO_PROTOCOL, _SO_DOMAIN = 3, 4, 30, 38, 39
_OPTION_LEVEL = (_is_none_of(1, _SOL_SOCKET),)
_OPTION = (_is_none_of(2, _SO_TYPE, _SO_ERROR, _SO_ACCEPTCONN, _SO_PROTOCOL, _SO_DOMAIN),)

_PR_SET_PDEATHSIG = 1
_NEW_NAMESPACES = (
    0x7E020000  # CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
)

RULES = (
    Rule("fcntl", _FCNTL),
    Rule("fcntl", _ASYNC),
    Rule("ioctl", _IOCTL),
    Rule("sendto", _FLAGS),
    Rule("sendto", _ADDRESS),
    Rule("sendto", _ADDRESS_ABOVE),
    Rule("getsockopt", _OPTION_LEVEL),
    Rule("getsockopt", _OPTION),
    Rule("prctl", (_is(0, _PR_SET_PDEATHSIG),)),
    Rule("prlimit64", (_is_none_of(0, 0),)),  # limits of another process
    Rule("clone", (_has(0, _NEW_NAMESPACES),)),
)
"""Rules that apply at every level."""

# Before version 3, Landlock checks the access mode of an open file but not truncation: a file
# opened for reading, or for neither reading nor writing, can be truncated.
_O_WRONLY, _O_RDWR, _O_TRUNC = 1, 2, 0x200
_EMPTIED = {"open": 1, "openat": 2}

RULES_WITHOUT_NAMESPACES = tuple(
    Rule(call, tests)
    for call, flags in _EMPTIED.items()
    for tests in (
        (_has(flags, _O_TRUNC), _lacks(flags, _O_WRONLY | _O_RDWR)),
        (_has(flags, _O_WRONLY), _has(flags, _O_RDWR)),
    )
)
"""Rules that also apply if no namespace isolates files."""

_CLONE_THREAD = 0x00010000

RULES_WITHOUT_CAPS = (Rule("clone", (_lacks(0, _CLONE_THREAD),)),)
"""Rules that also apply if nothing caps the total resources of several processes."""
