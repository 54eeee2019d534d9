"""The loop guides episodes and studies groups; without parts that do so, nothing changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from numpy.random import Generator

from coevo_gym.core.advice import AdviceState
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Signal
from coevo_gym.core.notes import NO_NOTES, Findings, Note, Notes
from coevo_gym.core.seams import Act, Coach, Guidance, Memory, Study, Ticket
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group, View
from coevo_gym.curricula.guiding import Guiding
from coevo_gym.curricula.session.curriculum_session import CurriculumSession
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.episodes.evaluation import evaluate
from coevo_gym.trainers.loop import Events, Loop, LoopConfig, Metrics
from tests.trainers.episodes import group, trajectory
from tests.trainers.guiding import ByTally, Outcomes, Tally
from tests.trainers.test_loop import REFERENCES, TRAIN, VAL, Counts, Flaky, Rotation

GROUPS, SIZE = 3, 2


class Noting(Rotation):
    """A curriculum that keeps the notes, and when it was told them."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__(tasks)
        self.noted: list[tuple[int, Notes]] = []

    def note(self, notes: Notes) -> None:
        self.noted.append((len(self.recorded), notes))

    def plan(self, rng: Generator) -> None:
        return None


class Told(Events):
    """Keeps the order of what happened."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.notes: list[Notes] = []
        self.advice: list[Mapping[str, Sequence[AdviceState]]] = []
        self.groups: list[Group] = []
        self.metrics: list[Metrics] = []

    def on_groups(self, groups: Sequence[Group], signals: Sequence[Signal]) -> None:
        self.calls.append("groups")
        self.groups += groups

    def on_notes(self, notes: Notes) -> None:
        self.calls.append("notes")
        self.notes.append(notes)

    def on_advice(self, changes: Mapping[str, Sequence[AdviceState]]) -> None:
        self.calls.append("advice")
        self.advice.append(changes)

    def on_credit(self, groups: Sequence[Group], advantages: Sequence[Any]) -> None:
        self.calls.append("credit")

    def on_step(self, metrics: Metrics) -> None:
        self.calls.append("step")
        self.metrics.append(metrics)


class ReadsNotes(Counts):
    """A learner that keeps the notes that its advantages come from."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Notes] = []

    def advantages(self, groups: Sequence[Group], notes: Notes = NO_NOTES) -> list[list[float]]:
        self.notes.append(notes)
        return super().advantages(groups)


class Watching:
    """Plays references, whatever is remarked, and keeps its views."""

    def __init__(self) -> None:
        self.views: list[View] = []

    def act(self, views: Sequence[View]) -> Sequence[Act]:
        self.views += views
        return REFERENCES.act(views)


class Parts:
    """A loop with a coach, a study and a memory."""

    def __init__(
        self, envs: EnvPool, *, guided: bool = True, memory: Tally | None = None, **settings: Any
    ) -> None:
        self.memory, self.study = memory or Tally(), Outcomes()
        self.coach = ByTally(self.memory)
        self.agent, self.events, self.learner = Watching(), Told(), ReadsNotes()
        self.curriculum = Noting(TRAIN[:5])
        guiding = Guiding(self.coach, (self.study,), {"tally": self.memory}) if guided else None
        defaults = {"max_steps": 3, "groups_per_step": GROUPS, "evaluate_every_steps": 0}
        config = LoopConfig(**(defaults | settings))
        self.loop = Loop(
            config,
            session=CurriculumSession(
                self.curriculum, group_size=SIZE, max_staleness=config.max_staleness
            ),
            agent=self.agent,
            learner=self.learner,
            envs=envs,
            events=self.events,
            guiding=guiding,
        )


@pytest.fixture(params=["lock_step", "async"])
def parts(request: pytest.FixtureRequest, envs: EnvPool) -> Parts:
    return Parts(envs, rollout=request.param)


def test_coach_study_and_memory_satisfy_their_protocols(parts: Parts) -> None:
    coach: Coach = parts.coach
    study: Study = parts.study
    memory: Memory = parts.memory
    assert (coach, study.kind, memory.metrics()) == (parts.coach, "outcome", {"told": 0.0})


class TestStep:
    def test_a_step_guides_rolls_out_studies_notes_and_learns_in_order(self, parts: Parts) -> None:
        parts.loop.run()
        assert parts.events.calls == ["groups", "notes", "credit", "step"] * 3
        asked = [id for batch in parts.coach.asked for id in batch]
        assert len(asked) == len(set(asked)) == 3 * GROUPS * SIZE
        in_steps = [{n.group_id for n in notes} for notes in parts.events.notes]
        assert [len(ids) for ids in in_steps] == [GROUPS] * 3
        assert [set(ids) for ids in parts.study.seen] == in_steps
        assert parts.learner.notes == parts.events.notes
        assert all(len(notes) == GROUPS * SIZE for notes in parts.events.notes)

    def test_the_curriculum_records_groups_before_it_gets_their_notes(self, parts: Parts) -> None:
        parts.loop.run()
        assert [n for n, _ in parts.curriculum.noted] == [GROUPS, 2 * GROUPS, 3 * GROUPS]
        assert [notes for _, notes in parts.curriculum.noted] == parts.events.notes

    def test_observations_and_cues_follow_the_memory(self, parts: Parts) -> None:
        parts.loop.run()
        actual = [(t.interface, t.cue_ids) for g in parts.events.groups for t in g.trajectories]
        assert actual == [
            (f"remark:({step} so far)", ("time",) if place else ())
            for step in range(3)
            for _ in range(GROUPS)
            for place in range(SIZE)
        ]
        for one in (t for one_group in parts.events.groups for t in one_group.trajectories):
            remark = one.interface.partition(":")[2]
            assert all(s.shown == f"{s.observation} {remark}" for s in one.steps)

    def test_metrics_contain_the_costs_and_counts_of_guidance(self, parts: Parts) -> None:
        parts.loop.run()
        numbers = parts.events.metrics[-1]
        assert numbers["notes.outcome"] == numbers["notes.outcome.solved"] == GROUPS * SIZE
        assert numbers["memory.tally.told"] == 3
        assert numbers["usage.outcomes.requests"] == 3 * GROUPS
        assert {"guide_s", "study_s", "rollout_s", "update_s", "round_s"} <= numbers.keys()
        assert numbers["study_s"] >= 0 <= numbers["guide_s"]
        of_kinds = [numbers[f"study_s.{study.kind}"] for study in parts.loop.guiding.studies]
        assert sum(of_kinds) == pytest.approx(numbers["study_s"])
        episodes = 3 * GROUPS * SIZE
        assert parts.loop.state.env_steps == episodes * len(TRAIN[0].solution) + 3 * GROUPS
        assert parts.loop.state.usage["outcomes"].calls == 3 * GROUPS

    def test_a_lost_episode_is_guided_again(self) -> None:
        setup = Parts(EnvPool(Flaky(broken=2)), max_steps=1)
        setup.loop.run()
        asked = [id for batch in setup.coach.asked for id in batch]
        assert len(asked) > GROUPS * SIZE
        assert all(t.interface for group in setup.events.groups for t in group.trajectories)


def test_study_only_steps_update_memories_but_not_the_learner(envs: EnvPool) -> None:
    setup = Parts(envs, study_only_steps=2)
    setup.loop.run()
    assert setup.events.calls == ["groups", "notes", "step"] * 2 + [
        *("groups", "notes", "credit", "step")
    ]
    assert (setup.learner.version, setup.memory.told, len(setup.learner.notes)) == (1, 3, 1)
    assert setup.events.groups[-1].trajectories[0].interface == "remark:(2 so far)"


def test_evaluation_episodes_get_no_guidance(envs: EnvPool) -> None:
    watching, setup = Watching(), Parts(envs, evaluate_every_steps=1)
    setup.loop.evaluate = lambda: evaluate(watching, VAL[:2], envs)
    setup.loop.run()
    assert len(watching.views) == 4 * sum(len(task.solution) for task in VAL[:2])
    assert not [view for view in watching.views if "so far" in view.observation or view.cues]
    assert all("so far" in view.observation for view in setup.agent.views)
    asked = [id for batch in setup.coach.asked for id in batch]
    assert len(asked) == 3 * GROUPS * SIZE


def test_a_running_episode_keeps_its_guidance_across_updates(envs: EnvPool) -> None:
    envs.max_envs = 5  # so that episodes are under way when a step ends
    setup = Parts(envs, rollout="async", max_staleness=2, max_steps=6)
    setup.loop.run()
    episodes = [t for group in setup.events.groups for t in group.trajectories]
    assert len({t.interface for t in episodes}) > 3
    for one in episodes:
        remark = one.interface.partition(":")[2]
        assert all(s.shown == f"{s.observation} {remark}" for s in one.steps)


class Advising(Tally):
    """A tally whose count is advice; it tells of every second change."""

    def changes(self) -> Sequence[AdviceState]:
        return [AdviceState(id="count", groups=self.told)] if self.told % 2 else []


def test_changed_advice_is_reported_after_the_notes(envs: EnvPool) -> None:
    parts = Parts(envs, memory=Advising())
    parts.loop.run()
    assert parts.events.calls == [
        *("groups", "notes", "advice", "credit", "step"),
        *("groups", "notes", "credit", "step"),
        *("groups", "notes", "advice", "credit", "step"),
    ]
    assert [one["tally"][0].groups for one in parts.events.advice] == [1, 3]


class TestWithoutGuidance:
    def test_empty_guiding_does_not_change_the_loop(self, envs: EnvPool) -> None:
        bare, empty = Parts(envs, guided=False), Parts(envs, guided=False)
        empty.loop.guiding = Guiding()
        for one in (bare, empty):
            one.loop.run()
            assert one.events.calls == ["groups", "credit", "step"] * 3
            assert one.curriculum.noted == []
            assert one.loop.state_dict().keys() == {"state", "session", "flying"}
            names = [k for k in one.events.metrics[-1] if k.startswith(("notes", "memory"))]
            assert not names
            assert not {"guide_s", "study_s"} & one.events.metrics[-1].keys()
        assert bare.agent.views == empty.agent.views
        assert bare.events.groups == empty.events.groups
        assert {t.interface for g in bare.events.groups for t in g.trajectories} == {""}

    def test_a_memory_alone_is_updated_each_step(self, envs: EnvPool) -> None:
        setup = Parts(envs, guided=False)
        setup.loop.guiding = Guiding(memories={"tally": setup.memory})
        setup.loop.run()
        assert setup.memory.told == 3
        assert setup.curriculum.noted == []


class TestState:
    @pytest.mark.parametrize("how", ["lock_step", "async"])
    def test_a_resumed_run_equals_an_uninterrupted_run(self, envs: EnvPool, how: str) -> None:
        whole = Parts(envs, rollout=how)
        whole.loop.run()
        for cut in range(3):
            first, second = Parts(envs, rollout=how), Parts(envs, rollout=how)
            for _ in range(cut):
                first.loop.step()
            first.loop.close()
            second.learner.version = first.learner.version
            second.loop.load_state_dict(json.loads(json.dumps(first.loop.state_dict())))
            second.loop.run()
            assert first.events.groups + second.events.groups == whole.events.groups
            assert first.events.notes + second.events.notes == whole.events.notes
            assert second.memory.state_dict() == whole.memory.state_dict()
            assert second.loop.state == whole.loop.state

    def test_a_state_without_memories_can_be_loaded(self, envs: EnvPool) -> None:
        bare = Parts(envs, guided=False)
        bare.loop.step()
        other = Parts(envs, guided=False)
        other.loop.load_state_dict(bare.loop.state_dict())
        assert other.loop.state.step == 1

    def test_a_state_of_other_memories_is_refused(self, envs: EnvPool) -> None:
        guided, bare = Parts(envs), Parts(envs, guided=False)
        with pytest.raises(ConfigError, match=r"the memories \['tally'\], but this run has \[\]"):
            bare.loop.load_state_dict(guided.loop.state_dict())
        with pytest.raises(ConfigError, match=r"the memories \[\], but this run has \['tally'\]"):
            guided.loop.load_state_dict(bare.loop.state_dict())

    @pytest.mark.parametrize("damaged", ["state", "flying", "session", "ledger", "memories"])
    def test_a_damaged_state_is_refused_and_changes_nothing(
        self, envs: EnvPool, damaged: str
    ) -> None:
        setup = Parts(envs)
        setup.loop.step()
        saved = json.loads(json.dumps(setup.loop.state_dict()))
        setup.loop.step()
        before = json.dumps(setup.loop.state_dict())
        where = saved["session"] if damaged == "ledger" else saved
        where[damaged] = {"step": "x"}
        with pytest.raises(ConfigError):
            setup.loop.load_state_dict(saved)
        assert json.dumps(setup.loop.state_dict()) == before
        setup.loop.run()


class Bad:
    """A study with a note that does not fit."""

    kind = "bad"

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def examine(self, groups: Sequence[Group]) -> Findings:
        good = {"kind": "bad", "task_id": groups[0].task.id, "group_id": groups[0].id, "index": 0}
        return Findings((Note(**{**good, **self.fields}),))


class TestInvalidParts:
    GROUP = group(trajectory([None]), trajectory([None]))

    @pytest.mark.parametrize(
        "fields", [{"kind": "other"}, {"group_id": "none"}, {"index": 2}, {"task_id": "none"}]
    )
    def test_a_note_with_a_wrong_kind_group_index_or_task_is_refused(
        self, fields: Mapping[str, Any]
    ) -> None:
        assert len(Guiding(studies=(Bad(),)).examine([self.GROUP]).notes) == 1
        with pytest.raises(ConfigError, match=r"Study Bad \(kind 'bad'\) wrote a note of kind"):
            Guiding(studies=(Bad(**fields),)).examine([self.GROUP])

    def test_two_studies_of_one_kind_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"a unique kind.*'outcome', 'outcome'"):
            Guiding(studies=(Outcomes(), Outcomes()))

    def test_a_coach_that_returns_too_few_results_is_refused(self) -> None:
        class Forgets:
            def guide(self, tickets: Sequence[Ticket]) -> list[Guidance]:
                return []

        with pytest.raises(ConfigError, match="Forgets returned 0 results for 1 tickets"):
            Guiding(Forgets()).guide([Ticket("t", TRAIN[0], "g", 0)])


def test_empty_guiding_returns_empty_results() -> None:
    nothing = Guiding()
    assert nothing.guide([Ticket("t", TRAIN[0], "g", 0)]) == [Guidance()]
    assert (nothing.take_metrics(), nothing.state_dict()) == ({}, {})
    assert nothing.examine([]) == Findings()
