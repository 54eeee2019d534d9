"""Attacks that reach other processes: the engine, its host, and another world."""

from __future__ import annotations

from coevo_gym.envs.appworld.attacks.seen import EngineObservations, other_broken, secret
from coevo_gym.sandbox.attacks import Payload

PAYLOADS: tuple[Payload[EngineObservations], ...] = (
    Payload(
        "engine-environment",
        "read the engine's environment",
        r"print(read(f'/proc/{facts.engine}/environ').replace('\0', '\n'))",
        secret("engine"),
    ),
    Payload(
        "host-environment",
        "read the environment of the engine's host",
        r"print(read(f'/proc/{facts.host}/environ').replace('\0', '\n'))",
        secret("host"),
    ),
    Payload(
        "engine-descriptors",
        "look through what the engine has open",
        """
folder = f"/proc/{facts.engine}/fd"
print([os.path.realpath(os.path.join(folder, name)) for name in os.listdir(folder)])
""",
        secret("sockets"),
    ),
    Payload(
        "trace-engine",
        "trace the engine",
        """
reading, writing = os.pipe()
if not os.fork():
    done = libc.ptrace(0x4206, facts.engine, None, None)
    os.write(writing, bytes([ctypes.get_errno() if done < 0 else 0]))
    while True: os.read(reading, 0); __import__("signal").pause()
print(os.strerror(os.read(reading, 1)[0]))
""",
        lambda seen: seen.traced,
    ),
    Payload("kill-world", "kill another world", "os.kill(facts.other, 9)", other_broken),
    Payload(
        "sockets-of-world",
        "take the sockets of another world, and shut them",
        """
process = checked(libc.syscall(434, facts.other, 0))
for number in range(3, 64):
    taken = libc.syscall(438, process, number, 0)
    if taken < 0 and ctypes.get_errno() != 9: checked(taken)
    if taken >= 0 and stat.S_ISSOCK(os.fstat(taken).st_mode):
        socket.socket(fileno=taken).shutdown(2)
""",
        other_broken,
    ),
)
