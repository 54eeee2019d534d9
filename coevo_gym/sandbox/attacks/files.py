"""Attacks that read or change the host's files."""

from __future__ import annotations

from coevo_gym.sandbox import Level
from coevo_gym.sandbox.attacks.host import HostObservations, done, stolen
from coevo_gym.sandbox.attacks.payload import payloads

_ATTACKS = """
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
any_way(lambda: os.open(host.given, os.O_RDONLY | os.O_TRUNC),
        lambda: call("openat2", -100, host.given.encode(), struct.pack("3Q", os.O_TRUNC, 0, 0), 24))

## empty-unseen: truncate a file by opening it for neither reading nor writing
os.open(host.secret, 3 | os.O_TRUNC)

## write-library: write into the interpreter's own folder
os.open(host.library, os.O_TMPFILE | os.O_WRONLY); say('DONE')
"""


def _lost(seen: HostObservations) -> bool:
    """Return True if the file with the secret is gone or has changed."""
    return not seen.host.secret.is_file() or seen.host.secret.read_text() != seen.host.token


PAYLOADS = payloads(
    _ATTACKS,
    stolen,
    signs={
        **dict.fromkeys(("block-device", "look-up-file", "write-library"), done),
        **dict.fromkeys(("overwrite-file", "delete-file", "rename-file", "empty-unseen"), _lost),
        "read-accounts": lambda seen: "root:" in seen.said,
        "write-file": lambda seen: (seen.host.folder / "written").exists(),
        "empty-by-reading": lambda seen: seen.host.changed(seen.host.given),
    },
    claimed={"look-up-file": lambda level: level is not Level.LANDLOCK},
)
