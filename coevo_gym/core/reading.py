"""Functions that read user-specified files up to a size limit, to avoid exhausting memory.

They read regular files and pipes. A device such as ``/dev/zero`` never ends, so it is rejected.
In our own folders, a pipe is rejected as well, because opening it may never return.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

MAX_BYTES = 64 << 20
"""Size limit in bytes for a file read at once, or for one line of a file read line by line."""


def check_regular_file(path: Path, *, pipes: bool = True) -> None:
    """Check that a path is a regular file or, with ``pipes``, a pipe.

    Raises:
        OSError: if the file does not exist or has another type.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not (stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode))):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        OSError: if the file cannot be opened, or is not a regular file.
    """
    check_regular_file(path, pipes=False)
    return path.open("rb")


def read_file(path: Path, *, most_bytes: int = MAX_BYTES) -> bytes:
    """Read a whole file.

    Raises:
        OSError: if the file cannot be read, is not a regular file or a pipe, or is too large.
    """
    check_regular_file(path)
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {_format_megabytes(most_bytes)}", str(path))
    return data


def read_lines(path: Path, *, most_bytes: int = MAX_BYTES) -> Iterator[bytes]:
    r"""Yield a file's lines one at a time, without trailing newlines.

    Only ``b"\n"`` ends a line; ``str.splitlines`` would also split on U+2028 inside a text.

    Raises:
        OSError: if the file cannot be read, is not a regular file or a pipe, or a line is too long.
    """
    check_regular_file(path)
    with path.open("rb") as file:
        lines = iter(lambda: file.readline(most_bytes + 1), b"")
        for number, line in enumerate(lines, start=1):
            if len(line) > most_bytes and not line.endswith(b"\n"):
                problem = f"line {number} is longer than {_format_megabytes(most_bytes)}"
                raise OSError(errno.EFBIG, problem, str(path))
            yield line.removesuffix(b"\n")


def _format_megabytes(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
