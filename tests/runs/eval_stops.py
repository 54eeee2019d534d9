"""The ``coevo`` command with the toy benchmark, which stops in mid-evaluation and waits.

Its first argument says where: after so many episodes are kept (``kept:4``), or when so many
trajectories are stored and the line of the last is not yet written (``stored:4``).
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from coevo_gym.cli import main
from coevo_gym.runs.evals.evaluation import KeptInFolder
from coevo_gym.store.database import RunStore
from tests import toy

if __name__ == "__main__":
    what, _, number = sys.argv.pop(1).partition(":")
    owner, name = {"kept": (KeptInFolder, "add"), "stored": (RunStore, "add_eval_episode")}[what]
    real, left = getattr(owner, name), int(number)

    def stop_after(*arguments: Any) -> None:
        global left
        real(*arguments)
        left -= 1
        if not left:
            print("stopped here", flush=True)
            threading.Event().wait(600)

    setattr(owner, name, stop_after)
    toy.register()
    main()
