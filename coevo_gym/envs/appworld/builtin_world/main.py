"""Script that creates AppWorld's built-in data with the real engine.

Run it with the engine's own Python: ``python main.py DATA_ROOT PARENT``. The engine then uses the
folder as ``APPWORLD_ROOT``. PARENT is the pid of the parent; when the parent ends, this process and
its children end, too. Two runs write the same tasks.
"""

import gc
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

_MAX_PROCESSES = 4  # each of them takes about 300 MB
_SPLITS = ("train", "dev", "test_normal")

if not __package__:
    # Started by path: this makes the modules next to it importable as a package, and only so; the
    # same holds for the folder of the code that runs with the engine.
    sys.path[:1] = []
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    __package__ = "builtin_world"


def main() -> None:
    """Write API docs, base databases, tasks and data sets into the specified folder."""
    if len(sys.argv) != 3:
        sys.exit("Usage: python main.py DATA_ROOT PARENT")
    from inside.parent import die_with  # type: ignore[import-not-found]  # found by its path

    die_with(int(sys.argv[2]))
    root = Path(sys.argv[1]).resolve()
    scratch = root / "experiments"
    scratch.mkdir(parents=True)
    # The engine reads these on import. It writes all other files into the scratch folder.
    os.environ |= {"APPWORLD_ROOT": str(root), "IPYTHONDIR": str(scratch / "ipython")}
    sys.dont_write_bytecode = True
    gc.disable()  # the process does not live long enough to need it
    from appworld.common.random import set_random_seed

    from .ask_costs import COSTS
    from .ask_music import MUSIC
    from .ask_venmo import VENMO
    from .ask_words import WORDS
    from .tasks import build_api_docs, build_base, write_task

    data = root / "data"
    set_random_seed(100)
    build_base(data, build_api_docs(data))
    scenarios = sorted((*MUSIC, *VENMO, *COSTS, *WORDS), key=lambda scenario: scenario.difficulty)
    jobs = [(data, scenario, task) for scenario in scenarios for task in scenario.task_ids]
    # A process can have one world at a time; an executor, unlike a Pool, notices if one is killed.
    cores = min(_MAX_PROCESSES, len(os.sched_getaffinity(0)))
    own = os.getpid()
    with ProcessPoolExecutor(cores, get_context("fork"), die_with, (own,)) as pool:
        list(pool.map(write_task, *zip(*jobs, strict=True)))
    shutil.rmtree(scratch)
    for split in _SPLITS:
        ids = [task for s in scenarios if s.split == split for task in s.task_ids]
        file = data / "datasets" / f"{split}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(ids) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
