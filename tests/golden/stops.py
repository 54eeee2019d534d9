"""The ``coevo`` command with the toy benchmark, stopped when it has asked so often whether to."""

from __future__ import annotations

import sys

from coevo_gym.cli import main
from coevo_gym.runs.stop import StopRequest
from tests import toy

if __name__ == "__main__":
    left = int(sys.argv.pop(1))

    def stop(request: StopRequest) -> bool:
        global left
        left -= 1
        return left < 0

    StopRequest.__call__ = stop  # type: ignore[method-assign]
    toy.register()
    main()
