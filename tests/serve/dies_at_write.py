"""``coevo``, on the toy benchmark as well, killed at the n-th write of a served session's file.

The first two arguments are n, from 0, and when to die: "before" or "after" the write is on disk.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from coevo_gym.cli import main
from coevo_gym.serve.journal import Journal
from tests import toy


def kill_at_write(write: Callable[..., Any]) -> Callable[..., Any]:
    def write_or_die(*arguments: Any, **kwargs: Any) -> Any:
        global left
        left -= 1
        if left < 0 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = write(*arguments, **kwargs)
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return write_or_die


if __name__ == "__main__":
    left, when = int(sys.argv.pop(1)), sys.argv.pop(1)
    toy.register()
    Journal.add = kill_at_write(Journal.add)  # type: ignore[method-assign]
    Journal.replace_calls_with_snapshot = kill_at_write(Journal.replace_calls_with_snapshot)  # type: ignore[method-assign]
    main()
