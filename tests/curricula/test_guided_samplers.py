"""Samplers around a method: what they show, what they note, and that they go on where they were."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Guidance, Ticket
from coevo_gym.core.trajectory import Cue, EndReason, Group, Trajectory, View
from coevo_gym.curricula.pool_curriculum import PoolCurriculum
from coevo_gym.curricula.session.curriculum_session import CurriculumSession
from coevo_gym.curricula.session.sampler import EvolvingTaskSampler
from coevo_gym.curricula.session.vector_sampler import EvolvingVectorSampler
from coevo_gym.envs.vector import TaskVectorEnv
from coevo_gym.envs.wrappers import HashText
from coevo_gym.methods.method import Method
from coevo_gym.trainers.settings import GRPOConfig
from tests.curricula.episodes import TRAIN, Recorder
from tests.faults import break_engines
from tests.trainers.guiding import ByTally, Outcomes, Tally

K = 2
TIME = (Cue("Take your time.", "first", "time"),)


class Noted(Recorder):
    """Keeps the notes, and how many groups it had recorded by then."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[int, Notes]] = []

    def note(self, notes: Notes) -> None:
        self.noted.append((len(self.seen), notes))
        super().note(notes)


def method(**parts: Any) -> Method:
    tally = Tally()
    defaults = {"coach": ByTally(tally), "studies": (Outcomes(),), "memories": {"tally": tally}}
    return Method(**{"curriculum": Noted(), "learner": GRPOConfig(), **defaults, **parts})


def sampler(of: Method | None = None, **settings: Any) -> EvolvingTaskSampler:
    settings = {"group_size": K, **settings}
    return EvolvingTaskSampler(gym.make("Toy-v0"), method=of or method(), **settings)


def curriculum_of(env: EvolvingTaskSampler | EvolvingVectorSampler) -> Noted:
    assert isinstance(env.curriculum, Noted)
    return env.curriculum


def play(env: EvolvingTaskSampler) -> tuple[list[str], list[dict[str, Any]]]:
    """One episode of the reference; all that was shown, the last text included."""
    observation, info = env.reset()
    texts, infos = [observation], [info]
    for action in env.unwrapped.task.solution:  # type: ignore[attr-defined]
        observation, _, _, _, info = env.step(action)
        texts.append(observation)
        infos.append(info)
    return texts, infos


def episodes(env: EvolvingTaskSampler | EvolvingVectorSampler) -> list[Trajectory]:
    return [t for group in curriculum_of(env).seen for t in group.trajectories]


class TestGuidedSampler:
    def test_texts_and_cues_of_the_method_are_shown_and_recorded(self) -> None:
        env = sampler()
        plays = [play(env) for _ in range(2 * K)]
        for number, (texts, infos) in enumerate(plays):
            step, place = divmod(number, K)
            assert all(text.endswith(f" ({step} so far)") for text in texts)
            assert [info["cues"] for info in infos] == [TIME * (place % 2)] * len(infos)
            assert infos[-1]["success"]
        for number, (episode, (texts, _)) in enumerate(zip(episodes(env), plays, strict=True)):
            assert [step.shown for step in episode.steps] == texts[:-1]
            assert all("so far" not in step.observation for step in episode.steps)
            assert episode.interface == f"remark:({number // K} so far)"
            assert episode.cue_ids == ("time",) * (number % 2)

    def test_studies_run_when_a_group_closes(self) -> None:
        env = sampler()
        assert env.guiding is not None
        play(env)
        assert (env.notes, curriculum_of(env).noted) == (Notes(), [])
        play(env)
        ((recorded, notes),) = curriculum_of(env).noted
        assert (recorded, notes, len(notes)) == (1, env.notes, K)
        assert env.guiding.memories["tally"].metrics() == {"told": 1.0}
        numbers = env.guiding.take_metrics()
        assert numbers["notes.outcome.solved"] == K

    def test_memories_are_updated_once_per_step(self) -> None:
        env = sampler(groups_per_step=3)
        for _ in range(7 * K):
            play(env)
        assert [(n, len(notes)) for n, notes in curriculum_of(env).noted] == [
            (3, 3 * K),
            (6, 3 * K),
        ]
        assert {t.interface for t in episodes(env)[: 3 * K]} == {"remark:(0 so far)"}

    @pytest.mark.parametrize("steps", [1, 2])
    @pytest.mark.parametrize("cut", range(5))
    def test_a_saved_sampler_continues_the_same_stream(self, steps: int, cut: int) -> None:
        whole = sampler(groups_per_step=steps)
        expected = [play(whole) for _ in range(4 * K)]
        first, second = (sampler(groups_per_step=steps) for _ in range(2))
        plays = [play(first) for _ in range(cut)]
        first.reset()  # is run again
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        plays += [play(second) for _ in range(4 * K - cut)]
        assert plays == expected
        log = curriculum_of(first).noted + curriculum_of(second).noted
        assert [notes for _, notes in log] == [n for _, n in curriculum_of(whole).noted]

    def test_a_state_saved_without_a_method_is_refused(self) -> None:
        bare = EvolvingTaskSampler(gym.make("Toy-v0"), Noted(), group_size=K)
        with pytest.raises(ConfigError, match="contains the memories"):
            sampler().load_state_dict(bare.state_dict())

    def test_an_episode_cut_from_outside_is_recorded_with_the_text_shown(self) -> None:
        env = sampler()
        env.reset()
        env.step("press red")
        env.cut(EndReason.MAX_TOKENS)
        env.reset()
        env.step("press red")
        env.reset()  # as a TimeLimit around the sampler does
        ends = [(t.end_reason, len(t.steps)) for t in episodes(env)]
        assert ends == [(EndReason.MAX_TOKENS, 1), (EndReason.TIME_LIMIT, 1)]
        assert all("so far" in t.steps[0].shown for t in episodes(env))

    def test_an_explicit_task_is_shown_without_texts_and_cues_of_the_method(self) -> None:
        env = sampler()
        play(env)
        observation, info = env.reset(options={"task": TRAIN[0]})
        assert "so far" not in observation
        assert "cues" not in info
        observation, *_, info = env.step("press red")
        assert "so far" not in observation
        assert "cues" not in info

    def test_wrappers_that_convert_text_are_allowed_only_outside_the_sampler(self) -> None:
        inside = EvolvingTaskSampler(
            gym.wrappers.TransformObservation(gym.make("Toy-v0"), str.upper, None),
            method=method(),
            group_size=K,
        )
        texts, _ = play(inside)
        assert all(t.endswith(" (0 so far)") and t[:-11].isupper() for t in texts)
        around = HashText(sampler())
        assert isinstance(around.reset()[0], np.ndarray)
        broken = EvolvingTaskSampler(HashText(gym.make("Toy-v0")), method=method(), group_size=K)
        with pytest.raises(ConfigError, match=r"returned ndarray.*outside the sampler, not inside"):
            broken.reset()
        assert broken.ticket is None

    def test_a_method_without_a_coach_leaves_text_unchanged(self) -> None:
        env = EvolvingTaskSampler(
            HashText(gym.make("Toy-v0")), method=method(coach=None), group_size=K
        )
        for _ in range(K):
            play(env)
        assert len(env.notes) == K
        assert all(t.interface == "" and not t.cue_ids for t in episodes(env))

    def test_a_sampler_without_a_method_equals_one_with_an_empty_method(self) -> None:
        bare = EvolvingTaskSampler(gym.make("Toy-v0"), Noted(), group_size=K)
        empty = sampler(method(coach=None, studies=(), memories={}))
        for env in (bare, empty):
            plays = [play(env) for _ in range(2 * K)]
            assert all("so far" not in text for texts, _ in plays for text in texts)
            assert curriculum_of(env).noted == []
        assert curriculum_of(bare).seen == curriculum_of(empty).seen
        assert (bare.guiding, bare.notes) == (None, Notes())
        assert "method" not in bare.state_dict()

    @pytest.mark.parametrize(
        "more",
        [
            {"curriculum": "static"},
            {"evolve_every_groups": 3},
            {"session": CurriculumSession(Recorder())},
        ],
    )
    def test_arguments_that_the_method_sets_are_refused(self, more: dict[str, Any]) -> None:
        for make in (
            lambda: sampler(**more),
            lambda: EvolvingVectorSampler(TaskVectorEnv("Toy-v0", 2), method=method(), **more),
        ):
            with pytest.raises(ConfigError, match="create the sampler without method="):
                make()

    def test_a_guided_sampler_has_no_spec(self) -> None:
        assert sampler().spec is None


class Finds:
    """An evolver that finds the same tasks in each round."""

    def __init__(self) -> None:
        self.rounds: list[str] = []

    def run(self, round: Round) -> RoundResult:
        self.rounds.append(round.id)
        return RoundResult(round_id=round.id, accepted=tuple(TRAIN[:5]))


def test_the_first_round_of_a_method_is_run_once() -> None:
    first = Round(id="first", n_unguided=5, budget=5, seed=1)
    methods = [
        replace(method(), curriculum=PoolCurriculum(), evolver=Finds(), first_round=first)
        for _ in range(3)
    ]
    env, manual, resumed = (
        sampler(methods[0]),
        sampler(methods[1], evolve="manual"),
        sampler(methods[2]),
    )
    play(env)
    play(env)
    with pytest.raises(ConfigError, match="pool is empty"):
        manual.reset()
    assert manual.evolve() is not None
    manual.reset()
    resumed.load_state_dict(env.state_dict())
    resumed.reset()
    ran = [one.evolver.rounds for one in methods if isinstance(one.evolver, Finds)]
    assert ran == [["first"], ["first"], []]


class Numbers:
    """A coach whose interface says how often it was asked, over all episodes."""

    def __init__(self) -> None:
        self.version, self.asked = "numbers", list[View]()

    def guide(self, tickets: Sequence[Ticket]) -> list[Guidance]:
        return [Guidance(self) for _ in tickets]

    def show(self, view: View) -> View:
        self.asked.append(view)
        return replace(view, observation=f"{view.observation} [{len(self.asked)}]")


@pytest.mark.parametrize("mode", ["Disabled", "NextStep"])
class TestGuidedVectorSampler:
    def drive(self, envs: EvolvingVectorSampler, steps: int) -> list[list[list[str]]]:
        """Follow the solutions at paces of their own; what each episode of each env was shown."""
        bare = envs.unwrapped
        assert isinstance(bare, TaskVectorEnv)
        observations, infos = envs.reset()
        transcripts = [[[text]] for text in observations]
        for number in range(steps):
            was_over = bare.over
            actions = []
            for i in range(envs.num_envs):
                at = len(bare.unwrapped_env(i).view.history)
                solution = bare.unwrapped_env(i).task.solution
                actions.append("done" if (number + i) % 7 == 0 else solution[min(at, 3)])
            observations, _, terminated, truncated, infos = envs.step(actions)
            assert infos["_cues"].all()
            assert all(cues in ((), TIME) for cues in infos["cues"])
            for i, text in enumerate(observations):
                if was_over[i]:
                    transcripts[i].append([])
                transcripts[i][-1].append(text)
            over = np.logical_or(terminated, truncated)
            if over.any() and mode_of(envs) == "Disabled":
                before = observations
                observations, infos = envs.reset(options={"reset_mask": over})
                for i, text in enumerate(observations):
                    if over[i]:
                        transcripts[i].append([text])
                        assert infos["_cues"][i]
                    else:
                        assert text == before[i]
        return transcripts

    def test_each_env_shows_texts_of_its_own_episodes(self, mode: str) -> None:
        envs = EvolvingVectorSampler(
            TaskVectorEnv("Toy-v0", 3, autoreset_mode=mode), method=method(), group_size=K
        )
        transcripts = self.drive(envs, 25)
        remarks = [
            text.rpartition(" (")[2] for env in transcripts for texts in env for text in texts
        ]
        assert all(text.endswith(" so far)") for text in remarks)
        assert len(set(remarks)) > 3
        seen = {tuple(texts[:-1]) for env in transcripts for texts in env}
        for episode in episodes(envs):
            texts = tuple(step.shown for step in episode.steps)
            assert texts in seen
            assert all(t.endswith(episode.interface.partition(":")[2]) for t in texts)
        groups: list[Group] = curriculum_of(envs).seen
        assert len(groups) > 5
        assert [len(notes) for _, notes in curriculum_of(envs).noted] == [K] * len(groups)
        cues = [t.cue_ids for group in groups for t in group.trajectories]
        assert cues == [(), ("time",)] * len(groups)

    def test_each_text_is_written_once_and_history_contains_the_texts_shown(
        self, mode: str
    ) -> None:
        numbers = Numbers()
        envs = EvolvingVectorSampler(
            TaskVectorEnv("Toy-v0", 2, autoreset_mode=mode),
            method=method(coach=numbers),
            group_size=K,
        )
        transcripts = self.drive(envs, 12)
        every = [text.rpartition("[")[2] for env in transcripts for texts in env for text in texts]
        assert sorted(map(int, (t[:-1] for t in every))) == [*range(1, len(numbers.asked) + 1)]
        texts = {text for env in transcripts for texts in env for text in texts}
        assert all(past.observation in texts for view in numbers.asked for past in view.history)

    def test_an_episode_lost_by_its_engine_is_guided_again(
        self, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        envs = EvolvingVectorSampler(
            TaskVectorEnv("Toy-v0", 2, autoreset_mode=mode), method=method(), group_size=K
        )
        bare = envs.unwrapped
        assert isinstance(bare, TaskVectorEnv)
        before, _ = envs.reset()
        with monkeypatch.context() as patch:
            broken = bare.unwrapped_env(1)
            break_engines(patch, "_act", lambda env: env is broken)
            observations, *_, infos = envs.step(["press red"] * 2)
        assert infos["end_reason"][1] == EndReason.WORKER_LOST
        assert observations[1] == before[1]
        assert infos["cues"][1] == TIME
        if mode == "Disabled":
            observations, infos = envs.reset(options={"reset_mask": bare.over})
        else:
            observations, *_, infos = envs.step(["press red"] * 2)
        assert observations[1].endswith(" (0 so far)")
        assert infos["cues"][1] == TIME  # the same place of the group


def mode_of(envs: EvolvingVectorSampler) -> str:
    bare = envs.unwrapped
    assert isinstance(bare, TaskVectorEnv)
    return bare.autoreset_mode.value
