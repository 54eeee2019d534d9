"""Attacks that change metadata of the host's files: modes, owners, dates, attributes, flags.

Each attack tries all system calls for its purpose, by the file's path and by its descriptor.
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
        "a file that may be read",
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
        "/dev/null (to what it is)",
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
        "what is open as standard output (to what it is)",
        f"""
path, file = b"/proc/self/fd/1", 1
{_AS_IT_IS}
""",
        ("no-attribute",),
        done,
    ),
)

PAYLOADS = tuple(
    replace(aspect, name=f"{aspect.name}-of-a-{name}", what=f"{aspect.what} of {what}")
    for name, what, prelude, left_out, sign in _TARGETS
    for aspect in payloads(_ASPECTS, sign, before=f"{prelude.strip()}\n")
    if aspect.name not in left_out
)
