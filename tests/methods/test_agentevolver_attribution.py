"""Attribution by replay: labels of steps, the credit from them, and what they never say."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.benchmark import Replay
from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.notes import NO_NOTES, Note, Notes
from coevo_gym.core.seams import Estimator, Memory, Study
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EndReason, Group, Step, Trajectory
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.episode import trajectory_of
from coevo_gym.methods.agentevolver.attribution import Attribution, AttributionRecord
from coevo_gym.methods.agentevolver.credit import AttributionCredit, decoupled_advantages, labels_of
from coevo_gym.methods.agentevolver.replays import most_replays
from coevo_gym.testing import make_env
from coevo_gym.trainers.credit import Outcome
from tests import needs
from tests.curricula.episodes import TRAIN
from tests.curricula.test_minimise import Shelf
from tests.toy import BENCHMARK

BENCH = Path(__file__).parents[2] / "bench" / "attribution.py"


def went(
    *actions: str, score: float = 1.0, end: EndReason = EndReason.FAILED, task: Task = TRAIN[0]
) -> Trajectory:
    return Trajectory(
        task_id=task.id,
        steps=tuple(Step("", "", action) for action in actions),
        score=score,
        success=score >= 1.0,
        end_reason=end,
    )


def group(*trajectories: Trajectory, task: Task = TRAIN[0], id: str = "g") -> Group:
    return Group(id, task, len(trajectories), trajectories)


def labels(actions: str, *, score: float = 1.0, **settings: Any) -> list[int]:
    """Labels on the shelf: solved by ``end`` after ``take 12``; ``list`` shows that number."""
    trajectory = went(*actions.split(" / "), score=score)
    notes = Notes(Attribution(Shelf(), **settings).examine([group(trajectory)]).notes)
    return labels_of(notes, "g", 0, len(trajectory.steps))


class TestTheStudy:
    @pytest.mark.parametrize(
        ("actions", "expected", "with_hindsight"),
        [
            ("take 12 / end", [1, 1], [1, 1]),
            ("think / take 12 / end", [-1, 1, 1], [-1, 1, 1]),
            ("fail / take 12 / end", [-1, 1, 1], [-1, 1, 1]),
            ("take 3 / put 3 / take 12 / end", [-1, -1, 1, 1], [-1, -1, 1, 1]),
            ("take 12 / put 12 / take 12 / end", [1, -1, -1, 1], [1, -1, -1, 1]),
            (
                "take 3 / take 7 / put 7 / put 3 / take 12 / end",
                [-1] * 4 + [1] * 2,
                [-1] * 4 + [1] * 2,
            ),
            ("list / take 12 / end", [1, 1, 1], [1, 1, 1]),  # nothing else tells the number
            ("list / list / take 12 / end", [1, -1, 1, 1], [1, -1, 1, 1]),
            ("take 12 / list / end", [1, 0, 1], [1, -1, 1]),  # a search, though in vain
            ("list / take 7 / put 7 / take 12 / end", [1, -1, -1, 1, 1], [1, -1, -1, 1, 1]),
        ],
    )
    def test_steps_of_a_success_are_labelled_by_replay(
        self, actions: str, expected: list[int], with_hindsight: list[int]
    ) -> None:
        assert labels(actions) == expected
        assert labels(actions, hindsight=True) == with_hindsight

    def test_a_lookup_that_only_a_bad_step_needs_has_no_label(self) -> None:
        """The list tells the number 7 alone, and 12 stands in the request."""
        shelf = Shelf()
        task = TRAIN[0]
        steps = ("take 12", "list", "take 7", "put 7", "end")
        notes = Attribution(shelf).examine([group(went(*steps), task=task)]).notes
        assert labels_of(Notes(notes), "g", 0, 5) == [1, 0, -1, -1, 1]

    def test_in_a_failure_only_errors_are_labelled_bad(self) -> None:
        assert labels("take 7 / fail / list / end", score=0.0) == [0, -1, 0, 0]

    def test_an_episode_with_a_partial_score_is_labelled_by_replay(self) -> None:
        task = TRAIN[0]
        first, second, *_ = task.solution
        actions = (first, "press pink", second)
        done = went(*actions, score=BENCHMARK.replay(task, actions).scores[-1])
        notes = Notes(Attribution(BENCHMARK).examine([group(done)]).notes)
        assert 0.0 < done.score < 1.0
        assert labels_of(notes, "g", 0, 3) == [1, -1, 1]

    def test_a_replay_with_a_different_score_gives_no_labels(self) -> None:
        findings = Attribution(Shelf()).examine([group(went("take 7", "fail", "end", score=1.0))])
        (note,) = findings.notes
        assert (note.label, note.step, note.evidence["labels"]) == ("unlike", -1, (0, 0, 0))
        assert findings.env_steps == 3

    def test_lost_episodes_have_no_notes(self) -> None:
        lost = went("take 12", "end", end=EndReason.WORKER_LOST)
        shelf = Shelf()
        assert Attribution(shelf).examine([group(lost)]).notes == ()
        assert shelf.steps == 0
        assert most_replays(lost) == 0

    def test_an_engine_failure_gives_no_labels(self) -> None:
        class Broken(Shelf):
            def replay(
                self, task: Task, actions: Sequence[str], *, to_error: bool = False
            ) -> Replay:
                if len(actions) < 3:
                    raise EnvBackendError("the engine is gone")
                return super().replay(task, actions)

        findings = Attribution(Broken()).examine([group(went("think", "take 12", "end"))])
        (note,) = findings.notes
        assert (note.label, note.evidence["labels"], findings.env_steps) == ("fault", (0, 0, 0), 3)

    def test_replayed_env_steps_are_counted(self) -> None:
        shelf = Shelf()
        study: Study = Attribution(shelf)
        episodes = (
            went("think", "take 12", "end"),
            went("end", score=0.0),
            went("fail", score=0.0),
        )
        assert study.examine([group(*episodes)]).env_steps == shelf.steps > 0

    def test_the_longest_groups_are_left_out_beyond_the_replay_limit(self) -> None:
        short, long = went("take 12", "end"), went("think", "take 12", "end")
        groups = [group(long, id="long"), group(short, id="a"), group(short, id="b")]
        shelf = Shelf()
        findings = Attribution(shelf, max_replays=10).examine(groups)
        wholes = [(note.group_id, note.label) for note in findings.notes if note.step < 0]
        assert wholes == [("long", "left_out"), ("a", "examined"), ("b", "examined")]
        assert findings.env_steps == shelf.steps
        assert Attribution(shelf, max_replays=0).examine(groups).env_steps == 0

    def test_notes_contain_the_score_and_the_label_of_each_step(self) -> None:
        done = went("think", "take 12", "end")
        whole, *steps = (
            Attribution(Shelf()).examine([group(went("end", score=0.0), done)]).notes[1:]
        )
        assert (whole.index, whole.value, whole.source) == (1, 1.0, "replay")
        assert [(note.step, note.label, note.value) for note in steps] == [
            (0, "bad", -1.0), (1, "good", 1.0), (2, "good", 1.0)
        ]  # fmt: skip


KNOWLEDGE: dict[str, tuple[str, ...]] = {
    "alfworld": ("look", "inventory"),
    "appworld": (
        "print(apis.api_docs.show_app_descriptions())",
        "print(apis.api_docs.show_api_descriptions(app_name='spotify'))",
    ),
}
"""Actions that show something, and change nothing."""


def played(env: TaskEnv, task: Task, actions: Sequence[str]) -> Trajectory:
    env.reset(seed=0, options={"task": task})
    for action in actions:
        *_, terminated, truncated, _ = env.step(action)
        assert not truncated
        if terminated:
            break
    return trajectory_of(env)


def labelled(benchmark: str, env: TaskEnv, actions: Sequence[str]) -> list[int]:
    from coevo_gym.core.benchmark import get_benchmark

    done = played(env, env.task, actions)
    assert done.success
    findings = Attribution(get_benchmark(benchmark)).examine([group(done, task=env.task)])
    assert findings.notes[0].label == "examined"
    return labels_of(Notes(findings.notes), "g", 0, len(actions))


class TestNeededLookups:
    """A step that is needed only because of what it shows is never bad."""

    def test_a_needed_lookup_is_not_labelled_bad_in_webshop(self) -> None:
        env = make_env("webshop")
        search, product, *rest = env.task.solution
        look = ("click[description]", "click[< prev]")
        assert labelled("webshop", env, (search, product, *look, *rest)) == [
            1, 1, 0, -1, *[1] * len(rest)
        ]  # fmt: skip

    def test_a_needed_lookup_is_not_labelled_bad_in_bfcl(self) -> None:
        """The list of files names what is sorted, and the sorted text is what is posted."""
        env = make_env("bfcl", "bfcl/multi_turn_base_4")
        first, *rest = env.task.solution
        extra = "[ls(a=True)]", "[pwd()]"
        actual = labelled("bfcl", env, (first, *extra, *rest))
        assert actual == [1, -1, 0, *[1] * len(rest)]

    @pytest.mark.skipif(bool(needs.alfworld()), reason=needs.alfworld())
    def test_a_needed_lookup_is_not_labelled_bad_in_alfworld(self) -> None:
        env = make_env("alfworld")
        first, *rest = env.task.solution
        actual = labelled("alfworld", env, (*KNOWLEDGE["alfworld"], first, *rest))
        assert actual == [0, 0, *[1] * (len(rest) + 1)]

    @pytest.mark.slow
    @pytest.mark.skipif(bool(needs.isolation()), reason=needs.isolation())
    @pytest.mark.usefixtures("appworld_root")
    def test_a_needed_lookup_is_not_labelled_bad_in_appworld(self) -> None:
        env = make_env("appworld")
        actions = [f"```python\n{code}\n```" for code in KNOWLEDGE["appworld"]]
        actual = labelled("appworld", env, (*actions, *env.task.solution))
        assert actual == [0, 0, *[1] * len(env.task.solution)]


def note(index: int, step: int, value: float) -> Note:
    return Note(
        kind="attribution", task_id=TRAIN[0].id, group_id="g", index=index, step=step, value=value
    )


@pytest.mark.parametrize(
    ("benchmark", "n_tasks"),
    [
        ("webshop", 8),
        ("bfcl", 12),
        pytest.param("alfworld", 4, marks=pytest.mark.slow),
        pytest.param("appworld", 1, marks=pytest.mark.slow),
    ],
)
def test_attribution_distinguishes_planted_steps_from_reference_steps(
    benchmark: str,
    n_tasks: int,
    engine: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine(benchmark)
    monkeypatch.syspath_prepend(BENCH.parent)
    spec = importlib.util.spec_from_file_location("attribution", BENCH)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    assert bench.main([benchmark, "--tasks", str(n_tasks)]) == 0, capsys.readouterr()


class TestTheCredit:
    def test_the_credit_reads_labels_from_notes(self) -> None:
        groups = [group(went("a", "b"), went("a", "b", score=0.0))]
        notes = Notes([note(0, 0, 1.0), note(0, 1, 1.0), note(1, 1, -1.0), note(0, -1, 1.0)])
        credit: Estimator = AttributionCredit(alpha=0.3)
        assert credit(groups, notes) == [
            decoupled_advantages([[1, 1], [0, -1]], [1.0, 0.0], alpha=0.3)
        ]

    def test_without_notes_every_step_gets_the_outcome_advantage(self) -> None:
        groups = [group(went("a", "b"), went("a", score=0.0))]
        high = 1.0 / (1.0 + 2e-8)
        assert AttributionCredit()(groups, NO_NOTES) == [
            [pytest.approx([high] * 2), pytest.approx([-high])]
        ]
        assert AttributionCredit(outcome=False)(groups, NO_NOTES) == [[[0.0, 0.0], [0.0]]]

    def test_lost_episodes_get_zero_advantages_and_are_in_no_mean(self) -> None:
        lost = replace(went("a", "b", score=0.0), end_reason=EndReason.MODEL_LOST)
        whole = [went("a", "b"), went("a", score=0.0)]
        notes = Notes([note(2, 0, -1.0), note(0, 0, 1.0), note(1, 0, -1.0)])
        for credit in (AttributionCredit(), AttributionCredit(scheme="allocation")):
            ((*rest, gone),) = credit([group(*whole, lost)], notes)
            assert [rest] == credit([group(*whole)], notes)
            assert gone == [0.0, 0.0]

    def test_the_credit_uses_the_configured_outcome(self) -> None:
        groups = [group(went("a", score=0.5), went("a", score=0.0))]
        assert AttributionCredit()(groups, NO_NOTES) == [[[0.0], [0.0]]]
        ((first, second),) = AttributionCredit(Outcome("score"))(groups, NO_NOTES)
        assert first[0] > 0.0 > second[0]  # type: ignore[index]


class TestTheRecord:
    def test_metrics_give_the_shares_of_labels_and_unlabelled_steps(self) -> None:
        record: Memory = AttributionRecord(AttributionCredit())
        episodes = [
            group(went("think", "take 12", "end"), went("take 7", "end", score=0.0), id="a"),
            group(went("end"), id="b"),
        ]
        record.note(Notes(Attribution(Shelf()).examine(episodes).notes))
        assert record.metrics() == {
            "good": 2 / 6, "bad": 1 / 6, "unlabelled": 3 / 6,
            "left_out": 0.0, "unlike": 1 / 3, "faults": 0.0, "unanswered": 0.0, "flipped": 0.0,
        }  # fmt: skip
        record.note(NO_NOTES)
        assert record.metrics() == {}

    def test_flipped_advantages_log_one_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        """An episode of ten good steps that fails, beside one of ten bad steps that succeeds."""
        about: dict[str, Any] = {"kind": "attribution", "task_id": "t", "group_id": "g"}
        notes = Notes(
            Note(**about, index=index, label="examined", value=value,
                 evidence={"labels": [label] * 10})
            for index, (value, label) in enumerate([(0.0, 1), (1.0, -1)])
        )  # fmt: skip
        record = AttributionRecord(AttributionCredit(alpha=0.2))
        for _ in range(2):
            record.note(notes)
        assert record.metrics()["flipped"] == 1.0
        assert len(caplog.records) == 1
        assert "flipped=1.000" in caplog.text
        by_length = AttributionRecord(AttributionCredit(alpha=0.2, length_norm=True))
        by_length.note(notes)
        assert by_length.metrics()["flipped"] == 0.0
