"""Attacks that break a world or reach the engine, its host or another world."""

from __future__ import annotations

from coevo_gym.sandbox.attacks.payload import parse_payloads
from tests.appworld.attacks.seen import is_broken, is_other_broken, says_secret

_WORLD = r"""
## bad-line: write invalid JSON to every socket
shout(b'{no json\n')

## list-line: write a JSON list to every socket
shout(b'[1]\n')

## deep-line: write deeply nested JSON to every socket
shout(b'[' * 200000 + b'\n')

## kill-engine: kill the engine
os.kill(facts.engine, 9)

## long-line: write an endless line to every socket
for one in sockets():
    one.settimeout(1)
    try:
        while True: one.sendall(bytes(1 << 20))
    except OSError: pass

## end-world: end the world with an order on the apps socket
if stock: vars(find_world()).clear()
else:
    for op in ("end", "begin"): raw(op=op, task_id=facts.task_id)

## descriptors: use up the engine's descriptors
if stock:
    try:
        while True: os.dup(0)
    except OSError: pass
else:
    array = __import__("array").array("i", [0])
    with socket.socket(fileno=os.dup(int(sys.argv[2]))) as apps:
        for _ in range(2000):
            apps.sendmsg([b"{}\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array)])
            apps.recv(1 << 16)

## end-sockets: shut down every socket
for one in sockets(): one.shutdown(2)

## out-of-band: send out-of-band bytes on every socket
for _ in range(20):
    for one in sockets(): one.send(b'x', socket.MSG_OOB)
    __import__("select").poll().poll(100)

## half-line: write an unfinished line to every socket
shout(b'{"id": 2, "output": ')

## flood: write requests to every socket without reading the answers
request = {"app": "supervisor", "api": "show_profile", "kwargs": {}}
for one in sockets():
    one.settimeout(1)
    try:
        while True: one.sendall(999 * (json.dumps(request).encode() + b"\n"))
    except OSError: pass

## end-reading: shut down every socket for reading
for one in sockets(): one.shutdown(socket.SHUT_RD)

## end-writing: shut down every socket for writing
for one in sockets(): one.shutdown(socket.SHUT_WR)
"""

_PROCESSES = r"""
## engine-environment: read the engine's environment
print(read(f'/proc/{facts.engine}/environ').replace('\0', '\n'))

## host-environment: read the environment of the engine's host
print(read(f'/proc/{facts.host}/environ').replace('\0', '\n'))

## engine-descriptors: list the engine's open descriptors
folder = f"/proc/{facts.engine}/fd"
print([os.path.realpath(os.path.join(folder, name)) for name in os.listdir(folder)])

## trace-engine: trace the engine
reading, writing = os.pipe()
if not os.fork():
    done = libc.ptrace(0x4206, facts.engine, None, None)
    os.write(writing, bytes([ctypes.get_errno() if done < 0 else 0]))
    while True: os.read(reading, 0); __import__("signal").pause()
print(os.strerror(os.read(reading, 1)[0]))

## kill-world: kill another world
os.kill(facts.other, 9)

## sockets-of-world: take another world's sockets and shut them down
process = checked(libc.syscall(434, facts.other, 0))
for number in range(3, 64):
    taken = libc.syscall(438, process, number, 0)
    if taken < 0 and ctypes.get_errno() != 9: checked(taken)
    if taken >= 0 and stat.S_ISSOCK(os.fstat(taken).st_mode):
        socket.socket(fileno=taken).shutdown(2)
"""

PAYLOADS = (
    *parse_payloads(_WORLD, is_broken),
    *parse_payloads(
        _PROCESSES,
        is_other_broken,
        signs={
            "engine-environment": says_secret("engine"),
            "host-environment": says_secret("host"),
            "engine-descriptors": says_secret("sockets"),
            "trace-engine": lambda seen: seen.traced,
        },
    ),
)
