"""The system calls that sandboxed programs are refused, as a program for the kernel's filter.

It is a deny list: namespaces and mounts keep files, processes and networks apart, and the filter
takes away what could undo them, the parts of the kernel that break most often, and the few calls
that work on what a namespace does not cover. No socket can be made at all: the ones a program
needs are handed to it open.
"""

from __future__ import annotations

import os
import struct
from errno import ENOSYS, EPERM

_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# name: number on x86_64, number on aarch64 (-1: there is no such call)
_DENIED = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # namespaces, mounts, the root
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "open_tree": (428, 428), "open_tree_attr": (467, 467), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # sockets, and memory outside the caps
    "socket": (41, 198), "socketpair": (53, 199), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "semget": (64, 190), "semop": (65, 193), "semtimedop": (220, 192), "semctl": (66, 191),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    # modes of device files and of inherited descriptors: root's sandbox owns them
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    # keys, tracing, kernel interfaces
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "fanotify_init": (300, 262),
    "inotify_init": (253, -1), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "lookup_dcookie": (212, 18), "modify_ldt": (154, -1), "personality": (135, 92),
    "move_pages": (279, 239), "migrate_pages": (256, 238),
    # the machine
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "syslog": (103, 116), "vhangup": (153, 58), "iopl": (172, -1),
    "ioperm": (173, -1), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161),
    "setdomainname": (171, 162), "uselib": (134, -1), "ustat": (136, -1), "sysfs": (139, -1),
    "_sysctl": (156, -1),
}  # fmt: skip

# Where no namespace keeps processes and files apart.
_DENIED_WITHOUT_NAMESPACES = {
    "kill": (62, 129), "tkill": (200, 130),
    "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "setpriority": (141, 140),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "ioprio_set": (251, 30),
    "chown": (92, -1), "lchown": (94, -1), "fchown": (93, 55), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "removexattrat": (466, 466), "file_setattr": (469, 469), "utime": (132, -1),
    "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88), "truncate": (76, 45),
}  # fmt: skip

# Where nothing caps what many processes use together.
_DENIED_WITHOUT_CAPS = {"fork": (57, -1), "vfork": (58, -1)}

_NEWEST = 469  # what came later is not known to be harmless; x32 calls have larger numbers, too
_IOCTL, _PRCTL, _PRLIMIT = (16, 29), (157, 167), (302, 261)
_CLONE, _CLONE3 = (56, 220), (435, 435)
_NEW_NAMESPACES = (
    0x7E020000  # CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
)
_CLONE_THREAD = 0x00010000
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_PR_SET_PDEATHSIG = 1

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16


def supported() -> bool:
    """Whether the filter knows this machine's system calls."""
    return os.uname().machine in _MACHINES


def numbers() -> dict[str, int]:
    """The calls that the filter looks at, with their numbers on this machine."""
    _, column = _MACHINES[os.uname().machine]
    table = _DENIED | _DENIED_WITHOUT_NAMESPACES | {"clone": _CLONE, "clone3": _CLONE3}
    return {name: columns[column] for name, columns in table.items() if columns[column] >= 0}


def program(*, namespaces: bool, processes: bool) -> bytes:
    """The filter, as an array of the kernel's ``sock_filter``.

    Args:
        namespaces: whether namespaces keep files and processes apart. If not, signals and changes
            of a file's metadata are refused, too.
        processes: whether new processes may be started; threads always may.
    """
    denied = dict(_DENIED)
    if not namespaces:
        denied |= _DENIED_WITHOUT_NAMESPACES
    if not processes:
        denied |= _DENIED_WITHOUT_CAPS
    architecture, column = _MACHINES[os.uname().machine]
    code = [
        _op(_LOAD, _ARCHITECTURE),
        _op(_EQUAL, architecture, 1, 0),
        _op(_RETURN, _KILL_PROCESS),
        _op(_LOAD, _NUMBER),
        _op(_AT_LEAST, _NEWEST + 1, 0, 1),
        _op(_RETURN, _ERRNO | ENOSYS),
        # Its flags lie in memory, out of a filter's reach; without it, the C library uses clone.
        _op(_EQUAL, _CLONE3[column], 0, 1),
        _op(_RETURN, _ERRNO | ENOSYS),
    ]
    for columns in denied.values():
        if columns[column] >= 0:
            code += [_op(_EQUAL, columns[column], 0, 1), _op(_RETURN, _ERRNO | EPERM)]
    for request in _TERMINAL_INPUT:
        code += _refuse(_IOCTL[column], 1, _op(_EQUAL, request, 0, 1))
    code += _refuse(_PRCTL[column], 0, _op(_EQUAL, _PR_SET_PDEATHSIG, 0, 1))
    code += _refuse(_PRLIMIT[column], 0, _op(_EQUAL, 0, 1, 0))  # of another process
    code += _refuse(_CLONE[column], 0, _op(_ANY_BIT, _NEW_NAMESPACES, 0, 1))
    if not processes:
        code += _refuse(_CLONE[column], 0, _op(_ANY_BIT, _CLONE_THREAD, 1, 0))
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def _refuse(number: int, argument: int, test: bytes) -> list[bytes]:
    """Refuse a call if a test of the lower half of an argument goes on to the next line."""
    return [
        _op(_EQUAL, number, 0, 4),
        _op(_LOAD, _ARGUMENTS + 8 * argument),
        test,
        _op(_RETURN, _ERRNO | EPERM),
        _op(_LOAD, _NUMBER),
    ]


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
