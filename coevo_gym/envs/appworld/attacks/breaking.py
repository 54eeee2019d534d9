"""Attacks that break a world; they succeed if the world stops working."""

from __future__ import annotations

from coevo_gym.envs.appworld.attacks.seen import EngineObservations, broken
from coevo_gym.sandbox.attacks import Payload

_BREAK = (
    ("bad-line", "write what is no JSON on every socket", "shout(b'{no json\\n')"),
    ("list-line", "write JSON that is no object on every socket", "shout(b'[1]\\n')"),
    ("deep-line", "write deeply nested JSON on every socket", "shout(b'[' * 200000 + b'\\n')"),
    ("kill-engine", "kill the engine", "os.kill(facts.engine, 9)"),
    (
        "long-line",
        "write a line without an end on every socket",
        """
for one in sockets():
    one.settimeout(1)
    try:
        while True: one.sendall(bytes(1 << 20))
    except OSError: pass
""",
    ),
    (
        "end-world",
        "end the world, by an order on the socket to the apps",
        """
if stock: vars(find_world()).clear()
else:
    for op in ("end", "begin"): raw(op=op, task_id=facts.task_id)
""",
    ),
    (
        "descriptors",
        "use up the engine's descriptors",
        """
if stock:
    try:
        while True: os.dup(0)
    except OSError: pass
else:
    array = __import__("array").array("i", [0])
    with socket.socket(fileno=os.dup(int(sys.argv[2]))) as apps:
        for _ in range(2000):
            apps.sendmsg([b"{}\\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array)])
            apps.recv(1 << 16)
""",
    ),
    ("end-sockets", "shut every socket", "for one in sockets(): one.shutdown(2)"),
)

_DISCONNECTING = (
    (
        "out-of-band",
        "send bytes out of band on every socket",
        # A late reader misses an out-of-band byte that other data has followed.
        """
for _ in range(20):
    for one in sockets(): one.send(b'x', socket.MSG_OOB)
    __import__("select").poll().poll(100)
""",
    ),
    (
        "half-line",
        "write a line without its end on every socket",
        """shout(b'{"id": 2, "output": ')""",
    ),
    (
        "flood",
        "write requests on every socket and read no answer",
        """
request = {"app": "supervisor", "api": "show_profile", "kwargs": {}}
for one in sockets():
    one.settimeout(1)
    try:
        while True: one.sendall(999 * (json.dumps(request).encode() + b"\\n"))
    except OSError: pass
""",
    ),
    (
        "end-reading",
        "shut every socket for reading",
        "for one in sockets(): one.shutdown(socket.SHUT_RD)",
    ),
    (
        "end-writing",
        "shut every socket for writing",
        "for one in sockets(): one.shutdown(socket.SHUT_WR)",
    ),
)

PAYLOADS: tuple[Payload[EngineObservations], ...] = tuple(
    Payload(name, what, code, broken) for name, what, code in (*_BREAK, *_DISCONNECTING)
)
