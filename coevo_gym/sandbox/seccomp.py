"""The system calls that sandboxed programs are refused, as a program for the kernel's filter.

It is a deny list: namespaces and mounts keep files, processes and networks apart, and the filter
takes away what could undo them, the parts of the kernel that break most often, and the calls
that work on what a namespace does not cover. No socket can be made at all: the ones a program
needs are handed to it open, and can be read and written, and nothing else.
"""

from __future__ import annotations

import os
import struct
from errno import ENOSYS, EPERM

from coevo_gym.sandbox import calls, rules

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16


def supported() -> bool:
    """Whether the filter knows this machine's system calls."""
    return os.uname().machine in calls.MACHINES


def numbers() -> dict[str, int]:
    """The calls that the filter looks at, with their numbers on this machine."""
    _, column = calls.MACHINES[os.uname().machine]
    table = calls.DENIED | calls.DENIED_WITHOUT_NAMESPACES | calls.DENIED_WITHOUT_CAPS
    table |= calls.MISSING | calls.MISSING_WITHOUT_NAMESPACES | calls.CHECKED
    return {name: columns[column] for name, columns in table.items() if columns[column] >= 0}


def program(*, namespaces: bool, processes: bool) -> bytes:
    """The filter, as an array of the kernel's ``sock_filter``.

    Args:
        namespaces: whether namespaces keep files and processes apart. If not, signals are
            refused, too, and what would empty a file that can only be read.
        processes: whether new processes may be started; threads always may.
    """
    denied, missing, checked = dict(calls.DENIED), dict(calls.MISSING), list(rules.RULES)
    if not namespaces:
        denied |= calls.DENIED_WITHOUT_NAMESPACES
        missing |= calls.MISSING_WITHOUT_NAMESPACES
        checked += rules.RULES_WITHOUT_NAMESPACES
    if not processes:
        denied |= calls.DENIED_WITHOUT_CAPS
        checked += rules.RULES_WITHOUT_CAPS
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


def _refuse(number: int, tests: tuple[rules.Test, ...]) -> list[bytes]:
    """Refuse a call if all tests of its arguments hold; it is written from its end."""
    code = [_op(_RETURN, _ERRNO | EPERM)]
    for test in reversed(tests):
        code = [*_test(test, len(code)), *code]
    return [_op(_EQUAL, number, 0, len(code) + 1), *code, _op(_LOAD, _NUMBER)]


def _test(test: rules.Test, otherwise: int) -> list[bytes]:
    """Go on to the next line if a test holds, else pass over so many lines."""
    code = [_op(_LOAD, _ARGUMENTS + 8 * test.argument + 4 * test.upper)]
    for left in reversed(range(len(test.values))):
        match = left + (0 if test.found else otherwise)
        none = 0 if left or not test.found else otherwise
        value = test.values[len(test.values) - 1 - left]
        code.append(_op(_ANY_BIT if test.bits else _EQUAL, value, match, none))
    return code


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
