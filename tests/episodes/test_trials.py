"""Tasks that are tried again, with reflections on the earlier tries."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import pytest

from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.core.errors import BudgetSpent, ConfigError, EnvBackendError, TaskError
from coevo_gym.core.seams import Act
from coevo_gym.core.spend import Usage
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import Cue, EndReason, EvalTrajectory, View
from coevo_gym.episodes import EnvPool, Runner, evaluate
from coevo_gym.episodes.episode import Finished
from coevo_gym.episodes.runner import Admission
from coevo_gym.episodes.trials import (
    CutAtRepeats,
    FailedTrial,
    KeptTrials,
    TrialEpisode,
    TrialLesson,
    Trials,
    run_trials,
    solved_shares,
)
from tests.episodes.test_streaming import Streaming
from tests.faults import BreaksOn
from tests.formulas.by_name import FORMULAS, are_equal
from tests.toy import BENCHMARK

VAL = [  # without an action twice in a row, at which an episode would be cut
    task for task in BENCHMARK.tasks(Split.VAL) if all(a != b for a, b in pairwise(task.solution))
][:4]
FREE = BENCHMARK.open(BENCHMARK.tasks(Split.TRAIN)[0])
REFERENCES = {task.instruction: task.solution for task in VAL}
PLAN = "Press the buttons as you were told."
ONE_QUESTION = Usage(calls=1, prompt_tokens=20, completion_tokens=3, usd=0.5)


class NeedsToBeTold:
    """Solves a task once it has been told to, and gives up otherwise."""

    def __init__(self, *, once: str = PLAN) -> None:
        self.once = once
        self.views: list[View] = []
        self._right = ScriptedAgent(REFERENCES)

    def act(self, views: Sequence[View]) -> list[Act]:
        self.views += views
        return [
            self._right.act([view])[0]
            if any(cue.text == self.once for cue in view.cues)
            else Act("done")
            for view in views
        ]


class Reflector:
    """Says the same of every failure, and keeps what it was asked."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked = texts or (PLAN,), list[list[FailedTrial]]()

    def __call__(self, failures: Sequence[FailedTrial]) -> list[TrialLesson]:
        self.asked.append(list(failures))
        text = self.texts[min(len(self.asked), len(self.texts)) - 1]
        return [TrialLesson(text, ONE_QUESTION)] * len(failures)


@pytest.mark.parametrize(
    ("formula", "inputs", "expected"),
    [
        (
            "reflexion.trials",
            {"tasks": [[0, 1, 0], [1, 0, 0], [0, 0, 0]], "n": 3, "keep": 2},
            {"rates": [1 / 3, 2 / 3, 2 / 3], "reflections": [1, 0, 2]},
        ),
        (
            "reflexion.trials",
            {"tasks": [[0, 0, 0, 0], [0, 0, 0, 1]], "n": 4, "keep": 1},
            {"rates": [0, 0, 0, 0.5], "reflections": [1, 1]},
        ),
        ("reflexion.cut", {"actions": ["a", "b", "b", "c"]}, 3),
        ("reflexion.cut", {"actions": ["a", "b", "a"]}, 3),
        ("reflexion.cut", {"actions": ["a", "a"]}, 2),
        ("reflexion.cut", {"actions": []}, 0),
    ],
)
def test_the_reflexion_formulas_give_the_expected_values(
    formula: str, inputs: Any, expected: Any
) -> None:
    assert are_equal(FORMULAS[formula](inputs), expected)


def test_a_policy_that_needs_a_reflection_solves_all_tasks_in_trial_two(envs: EnvPool) -> None:
    agent, reflect = NeedsToBeTold(), Reflector()
    trials = run_trials(agent, reflect, VAL, envs)
    assert trials.rates_by_trial == (0.0, 1.0, 1.0)
    assert trials.reflections == {(task.id, 0): PLAN for task in VAL}
    (failures,) = reflect.asked
    assert [failure.task for failure in failures] == list(VAL)
    assert {type(failure.trajectory) for failure in failures} == {EvalTrajectory}
    views = [view for view in agent.views if view.cues]
    assert {(cue.text, cue.place, cue.strip) for view in views for cue in view.cues} == {
        (PLAN, "first", False)
    }
    assert trials.env_steps == len(VAL) + sum(len(task.solution) for task in VAL)


def test_reflections_do_not_depend_on_the_order_in_which_episodes_end(envs: EnvPool) -> None:
    class Loops(Streaming):
        def _one(self, view: View) -> Act:
            return Act("look")

    asked = []
    for delays in ((1,), (9, 1, 5, 2)):
        reflect = Reflector()
        run_trials(Loops(delays), reflect, VAL, envs, n=2)
        asked.append([failure.task for failures in reflect.asked for failure in failures])
    assert asked == [[*VAL], [*VAL]]


def test_the_first_trial_gives_the_same_lines_as_an_evaluation(envs: EnvPool) -> None:
    agent = ScriptedAgent(REFERENCES | {VAL[0].instruction: ("done",)})
    evaluation, storage = evaluate(agent, VAL, envs, seed=5), KeptTrials()
    run_trials(agent, Reflector(), VAL, envs, n=1, seed=5, results=storage)
    assert tuple(storage.episodes.lines[task.id, 0] for task in VAL) == evaluation.lines


def test_cues_are_given_in_each_trial_and_solved_tasks_may_be_retried(envs: EnvPool) -> None:
    def cues(task: Task) -> tuple[Cue, ...]:
        return (Cue(PLAN, "first", "advice"),) if task != VAL[0] else ()

    agent, reflect = NeedsToBeTold(), Reflector("")
    trials = run_trials(
        agent, reflect, VAL[:3], envs, n=2, cut=False, cues=cues, until_solved=False
    )
    outcomes = {(line.id, line.sample): line.success for line in trials.lines}
    assert outcomes == {(task.id, trial): task != VAL[0] for task in VAL[:3] for trial in range(2)}
    instructions = {view.instruction for view in agent.views if view.cues}
    assert instructions == {task.instruction for task in VAL[1:3]}


def test_solved_tasks_are_not_retried_and_the_latest_reflections_are_given(envs: EnvPool) -> None:
    agent = NeedsToBeTold(once="three")
    reflect = Reflector("one", "two", "three", "four")
    trials = run_trials(agent, reflect, VAL[:2], envs, n=5, keep=2)
    assert trials.rates_by_trial == (0.0, 0.0, 0.0, 1.0, 1.0)
    assert [failures[0].earlier for failures in reflect.asked] == [(), ("one",), ("one", "two")]
    texts = list(dict.fromkeys(tuple(cue.text for cue in view.cues) for view in agent.views))
    assert texts == [(), ("one",), ("one", "two"), ("two", "three")]


def test_trials_continue_if_a_reflection_is_empty(envs: EnvPool) -> None:
    agent, reflect = NeedsToBeTold(), Reflector("", PLAN)
    trials = run_trials(agent, reflect, VAL, envs)
    assert trials.rates_by_trial == (0.0, 0.0, 1.0)
    assert set(trials.reflections.values()) == {PLAN}
    assert trials.reflecting == ONE_QUESTION.times(2 * len(VAL)), "questions without an answer, too"
    assert trials.usage == trials.reflecting
    assert [line.sample for line in trials.final_lines] == [2] * len(VAL)


def test_a_lost_episode_counts_as_a_fault_not_a_failure() -> None:
    pool = EnvPool(lambda: BreaksOn(gym.make("Toy-v0"), "break"))
    scripts = REFERENCES | {VAL[0].instruction: ("break",), VAL[1].instruction: ("done",)}
    reflect = Reflector()
    storage = KeptTrials()
    trials = run_trials(ScriptedAgent(scripts), reflect, VAL, pool, n=2, results=storage)
    assert [[one.task for one in failures] for failures in reflect.asked] == [[VAL[1]]]
    assert trials.rates_by_trial == pytest.approx((2 / 3, 2 / 3))
    assert (trials.n_lost, trials.lost_steps) == (1, 1)
    whole = run_trials(ScriptedAgent(REFERENCES), reflect, VAL, pool, n=2, results=storage)
    assert whole.rates_by_trial == (0.75, 0.75)
    assert whole.n_lost == 0


def test_a_task_counts_only_in_trials_before_its_lost_episode() -> None:
    class Unlucky:
        """Fails each task, and then breaks the env of the first."""

        def act(self, views: Sequence[View]) -> list[Act]:
            return [
                Act("break" if view.cues and view.instruction == VAL[0].instruction else "done")
                for view in views
            ]

    pool = EnvPool(lambda: BreaksOn(gym.make("Toy-v0"), "break"))
    trials = run_trials(Unlucky(), Reflector(), VAL[:2], pool, n=3)
    assert sorted(line.key for line in trials.lines) == sorted(
        [(VAL[0].id, 0), (VAL[1].id, 0), (VAL[1].id, 1), (VAL[1].id, 2)]
    )
    assert (trials.rates_by_trial, trials.n_lost) == ((0.0, 0.0, 0.0), 1)
    assert [line.key for line in trials.final_lines] == [(VAL[1].id, 2)]
    outcomes = [("a", 0, False), ("b", 0, False), ("b", 1, True)]
    assert solved_shares(outcomes, 3) == (0.0, 1.0, 1.0)


def test_trials_raise_if_every_episode_is_lost() -> None:
    pool = EnvPool(lambda: BreaksOn(gym.make("Toy-v0"), "break"))
    agent = ScriptedAgent({task.instruction: ("break",) for task in VAL})
    with pytest.raises(EnvBackendError, match="All 2 trial episodes were lost"):
        run_trials(agent, Reflector(), VAL[:2], pool)


@pytest.mark.parametrize(("cut", "steps"), [(True, 4), (False, 6)])
def test_an_episode_ends_at_a_repeated_action_only_if_cutting_is_on(
    envs: EnvPool, cut: bool, steps: int
) -> None:
    script = ("look", "press red", "look", "look", "press blue", "done")
    agent, storage = ScriptedAgent(dict.fromkeys(REFERENCES, script)), KeptTrials()
    run_trials(agent, Reflector(), VAL[:1], envs, n=1, cut=cut, results=storage)
    ((key, line),) = storage.episodes.lines.items()
    assert line.steps == len(storage.episodes.trajectories[key].actions) == steps
    assert (line.end_reason == EndReason.AGENT_DONE) == cut


def test_the_agent_is_asked_only_for_episodes_that_continue() -> None:
    asked: list[int] = []

    class Counting:
        def act(self, views: Sequence[View]) -> list[Act]:
            asked.append(len(views))
            return [Act("look")] * len(views)

    agent = CutAtRepeats(Counting())
    envs = EnvPool(lambda: gym.make("Toy-v0", disable_env_checker=True), max_envs=4)
    episodes = [TrialEpisode(task, 0) for task in VAL]
    ended = list(Runner(envs).run(episodes, agent))
    assert asked == [4, 4]
    assert all(isinstance(one, Finished) and one.env_steps == 2 for one in ended)


@pytest.mark.parametrize("stored", [True, False])
def test_stored_episodes_and_reflections_are_not_repeated(envs: EnvPool, stored: bool) -> None:
    whole, storage = KeptTrials(), KeptTrials()
    trials = run_trials(NeedsToBeTold(), Reflector(), VAL, envs, results=whole)
    # As if it had been killed after the first trial, and with one reflection missing.
    for (id, trial), line in whole.episodes.lines.items():
        if trial == 0:
            storage.episodes.lines[id, trial] = line
            if stored:
                storage.episodes.trajectories[id, trial] = whole.episodes.trajectories[id, trial]
    storage.lessons = {(task.id, 0): TrialLesson(PLAN, ONE_QUESTION) for task in VAL[1:]}
    agent, reflect, done = NeedsToBeTold(), Reflector(), list[int]()
    again = run_trials(agent, reflect, VAL, envs, results=storage, on_done=done.append)
    assert (again.rates_by_trial, again.reflections) == (trials.rates_by_trial, trials.reflections)
    assert again.reflecting == trials.reflecting == ONE_QUESTION.times(len(VAL))
    assert sorted(again.lines, key=lambda line: line.key) == sorted(
        trials.lines, key=lambda line: line.key
    )
    assert [[one.task for one in failures] for failures in reflect.asked] == [[VAL[0]]]
    assert done == ([] if stored else [4]) + [5, 6, 7, 8]


def test_reflections_over_the_budget_are_made_on_resume(envs: EnvPool) -> None:
    class Poor(Reflector):
        def __call__(self, failures: Sequence[FailedTrial]) -> Sequence[TrialLesson | None]:  # type: ignore[override]
            return [*super().__call__(failures)[1:], None]

    storage, agent = KeptTrials(), NeedsToBeTold()
    with pytest.raises(BudgetSpent, match="no room for 1 reflections"):
        run_trials(agent, Poor(), VAL, envs, results=storage)
    assert len(storage.lessons) == len(VAL) - 1
    n_views, reflect = len(agent.views), Reflector()
    trials = run_trials(agent, reflect, VAL, envs, results=storage)
    assert trials.rates_by_trial == (0.0, 1.0, 1.0)
    assert [[one.task for one in failures] for failures in reflect.asked] == [[VAL[-1]]]
    assert all(view.cues for view in agent.views[n_views:])


class Closing(Admission):
    """Lets ``n`` episodes begin, and then closes."""

    def __init__(self, n: int) -> None:
        self.n = n

    def allows(self, live: Sequence[Usage]) -> bool:
        self.n -= 1
        if self.n < 0:
            self.closed = KeyboardInterrupt()
        return super().allows(live)


def test_no_reflections_are_requested_after_a_stop(envs: EnvPool) -> None:
    reflect, storage = Reflector(), KeptTrials()
    with pytest.raises(KeyboardInterrupt):
        run_trials(NeedsToBeTold(), reflect, VAL, envs, results=storage, admission=Closing(2))
    assert (len(storage.episodes.lines), reflect.asked) == (2, [])


def test_a_stop_with_nothing_left_to_run_is_ignored(envs: EnvPool) -> None:
    agent = ScriptedAgent(REFERENCES)
    assert evaluate(agent, VAL, envs, admission=Closing(len(VAL))).success_rate == 1.0
    with pytest.raises(KeyboardInterrupt):
        evaluate(agent, VAL, envs, admission=Closing(len(VAL) - 1))


def test_invalid_settings_and_open_tasks_are_refused(envs: EnvPool) -> None:
    for settings in ({"n": 0}, {"keep": 0}):
        with pytest.raises(ConfigError, match="at least 1"):
            run_trials(NeedsToBeTold(), Reflector(), VAL, envs, **settings)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="open task"):
        TrialEpisode(FREE, 0)


def test_trials_are_not_accepted_as_an_evaluation() -> None:
    """No function that compares evaluations or trains on episodes accepts trials."""
    from coevo_gym.episodes.evaluation import Evaluation
    from coevo_gym.runs.evals.comparison import compare
    from coevo_gym.trainers.loop import Loop

    assert not issubclass(Trials, Evaluation)
    assert not issubclass(Evaluation, Trials)
    for function in (compare, Loop.__init__, evaluate):
        assert "Trials" not in str(inspect.signature(function))
