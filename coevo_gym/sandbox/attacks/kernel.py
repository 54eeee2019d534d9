"""Attacks that escalate privileges, create namespaces or use vulnerable kernel interfaces."""

from __future__ import annotations

import os

from coevo_gym.sandbox import Level
from coevo_gym.sandbox.attacks.host import reports_success
from coevo_gym.sandbox.attacks.payload import parse_payloads

_ATTACKS = """
## become-a-user: become another user
os.setuid(54321)

## capabilities: hold any root capability
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
checked(libc.capget(header, data))
if not any(data): raise PermissionError("none")

## set-user-id: gain rights from a set-user-ID program
if libc.prctl(39, 0, 0, 0, 0): raise PermissionError('no new rights')

## raise-priority: raise its own priority
os.nice(-5)

## raise-limits: raise a hard limit
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard + 1))

## set-host-name: set the host name (to its current value)
__import__('socket').sethostname(os.uname().nodename)

## clock: set the clock (without a new time)
call('settimeofday', 0, 0)

## user-namespace: create a user namespace
call('unshare', 0x10000000)

## namespace-by-clone: start a process in a user namespace
child = call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
if not child: os._exit(0)
os.waitpid(child, 0)

## namespace-by-clone3: start a process in a user namespace (clone3)
import struct
order = ctypes.create_string_buffer(struct.pack("8Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0))
child = call("clone3", order, 64)
if not child: os._exit(0)
os.waitpid(child, 0)

## mount: mount a file system
call("unshare", 0x20000)
checked(libc.mount(b"none", b"/", None, 0x44000, None))
checked(libc.mount(b"none", host.scratch.encode(), b"tmpfs", 0, None))

## new-mount-calls: open a file system to mount
call('fsopen', b'tmpfs', 0)

## change-root: change the root folder
os.chroot(host.scratch)

## load-module: load a kernel module (from an invalid descriptor)
try: call("finit_module", -1, b"", 0)
except OSError as error:
    if error.errno != errno.EBADF: raise

## bpf: create a BPF map
import struct
call("bpf", 0, ctypes.create_string_buffer(struct.pack("4I", 2, 4, 4, 1), 72), 72)

## perf-events: open a performance counter
import struct
event = struct.pack("IIQQQQQ", 1, 112, 0, 0, 0, 0, 1 << 5 | 1 << 6)
call("perf_event_open", ctypes.create_string_buffer(event, 112), 0, -1, -1, 0)

## add-key: put a key into the kernel's keyring
call('add_key', b'user', b'coevo', b'x', 1, -2)

## read-keyrings: find the session's keyring
call('keyctl', 0, -3, 1)

## io-uring: create an io_uring
call('io_uring_setup', 8, ctypes.create_string_buffer(120))

## userfaultfd: handle its own page faults
call('userfaultfd', 1)

## kernel-log: read the kernel's log
call('syslog', 3, ctypes.create_string_buffer(64), 64)

## kernel-log-file: open /dev/kmsg
os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK)

## kernel-settings: open a kernel setting for writing
os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)

## sysrq: open /proc/sysrq-trigger for writing
os.open('/proc/sysrq-trigger', os.O_WRONLY)

## control-groups: open a control group for writing, to leave its own group
from glob import glob
os.open(glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True)[0], os.O_WRONLY)

## system-v-memory: create a System V memory segment
call('shmctl', call('shmget', 0, 4096, 0o600), 0, 0)

## type-into-a-terminal: inject input into a terminal (TIOCSTI)
terminal = os.open(host.terminal, os.O_RDWR)
checked(libc.ioctl(terminal, 0x5412, b"x"))

## read-host-name: read the host name
say('host name:', os.uname().nodename)

## core-dump: write its memory to a core file
import resource
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard if 0 <= hard < 1 << 20 else 1 << 20, hard))
os.abort()
"""

PAYLOADS = parse_payloads(
    _ATTACKS,
    reports_success,
    after="\nsay('DONE')",
    signs={
        "read-host-name": lambda seen: f"host name: {os.uname().nodename}\n" in seen.said,
        "core-dump": lambda seen: any(seen.host.folder.glob("core*")),
    },
    claimed={"read-host-name": lambda level: level is not Level.LANDLOCK},
)
