"""The warm-up: stopped after any step it ends as if it had not been, and says how far it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.errors import StoreError
from coevo_gym.runs.config import load_config
from coevo_gym.runs.progress_reports import ProgressSink, Silent
from coevo_gym.runs.stop import Stopped
from coevo_gym.runs.train import resume, train
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.folder import RunFolder, read_json
from coevo_gym.trainers.sft import Imitator
from coevo_gym.trainers.update.optimizer import GuardedOptimizer
from tests.agents.tiny_llama import make_tiny_llama
from tests.runs.conftest import TOY
from tests.runs.test_train import metrics
from tests.toy import PROMPT

EPOCHS = 5
SETS = ["arms=static", "loop.max_steps=0", f"warmup.max_epochs={EPOCHS}"]
TINY = ["policy.tiny.dropout=0.2", "warmup.lr=0.1", "warmup.patience_epochs=9"]
STEPS = 3


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of a warm-up of a tiny Llama."""
    folder = tmp_path_factory.mktemp("llama")
    (folder / "toy.j2").write_text(PROMPT)
    settings = {
        "policy.kind": "transformers",
        "policy.model.path": make_tiny_llama(folder / "model"),
        "policy.prompt": folder / "toy.j2",
        "policy.chat.max_answer_tokens": 4,
        "benchmark.max_steps": 4,
        "evaluation.n_tasks": 1,
        "curriculum.initial_size": 1,
        "warmup.n_tasks": 8,
        "warmup.lr": 3e-3,
        "warmup.batch_decisions": 3,
        "warmup.patience_epochs": 9,
    }
    return [f"{key}={value}" for key, value in settings.items()]


class Recorder(Silent):
    """Progress that keeps what it is told of each phase."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int, int]] = []
        self.updates: list[tuple[str, int, dict[str, str]]] = []

    def begin_phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None:
        self.phases.append((name, total, done))

    def update(self, done: int, **facts: str) -> None:
        self.updates.append((self.phases[-1][0], done, facts))


class AfterEpochs:
    """Says stop once so many epochs were done since it was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.left = most
        epoch = Imitator.run_epoch

        def count_and_run(imitator: Imitator, *arguments: Any) -> None:
            epoch(imitator, *arguments)
            self.left -= 1

        monkeypatch.setattr(Imitator, "run_epoch", count_and_run)

    def __call__(self) -> bool:
        return self.left <= 0


def begin(
    folder: RunFolder,
    sets: list[str],
    progress: ProgressSink | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    resolved = load_config(TOY, sets=[*SETS, *sets], environ={})
    train(folder, resolved, progress or Silent(), stop)  # type: ignore[arg-type]


def go_on(folder: RunFolder, progress: ProgressSink | None = None) -> None:
    resume(folder, progress or Silent(), lambda: False)  # type: ignore[arg-type]


def epochs_of(folder: RunFolder) -> Path:
    return folder.checkpoints / "warm-up" / "epochs"


def start_of(folder: RunFolder) -> Any:
    saved = Checkpoints(folder.checkpoints / "warm-up").load_latest()
    assert saved is not None
    return saved.state


def equal(one: Any, other: Any) -> bool:
    """Whether two states are equal, tensors to the last bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    return bool(one.equal(other)) if hasattr(one, "equal") else bool(one == other)


@pytest.fixture(scope="module", params=["tiny", "llama"])
def sets(request: pytest.FixtureRequest) -> list[str]:
    return TINY if request.param == "tiny" else request.getfixturevalue("llama")


@pytest.fixture(scope="module")
def straight(sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose warm-up nothing disturbed."""
    folder = RunFolder(tmp_path_factory.mktemp("straight") / "run")
    begin(folder, sets)
    return folder


@pytest.mark.parametrize(
    "epochs", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3, 4)), 5]
)
def test_a_warm_up_stopped_after_any_epoch_ends_the_same(
    straight: RunFolder,
    sets: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    epochs: int,
) -> None:
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        begin(folder, sets, stop=AfterEpochs(patch, epochs))
    assert len(Checkpoints(epochs_of(folder)).steps()) == bool(epochs)
    assert not list((folder.checkpoints / "warm-up").glob("step-*"))
    done = AfterEpochs(monkeypatch, 0)
    go_on(folder)
    assert -done.left == EPOCHS - epochs
    assert equal(start_of(folder), start_of(straight))
    assert read_json(folder.summary) == read_json(straight.summary)
    assert metrics(folder.path) == metrics(straight.path)
    assert not epochs_of(folder).exists()


@pytest.mark.parametrize("steps", [1, pytest.param(4, marks=pytest.mark.slow), 5])
def test_a_warm_up_stopped_within_an_epoch_ends_the_same(
    straight: RunFolder,
    sets: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
) -> None:
    """A stop takes effect before the next step of the optimiser."""
    calls, step = list[int](), GuardedOptimizer.step

    def count_and_run(optimizer: GuardedOptimizer, *arguments: Any) -> Any:
        calls.append(1)
        return step(optimizer, *arguments)

    monkeypatch.setattr(GuardedOptimizer, "step", count_and_run)
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(Stopped):
        begin(folder, sets, stop=lambda: len(calls) == steps)
    assert (len(calls), Checkpoints(epochs_of(folder)).steps()[-1:]) == (steps, [steps])
    recorder = Recorder()
    go_on(folder, recorder)
    if sets is not TINY:
        assert ("warm-up", EPOCHS * STEPS, steps) in recorder.phases
        assert len(calls) == EPOCHS * STEPS
    assert equal(start_of(folder), start_of(straight))
    assert metrics(folder.path) == metrics(straight.path)
    assert not epochs_of(folder).exists()


def test_a_killed_warm_up_resumes_from_its_last_epoch(
    straight: RunFolder, sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs of the tiny policy are too short to be saved, so it starts again."""
    folder, epoch, begun = RunFolder(tmp_path / "run"), Imitator.run_epoch, list[int]()

    def dies(self: Imitator, *arguments: Any) -> None:
        begun.append(len(self.losses))
        if len(begun) == 4:
            raise KeyboardInterrupt
        epoch(self, *arguments)

    monkeypatch.setattr(Imitator, "run_epoch", dies)
    with pytest.raises(KeyboardInterrupt):
        begin(folder, sets)
    go_on(folder)
    assert begun == [0, 1, 2, 3, *range(0 if sets is TINY else 3, EPOCHS)]
    assert equal(start_of(folder), start_of(straight))


def test_a_run_killed_in_the_warm_up_evaluation_does_not_imitate_again(
    llama: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dies(Recorder):
        def begin_phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None:
            super().begin_phase(name, total, done)
            if name == "evaluate warm-up":
                raise KeyboardInterrupt

    folder, recorder = RunFolder(tmp_path / "run"), Recorder()
    with pytest.raises(KeyboardInterrupt):
        begin(folder, llama, Dies())
    epochs = AfterEpochs(monkeypatch, 0)
    go_on(folder, recorder)
    assert epochs.left == 0
    assert ("warm-up", EPOCHS * STEPS, EPOCHS * STEPS) in recorder.phases
    assert len(start_of(folder)["outcomes"]["warm-up"]) == 1


def test_leftover_epochs_of_a_finished_warm_up_are_deleted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    begin(folder, TINY)
    folder.summary.unlink()
    Checkpoints(epochs_of(folder)).save(3, {"policy": {}})
    go_on(folder)
    assert not epochs_of(folder).exists()


def test_a_warm_up_state_of_other_demonstrations_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        begin(folder, TINY, stop=AfterEpochs(patch, 2))
    saved = Checkpoints(epochs_of(folder)).load_latest()
    assert saved is not None
    saved.state["imitator"]["sizes"].pop()
    Checkpoints(epochs_of(folder)).save(saved.step, saved.state)
    with pytest.raises(StoreError, match="different demonstrations or a different seed"):
        go_on(folder)


def test_the_warm_up_of_a_language_model_reports_each_step(
    llama: list[str], tmp_path: Path
) -> None:
    recorder = Recorder()
    begin(RunFolder(tmp_path / "run"), llama, recorder)
    assert [phase for phase in recorder.phases if phase[0] in ("demonstrations", "warm-up")] == [
        ("demonstrations", 8, 0),
        ("warm-up", EPOCHS * STEPS, 0),
    ]
    assert ("demonstrations", 8, {"env_steps": "32"}) in recorder.updates
    *steps, last = [update[1:] for update in recorder.updates if update[0] == "warm-up"]
    assert [done for done, _ in steps] == list(range(1, EPOCHS * STEPS + 1))
    for done, facts in steps:
        epoch = (done - 1) // STEPS
        names = ["epoch", *(["watched_loss"] if epoch else []), "loss", "speed"]
        assert list(facts) == names
        assert facts["epoch"] == f"{epoch + 1} of {EPOCHS}"
        assert all(re.fullmatch(r"\d\.\d{3}", facts[name]) for name in names if "loss" in name)
        assert re.fullmatch(r"[\d,]+ tokens/s", facts["speed"])
    assert last == (EPOCHS * STEPS, {"tasks": "8"})


def test_the_warm_up_of_the_tiny_policy_is_reported_once(tmp_path: Path) -> None:
    recorder = Recorder()
    begin(RunFolder(tmp_path / "run"), TINY, recorder)
    assert [phase for phase in recorder.phases if phase[0] in ("demonstrations", "warm-up")] == [
        ("warm-up", EPOCHS, 0)
    ]
    assert [update for update in recorder.updates if update[0] == "warm-up"] == [
        ("warm-up", EPOCHS, {"tasks": "40"})
    ]


@pytest.mark.parametrize("kind", ["tiny", "llama"])
def test_a_warm_up_without_tasks_imitates_nothing(
    kind: str, llama: list[str], tmp_path: Path
) -> None:
    recorder, folder = Recorder(), RunFolder(tmp_path / "run")
    begin(folder, [*(llama if kind == "llama" else TINY), "warmup.n_tasks=0"], recorder)
    assert ("warm-up", EPOCHS, {"tasks": "0"}) in recorder.updates
    assert start_of(folder)["env_steps"] == 0
