"""Every method trains, and differs from the first tasks and plain GRPO in what it says it does."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import coevo_gym
from coevo_gym.core.registry import METHODS
from coevo_gym.store.folder import RunFolder, read_json
from tests.runs.conftest import ROOT, TOY, Child
from tests.view.exports import read_data

ARMS = list(METHODS.built_in)
SHORT = {"learner.epochs": 2, "loop.evaluate_every_steps": 0, "loop.max_steps": 8}
PAGE = ROOT / "docs" / "methods" / "arms.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with every method there is."""
    path = tmp_path_factory.mktemp("all") / "run"
    own = {"arm.curriculum.set.curriculum.selector.groups_per_stage": 4}
    own |= {"arm.rest.set.learner.grow_steps": 2}
    coevo_gym.train(TOY, sets={"arms": ARMS, **SHORT, **own}, folder=path)
    return RunFolder(path)


def task_draws(run: RunFolder, arm: str) -> list[str]:
    with closing(sqlite3.connect(run.database)) as database:
        rows = database.execute(
            "SELECT task_id FROM groups WHERE arm = ? ORDER BY step, id", (arm,)
        )
        return [row[0] for row in rows]


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm != "static"])
def test_every_method_changes_the_weights_and_only_some_change_the_task_draws(
    run: RunFolder, arm: str
) -> None:
    summaries = read_json(run.summary)["arms"]
    assert summaries[arm]["weights"] != summaries["static"]["weights"]
    same_draws = task_draws(run, arm) == task_draws(run, "static")
    assert same_draws == (arm in ("rloo", "gigpo", "ppo", "rest", "seal"))


class TestUserDefinedMethod:
    """The method file from the documentation, in the user's folder."""

    SETS = ("arms=static,practice", "arm.practice.set.method.around=3", "loop.max_steps=5")

    @pytest.fixture
    def sets(self, tmp_path: Path) -> list[str]:
        folder = tmp_path / "methods"
        folder.mkdir()
        blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        (source,) = (block for block in blocks if "@method" in block)
        (folder / "practice.py").write_text(source)
        return [f"--set={item}" for item in (*self.SETS, f"plugins.methods={folder}")]

    @pytest.mark.slow
    def test_it_trains_resumes_and_appears_in_the_report(
        self, child: Callable[..., Child], tmp_path: Path, sets: list[str]
    ) -> None:
        whole = child("train", TOY, "--name=whole", *sets)
        assert whole.end() == 0, whole.text
        killed = child("train", TOY, "--name=killed", *sets)
        killed.wait_for("train practice: 3/5")
        killed.process.kill()
        killed.end()
        (tmp_path / "methods" / "practice.py").open("a").write("\n# one line more\n")
        resumed = child("resume", "killed")
        assert resumed.end() == 0, resumed.text
        assert "practice.py has changed" in resumed.text
        ends = [read_json(tmp_path / "runs" / n / "summary.json") for n in ("whole", "killed")]
        arms = [end["arms"] for end in ends]
        assert arms[0]["practice"]["weights"] == arms[1]["practice"]["weights"]
        assert arms[0]["practice"]["weights"] != arms[0]["static"]["weights"]
        assert arms[0]["practice"]["rounds"] > arms[0]["static"]["rounds"]
        report = tmp_path / "runs" / "killed" / "report.html"
        assert ">practice<" in report.read_text()
        kinds = read_data(report)["answers"]["about"]["kinds"]
        assert "solved lately" in {kind["label"] for kind in kinds}

    def test_resuming_without_the_method_file_fails_with_a_reason(
        self, child: Callable[..., Child], tmp_path: Path, sets: list[str]
    ) -> None:
        stopped = child("train", TOY, "--name=mine", *sets)
        stopped.wait_for("train static: 3/5")
        stopped.process.kill()
        stopped.end()
        (tmp_path / "methods" / "practice.py").unlink()
        resumed = child("resume", "mine")
        assert resumed.end() != 0
        assert "does not contain any .py files" in resumed.text
