"""Many seeds: each is run once, whatever happens in between."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coevo_gym.core.errors import ConfigError
from coevo_gym.testing.simulated import worlds
from coevo_gym.testing.simulated.batch import Numbers, SimulatedCell, run_seeds

CELL = SimulatedCell(world="tiny", curriculum={"growth": {"kind": "anywhere", "drafts": 5}})
LIFE = """
import multiprocessing
import sys
from pathlib import Path
from tests.simulated.test_batch import CELL, add_tiny
from coevo_gym.testing.simulated.batch import run_seeds
add_tiny()

def say(seed, numbers):
    print(seed, flush=True)
    if len(sys.argv) > 2:
        for child in multiprocessing.active_children()[:1]:
            child.terminate()

if __name__ == "__main__":
    run_seeds(Path(sys.argv[1]), CELL, range(200), workers=2, on_seed=say)
"""
ROOT = Path(__file__).parents[2]


def add_tiny() -> None:
    tiny = worlds.WorldConfig(n_skills=6, first_tasks=6, groups_per_step=4, env_steps=600)
    worlds.WORLDS = {**worlds.WORLDS, "tiny": tiny}  # type: ignore[misc]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "WORLDS", worlds.WORLDS)
    add_tiny()


def test_seeds_that_are_done_are_not_run_again(tmp_path: Path) -> None:
    ran = list[int]()

    def note(seed: int, numbers: Numbers) -> None:
        ran.append(seed)

    first = run_seeds(tmp_path, CELL, [5, 3], on_seed=note)
    again = run_seeds(tmp_path, CELL, [3, 4, 5], on_seed=note)
    assert ran == [5, 3, 4]
    assert [numbers["seed"] for numbers in again] == [3, 4, 5]
    assert [again[2], again[0]] == first
    assert CELL.run(4) == {key: n for key, n in again[1].items() if key != "seed"}


def test_a_seed_whose_line_is_torn_is_run_again(tmp_path: Path) -> None:
    whole = run_seeds(tmp_path, CELL, [0, 1])
    file = tmp_path / "seeds.jsonl"
    file.write_bytes(file.read_bytes()[:-10])
    ran = list[int]()
    assert run_seeds(tmp_path, CELL, [0, 1], on_seed=lambda seed, _: ran.append(seed)) == whole
    assert ran == [1]


def test_seeds_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    run_seeds(tmp_path, CELL, [0])
    for other in (
        CELL.model_copy(update={"proof": True}),
        CELL.model_copy(update={"world": "plain"}),
        CELL.model_copy(update={"curriculum": {"growth": {"kind": "none"}}}),
    ):
        with pytest.raises(ConfigError, match="different settings"):
            run_seeds(tmp_path, other, [0])


def test_seeds_from_before_there_was_a_setting_are_taken(tmp_path: Path) -> None:
    first = run_seeds(tmp_path, CELL, [0])
    file = tmp_path / "cell.json"
    kept = json.loads(file.read_text())
    del kept["world"]["wander_steps"]
    del kept["curriculum"]["detector"]["min_support"]
    file.write_text(json.dumps(kept))
    assert run_seeds(tmp_path, CELL, [0]) == first
    file.write_text("[]")
    with pytest.raises(ConfigError, match="different settings"):
        run_seeds(tmp_path, CELL, [0])


def test_what_stops_one_seed_stops_the_rest(tmp_path: Path) -> None:
    def stop(seed: int, numbers: Numbers) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_seeds(tmp_path, CELL, range(100), on_seed=stop)
    assert len((tmp_path / "seeds.jsonl").read_text().splitlines()) == 1


def test_killed_seeds_go_on(tmp_path: Path) -> None:
    """The workers end with their parent: else nobody would close the pipe that is read here."""
    script = tmp_path / "life.py"
    script.write_text(LIFE)
    command = [sys.executable, str(script), str(tmp_path / "cell")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    ) as life:
        assert life.stdout is not None
        life.stdout.readline()
        life.kill()
        life.stdout.read()
    lines = (tmp_path / "cell" / "seeds.jsonl").read_bytes().split(b"\n")[:-1]
    done = {json.loads(line)["seed"] for line in lines}
    assert 0 < len(done) < 200
    ran = list[int]()
    few = sorted({*range(4), *sorted(done)[:2]})
    went_on = run_seeds(tmp_path / "cell", CELL, few, on_seed=lambda seed, _: ran.append(seed))
    assert not done & set(ran)
    assert went_on == run_seeds(tmp_path / "anew", CELL, few)


def test_a_worker_that_is_ended_from_outside_is_told(tmp_path: Path) -> None:
    script = tmp_path / "life.py"
    script.write_text(LIFE)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "cell", "and end a worker"],
        capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("coevo_gym.core.errors.WorkersFailed: A worker process was killed")
    assert 1 <= len((tmp_path / "cell" / "seeds.jsonl").read_text().splitlines()) < 200
