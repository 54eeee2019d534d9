"""Attacks on the host's processes, and on resources passed to a sandboxed process."""

from __future__ import annotations

import os
import resource

from coevo_gym.sandbox.attacks.host import done, stolen
from coevo_gym.sandbox.attacks.payload import payloads

_ATTACKS = """
## environment: read its own environment
say(os.environ.get(host.variable))

## environment-of-a-process: read the victim's environment
say(read(f'/proc/{host.victim}/environ'))

## list-processes: find the victim, and read its command line
if str(host.victim) not in os.listdir("/proc"): raise ProcessLookupError("it is not listed")
say(read(f"/proc/{host.victim}/cmdline"))

## inherited-descriptor: read descriptors that the host left open
for number in range(3, 256):
    try: say(os.pread(number, 100, 0).decode())
    except (OSError, UnicodeDecodeError): pass

## descriptor-of-a-process: open a file that the victim has open
say(read(f'/proc/{host.victim}/fd/{host.descriptor}'))

## take-a-descriptor: copy a descriptor from the victim (pidfd_getfd)
victim = call("pidfd_open", host.victim, 0)
say(os.pread(call("pidfd_getfd", victim, host.descriptor, 0), 100, 0).decode())

## memory-file: read the victim's memory through /proc/PID/mem
with open(f"/proc/{host.victim}/mem", "rb", 0) as file:
    file.seek(host.address)
    say(file.read(host.length).decode())

## memory-call: read the victim's memory (process_vm_readv)
class Part(ctypes.Structure): _fields_ = ("base", ctypes.c_void_p), ("length", ctypes.c_size_t)
text = ctypes.create_string_buffer(host.length)
here = ctypes.byref(Part(ctypes.addressof(text), host.length))
there = ctypes.byref(Part(host.address, host.length))
call("process_vm_readv", host.victim, here, 1, there, 1, 0)
say(text.raw.decode())

## trace: attach to the victim (ptrace)
call('ptrace', 0x4206, host.victim, 0, 0); say('DONE')

## kill: kill the victim
os.kill(host.victim, signal.SIGKILL)

## limit-a-process: lower one of the victim's resource limits
import resource; resource.prlimit(host.victim, resource.RLIMIT_NOFILE, (99, 99))

## slow-a-process: lower the victim's priority
os.setpriority(os.PRIO_PROCESS, host.victim, 17)

## enter-namespaces: enter the victim's namespaces
checked(libc.setns(os.open(f'/proc/{host.victim}/ns/net', os.O_RDONLY), 0)); say('DONE')

## hijack-the-channel: leave an orphan that writes to the channel after the program is killed
import time
main = os.getpid()
if not os.fork():
    os.setsid()
    say("ORPHAN")
    while os.getppid() == main: time.sleep(0.01)
    say("forged answer")
    wait_for_the_end()
    os._exit(0)
os.wait()
"""


PAYLOADS = payloads(
    _ATTACKS,
    stolen,
    signs={
        "trace": done,
        "kill": lambda seen: not seen.host.victim_lives(),
        "limit-a-process": lambda seen: (
            resource.prlimit(seen.host.victim.pid, resource.RLIMIT_NOFILE)[0] == 99
        ),
        "slow-a-process": lambda seen: os.getpriority(os.PRIO_PROCESS, seen.host.victim.pid) == 17,
        "enter-namespaces": done,
        "hijack-the-channel": lambda seen: "forged answer" in seen.afterwards,
    },
)
