"""Attacks that try to exhaust resources or run forever, at a scale too small to harm the host."""

from __future__ import annotations

from coevo_gym.sandbox import Level, cgroup
from coevo_gym.sandbox.attacks.host import done
from coevo_gym.sandbox.attacks.payload import payloads
from coevo_gym.sandbox.process import counts_threads

_FLOOD = 1 << 22

_CAPPED = """
## thread-bomb: start many threads
import threading
threading.stack_size(1 << 16)
for _ in range(4 * host.limits["pids"]):
    threading.Thread(target=wait_for_the_end, daemon=True).start()

## fork-bomb: start many processes
for _ in range(4 * host.limits["pids"]):
    if not os.fork(): wait_for_the_end(); os._exit(0)

## memory: allocate a lot of memory
held = bytearray(2 * host.limits['memory_bytes'])

## memory-of-children: allocate a lot of memory in several processes
reading, writing = os.pipe()
asked, asking = os.pipe()
share = host.limits["memory_bytes"] // 2
children = []
for _ in range(4):
    child = os.fork()
    if not child:
        try:
            held = bytearray(share)
            for start in range(0, share, 4096): held[start] = 1
            os.close(writing)
            os.read(asked, 1)
            os._exit(0)
        finally: os._exit(1)
    children.append(child)
os.close(writing)
os.read(reading, 1)  # until each child holds its part or is dead; a child that answers holds it
os.write(asking, b"now?")
count = sum(os.waitpid(child, 0)[1] == 0 for child in children)
if count < 4: raise MemoryError(f"{count} of 4 children held their part")

## memory-without-a-process: keep memory in an anonymous file
os.ftruncate(os.memfd_create('held'), 1 << 20)

## fill-the-disk: write a lot of data to several files
for number in range(8):
    with open(os.path.join(host.scratch, f"fill{number}"), "wb") as file:
        for _ in range(8): file.write(bytes(host.limits["scratch_bytes"] // 16))

## fill-shared-memory: write a lot of data to /dev/shm
path = f"/dev/shm/coevo-fill-{os.getpid()}"
try:
    with open(path, "wb") as file:
        for _ in range(8): file.write(bytes(host.limits["scratch_bytes"] // 4))
finally:
    if os.path.exists(path): os.unlink(path)

## huge-file: create a huge sparse file
open(os.path.join(host.scratch, 'huge'), 'wb').truncate(1 << 33)

## descriptors: open many files
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(4 * host.limits["open_files"])]
"""
_ENDLESS = """
## loop-in-c: loop in C, where Python's signal handlers do not run
sum(range(10**15))

## swallowed-time-out: catch the exception that should end it
def work():
    while True: sum(range(100))
while True:
    try: work()
    except BaseException: pass

## ignored-signals: ignore all signals that can be ignored
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
while True: pass

## cancelled-time-out: cancel the timer that should end it
signal.alarm(0)
while True: pass
"""
_FLOODING = """
## flood-output: flood standard output and standard error
for number in (1, 2):
    try:
        for _ in range(128): os.write(number, bytes(1 << 16))
    except BlockingIOError: pass
"""


def _threads_capped(level: Level) -> bool:
    """Return True if the number of threads is capped, by cgroups or the kernel."""
    alone = level is Level.BUBBLEWRAP and counts_threads()
    return level is Level.NONE or alone or bool(cgroup.available())


PAYLOADS = (
    *payloads(_CAPPED, done, after="\nsay('DONE')", claimed={"thread-bomb": _threads_capped}),
    *payloads(_ENDLESS, lambda seen: seen.survived, before="signal.alarm(1)\nsay('ENDLESS')\n"),
    *payloads(_FLOODING, lambda seen: seen.flood >= _FLOOD),
)
