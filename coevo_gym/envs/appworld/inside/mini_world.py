"""Make the built-in data of AppWorld with the real engine.

Run with the engine's own Python: ``python mini_world.py DATA_ROOT``. The folder becomes what the
engine takes as ``APPWORLD_ROOT``. Two runs write the same tasks.
"""

import os
import shutil
import sys
from pathlib import Path

if not __package__:
    # Started by its path: the modules beside it are reached as a package all the same.
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    __package__ = "inside"


def main() -> None:
    """Write API docs, base databases, tasks and data sets into the folder that is named."""
    if len(sys.argv) != 2:
        sys.exit("Usage: python mini_world.py DATA_ROOT")
    root = Path(sys.argv[1]).resolve()
    root.mkdir(parents=True, exist_ok=True)
    # The engine keeps the root that it finds when it is imported.
    os.environ["APPWORLD_ROOT"] = str(root)
    from appworld.common.random import set_random_seed
    from appworld.common.utils import freeze_time

    from .mini_build import build_api_docs, build_base
    from .mini_catalogue import SCENARIOS
    from .mini_people import NOW
    from .mini_tasks import write_task

    data = root / "data"
    set_random_seed(100)
    docs = build_api_docs(data)
    with freeze_time(NOW):
        build_base(data, docs)
        for scenario in SCENARIOS:
            for variant in range(len(scenario.variants)):
                write_task(data, f"{scenario.id}_{variant + 1}", scenario, variant)
    shutil.rmtree(root / "experiments", ignore_errors=True)
    (data / "datasets").mkdir(exist_ok=True)
    for split in ("train", "dev", "test_normal"):
        ids = [
            f"{scenario.id}_{variant + 1}"
            for scenario in SCENARIOS
            if scenario.split == split
            for variant in range(len(scenario.variants))
        ]
        (data / "datasets" / f"{split}.txt").write_text("\n".join(ids) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
