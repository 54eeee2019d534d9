"""What sandboxed programs may not ask of system calls that they need otherwise.

Of the calls that do many things, only what is needed is left: whatever else they do, now or in a
later kernel, is refused.
"""

from __future__ import annotations

from typing import NamedTuple


class Test(NamedTuple):
    """What an argument has to be for a call to be refused.

    Attributes:
        argument: which one, from 0.
        values: what it is compared with.
        bits: whether it matches a value if they share a bit; else, if they are equal.
        found: whether the call is refused if a value matches, or if none does.
        upper: whether the upper 32 bits are compared; the kernel does not look at those of numbers.
    """

    argument: int
    values: tuple[int, ...]
    bits: bool = False
    found: bool = True
    upper: bool = False


class Rule(NamedTuple):
    """A call that is refused if all tests of its arguments hold."""

    call: str
    tests: tuple[Test, ...]


def _is(argument: int, value: int) -> Test:
    return Test(argument, (value,))


def _is_none_of(argument: int, *values: int) -> Test:
    return Test(argument, values, found=False)


def _has(argument: int, bits: int) -> Test:
    return Test(argument, (bits,), bits=True)


def _lacks(argument: int, bits: int) -> Test:
    return Test(argument, (bits,), bits=True, found=False)


# No leases, locks and notices, which hold up the host; no owner, whom the kernel sends signals.
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL = 0, 1, 2, 3, 4
_F_DUPFD_CLOEXEC, _F_GETPIPE_SZ = 1030, 1032
_O_ASYNC = 0x2000
_FCNTL = (
    _is_none_of(
        1, _F_DUPFD, _F_DUPFD_CLOEXEC, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_GETPIPE_SZ
    ),
)
_ASYNC = (_is(1, _F_SETFL), _has(2, _O_ASYNC))

# Nor by this door; no flags of files, no host's networks, no input for terminals.
_TCGETS, _TCGETS2, _TIOCGWINSZ = 0x5401, 0x802C542A, 0x5413
_FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX = 0x541B, 0x5421, 0x5450, 0x5451
_IOCTL = (_is_none_of(1, _TCGETS, _TCGETS2, _TIOCGWINSZ, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX),)

# To whom it is connected, and nothing out of band; an address would lead elsewhere.
_MSG_DONTWAIT, _MSG_EOR, _MSG_NOSIGNAL, _MSG_MORE = 0x40, 0x80, 0x4000, 0x8000
_PLAIN = _MSG_DONTWAIT | _MSG_EOR | _MSG_NOSIGNAL | _MSG_MORE
_FLAGS = (_has(3, ~_PLAIN & 0xFFFFFFFF),)
_ADDRESS = (_is_none_of(4, 0),)
_ADDRESS_ABOVE = (_is_none_of(4, 0)._replace(upper=True),)

# What kind of socket it is, and not who is at the other end.
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
    Rule("prlimit64", (_is_none_of(0, 0),)),  # of another process
    Rule("clone", (_has(0, _NEW_NAMESPACES),)),
)
"""They hold at every level."""

# Before its third version, Landlock looks at how a file is opened, not at what that does to it:
# one that is opened for reading, or for neither reading nor writing, can be emptied.
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
"""They hold where no namespace keeps files apart, too."""

_CLONE_THREAD = 0x00010000

RULES_WITHOUT_CAPS = (Rule("clone", (_lacks(0, _CLONE_THREAD),)),)
"""They hold where nothing caps what many processes use together, too."""
