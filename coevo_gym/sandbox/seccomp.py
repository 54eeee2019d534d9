"""A filter program that denies dangerous system calls to sandboxed programs.

It is a deny list: namespaces and mounts isolate files, processes and networks. The filter denies
calls that could undo this isolation, calls to the most vulnerable parts of the kernel, and calls on
resources that no namespace covers. A program cannot create sockets; it can only read and write the
open sockets passed to it.
"""

from __future__ import annotations

import os
import struct
from errno import ENOSYS, EPERM

from coevo_gym.sandbox import calls

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16


def supported() -> bool:
    """Return True if the filter supports this machine's architecture."""
    return os.uname().machine in calls.MACHINES


def numbers() -> dict[str, int]:
    """Return this architecture's syscall numbers for the calls that the filter checks."""
    _, column = calls.MACHINES[os.uname().machine]
    table = calls.DENIED | calls.DENIED_WITHOUT_NAMESPACES | calls.DENIED_WITHOUT_CAPS
    table |= calls.MISSING | calls.MISSING_WITHOUT_NAMESPACES | calls.CHECKED
    return {name: columns[column] for name, columns in table.items() if columns[column] >= 0}


def program(*, namespaces: bool, processes: bool) -> bytes:
    """Create the filter as an array of the kernel's ``sock_filter`` structs.

    Without ``namespaces`` that isolate files and processes, the filter also denies signals and
    calls that would truncate a read-only file. Without ``processes``, only threads may be started.
    """
    denied, missing, checked = dict(calls.DENIED), dict(calls.MISSING), list(calls.RULES)
    if not namespaces:
        denied |= calls.DENIED_WITHOUT_NAMESPACES
        missing |= calls.MISSING_WITHOUT_NAMESPACES
        checked += calls.RULES_WITHOUT_NAMESPACES
    if not processes:
        denied |= calls.DENIED_WITHOUT_CAPS
        checked += calls.RULES_WITHOUT_CAPS
    architecture, column = calls.MACHINES[os.uname().machine]
    code = [
        _op(_LOAD, _ARCHITECTURE),
        _op(_EQUAL, architecture, 1, 0),
        _op(_RETURN, _KILL_PROCESS),
        _op(_LOAD, _NUMBER),
        _op(_AT_LEAST, calls.NEWEST + 1, 0, 1),
        _op(_RETURN, _ERRNO | ENOSYS),
    ]
    for table, error in ((missing, ENOSYS), (denied, EPERM)):
        for columns in table.values():
            if columns[column] >= 0:
                code += [_op(_EQUAL, columns[column], 0, 1), _op(_RETURN, _ERRNO | error)]
    for rule in checked:
        number = calls.CHECKED[rule.call][column]
        if number >= 0:
            code += _refuse(number, rule.tests)
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def _refuse(number: int, tests: tuple[calls.ArgumentTest, ...]) -> list[bytes]:
    """Return filter code that denies a call whose arguments pass all of the given tests."""
    code = [_op(_RETURN, _ERRNO | EPERM)]
    for test in reversed(tests):
        code = [*_test(test, len(code)), *code]
    return [_op(_EQUAL, number, 0, len(code) + 1), *code, _op(_LOAD, _NUMBER)]


def _test(test: calls.ArgumentTest, otherwise: int) -> list[bytes]:
    """Return filter code that tests an argument and skips instructions if the test fails."""
    code = [_op(_LOAD, _ARGUMENTS + 8 * test.argument + 4 * test.upper)]
    for left in reversed(range(len(test.values))):
        match = left + (0 if test.found else otherwise)
        none = 0 if left or not test.found else otherwise
        value = test.values[len(test.values) - 1 - left]
        code.append(_op(_ANY_BIT if test.bits else _EQUAL, value, match, none))
    return code


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
