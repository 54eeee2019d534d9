"""Training scenarios that are set aside are kept out of training as validation tasks are."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import coevo_gym
from coevo_gym.agents.choice import ChoiceAgent
from coevo_gym.agents.tiny.policy import TinyPolicy
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import ConfigError, SplitLeakError, TaskError
from coevo_gym.core.evolution import Context, Draft, Proposal, Round
from coevo_gym.core.task import NATIVE_SPLITS, Split, Task
from coevo_gym.core.task_file import write_tasks
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.curricula.pool.task_pool import TaskPool
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.curricula.session.sampler import EvolvingTaskSampler
from coevo_gym.curricula.session.stream import scripted_evolver
from coevo_gym.envs.bfcl.world import BFCLWorld
from coevo_gym.envs.held_out import HoldingOut, benchmark_of, is_held_out
from coevo_gym.episodes import EnvPool
from coevo_gym.episodes.episode import trajectory_of
from coevo_gym.episodes.evaluation import evaluate
from coevo_gym.runs.assembly import Assembly
from coevo_gym.runs.config import load_config
from coevo_gym.runs.tasks.demonstrations import read_demonstrations
from coevo_gym.trainers.demonstrations import demonstrate
from tests import toy

SHARE = 0.2
NAMES = ["webshop", "bfcl", "alfworld", "appworld", "toy"]


@pytest.fixture(params=NAMES)
def benchmark(request: pytest.FixtureRequest) -> str:
    if request.param == "appworld":
        request.getfixturevalue("appworld_root")
    return str(request.param)


def divided(name: str, share: float = SHARE) -> tuple[Sequence[Task], Sequence[Task]]:
    """Training tasks and those that are set aside."""
    return (
        coevo_gym.tasks(name, "train", hold_out=share),
        coevo_gym.tasks(name, "held_out", hold_out=share),
    )


def claimed(name: str = "toy", place: int = 0) -> Task:
    """A task that is set aside, as it came: it says that it is a training task."""
    task = divided(name)[1][place]
    return task.model_copy(update={"split": Split.TRAIN})


def test_tasks_accepts_a_split_by_its_name(benchmark: str) -> None:
    plain, parted = get_benchmark(benchmark), benchmark_of(benchmark, SHARE)
    for split in NATIVE_SPLITS:
        assert plain.tasks(split.value) == plain.tasks(split) != ()
    for split in Split:
        assert parted.tasks(split.value) == parted.tasks(split) != ()
    for variant in (plain, parted):
        with pytest.raises(TaskError, match=r"Unknown split 'training'. Choose one of: train, "):
            variant.tasks("training")


def test_whole_scenarios_are_held_out_and_other_tasks_are_unchanged(benchmark: str) -> None:
    native = coevo_gym.tasks(benchmark, "train")
    train, held_out = divided(benchmark)
    assert sorted(task.id for task in native) == sorted(task.id for task in (*train, *held_out))
    assert {task.split for task in train} == {Split.TRAIN}
    assert {task.split for task in held_out} == {Split.HELD_OUT}
    aside = {task.scenario for task in held_out}
    assert aside.isdisjoint(task.scenario for task in train)
    practised = benchmark_of(benchmark, SHARE)
    for task in (*train[:50], *held_out[:50]):
        assert practised.side_of(task.model_copy(update={"split": Split.TRAIN})) is task.split
        assert practised.split_of(task.scenario) is task.split
    for split in (Split.VAL, Split.TEST):
        same = coevo_gym.tasks(benchmark, split, hold_out=SHARE)
        assert list(same) == list(coevo_gym.tasks(benchmark, split))
        assert practised.side_of(same[0]) is split


def test_held_out_scenarios_match_the_share_and_grow_with_it() -> None:
    names = [f"scenario {n}" for n in range(4000)]
    sets = [{n for n in names if is_held_out("any", n, share)} for share in (0.0, 0.1, 0.2, 0.6)]
    assert sets[0] == set() < sets[1] < sets[2] < sets[3]
    assert [len(each) / 4000 for each in sets] == pytest.approx([0, 0.1, 0.2, 0.6], abs=0.02)
    # The same in every process, for all time: a yardstick that moves measures nothing.
    scenes = [n for n in range(1, 31) if is_held_out("alfworld", f"FloorPlan{n}", SHARE)]
    assert scenes == [2, 3, 6, 14, 15, 23, 24]


def test_a_fifth_of_the_official_scenes_is_held_out(official_games: Path) -> None:
    train, held_out = divided("alfworld")
    assert len({task.scenario for task in held_out}) == 25
    assert len({task.scenario for task in train}) == 83
    assert len(train) + len(held_out) == 3553


def test_an_env_refuses_a_held_out_task_claimed_as_a_training_task(
    benchmark: str, tmp_path: Path
) -> None:
    task, env_id = claimed(benchmark, 1), get_benchmark(benchmark).env_id
    env = gym.make(env_id, hold_out=SHARE, disable_env_checker=True)
    with pytest.raises(SplitLeakError, match="belongs to a held_out task"):
        env.reset(options={"task": task})
    env.reset(options={"task_id": task.name})  # by its name it is what it is, and may be looked at
    assert env.unwrapped.task.split is Split.HELD_OUT  # type: ignore[attr-defined]
    write_tasks(tmp_path / "tasks.jsonl", [task])
    for tasks in (str(tmp_path / "tasks.jsonl"), [task.name]):
        with pytest.raises((SplitLeakError, TaskError), match="held_out"):
            gym.make(env_id, hold_out=SHARE, tasks=tasks)
    env.close()
    open_to_it = gym.make(env_id, split="held_out", hold_out=SHARE, disable_env_checker=True)
    held_out = divided(benchmark)[1][1]
    assert open_to_it.reset(options={"task": held_out})[1]["task_id"] == task.id
    with pytest.raises(SplitLeakError, match="evaluation only"):
        trajectory_of(open_to_it)
    open_to_it.close()


def test_a_held_out_task_with_other_words_and_scenario_is_recognised(benchmark: str) -> None:
    practised = benchmark_of(benchmark, SHARE)
    scenario = divided(benchmark)[0][0].scenario
    copy = claimed(benchmark).model_copy(update={"scenario": scenario})
    assert practised.side_of(copy) is Split.HELD_OUT
    reworded = copy.model_copy(update={"instruction": f"{copy.instruction} Please"})
    assert practised.side_of(reworded) is Split.HELD_OUT


CHANGED: dict[str, tuple[str, dict[str, object]]] = {
    "webshop": ("verifier", {"price_cap": 1234.0}),
    "bfcl": ("world", {"long_context": True}),
    "alfworld": ("world", {}),
    "appworld": ("world", {}),
    "toy": ("world", {"buttons": toy.COLOURS[::-1]}),
}
"""By benchmark, a value of a task that can be changed without asking for something else."""


def test_a_held_out_task_with_a_changed_value_and_scenario_is_recognised(
    benchmark: str, tmp_path: Path
) -> None:
    """The scenario of the content decides, not the one that the task names."""
    practised = benchmark_of(benchmark, SHARE)
    train, held_out = divided(benchmark)
    part, values = CHANGED[benchmark]
    path = tmp_path / "disguised.jsonl"
    for task in held_out[:: max(1, len(held_out) // 20)]:
        other = next(one for one in train if one.scenario != task.scenario)
        changed = getattr(task, part).model_copy(update=values)
        fields = {part: changed, "scenario": other.scenario, "split": Split.TRAIN}
        if benchmark == "bfcl":  # the state of the other scenario, and the conversation of this one
            assert isinstance(task.world, BFCLWorld)
            fields["world"] = other.world.model_copy(update={"turns": task.world.turns})
        copy = task.model_copy(update=fields)
        try:
            assert practised.side_of(copy) is Split.HELD_OUT, task
        except TaskError:
            assert benchmark in ("alfworld", "appworld")  # their worlds name a scenario, too
        write_tasks(path, [copy])
        with pytest.raises((SplitLeakError, TaskError)):
            read_demonstrations(path, practised)
        with pytest.raises((SplitLeakError, TaskError)):
            gym.make(practised.env_id, hold_out=SHARE, tasks=str(path))


def test_an_open_task_made_from_a_held_out_task_is_held_out(benchmark: str) -> None:
    practised = benchmark_of(benchmark, SHARE)
    free = practised.open(divided(benchmark)[1][0])  # type: ignore[attr-defined]
    assert free.split is Split.HELD_OUT
    with pytest.raises(SplitLeakError):
        TaskPool([free])
    free = practised.open(claimed(benchmark))  # type: ignore[attr-defined]
    explorer = ScriptedExplorer(practised)
    with pytest.raises(SplitLeakError, match="explore from"):
        explorer.explore([Context(kind="unguided", task=free)], [np.random.default_rng(0)])


def test_the_pool_and_curricula_refuse_a_held_out_task() -> None:
    held_out = divided("toy")[1][0]
    with pytest.raises(SplitLeakError):
        TaskPool([held_out])
    with pytest.raises(SplitLeakError):
        CurriculumConfig().make([held_out])


def test_exploring_and_drafting_from_a_held_out_task_is_refused() -> None:
    practised = benchmark_of("toy", SHARE)
    for task in (claimed(), divided("toy")[1][0]):
        with pytest.raises(SplitLeakError, match="explore from"):
            ScriptedExplorer(practised).explore(
                [Context(kind="unguided", task=task)], [np.random.default_rng(0)]
            )
    context = Context(kind="unguided", task=divided("toy")[1][0])
    proposal = Proposal(description="", turns=("x",), actions=("done",), confidence=1.0)
    with pytest.raises(SplitLeakError, match="create tasks from"):
        practised.draft(proposal, context)  # type: ignore[attr-defined]


def test_a_gate_rejects_drafts_in_a_held_out_scenario() -> None:
    """A walk from a training task may lead to a held-out scenario, and gives no task then."""
    practised, aside = benchmark_of("toy", 0.6), set[str]()

    class Leads(ScriptedExplorer):
        def explore(self, contexts, rngs):  # type: ignore[no-untyped-def]
            explorations = super().explore(contexts, rngs)
            aside.update(
                draft.scenario
                for each in explorations
                for draft in each.drafts
                if isinstance(draft, Draft) and practised.split_of(draft.scenario) == "held_out"
            )
            return explorations

    evolver = GatedEvolver(practised, Leads(practised), native=practised.tasks(Split.TRAIN))
    result = evolver.run(Round.unguided(8, seed=1))
    assert aside, "no walk led there"
    assert result.accepted
    assert aside.isdisjoint(task.scenario for task in result.accepted)
    assert any("is a held_out scenario" in verdict.reason for verdict in result.verdicts)


def test_a_sampler_and_its_explorer_use_no_held_out_scenario() -> None:
    with pytest.raises(SplitLeakError):
        EvolvingTaskSampler(gym.make("Toy-v0", split="held_out", hold_out=0.6))
    env = gym.make("Toy-v0", hold_out=0.6, disable_env_checker=True)
    assert isinstance(env.unwrapped, toy.ToyEnv)
    result = scripted_evolver(env.unwrapped).run(Round.unguided(6, seed=0))
    assert result.accepted
    sampler = EvolvingTaskSampler(env, group_size=2, evolve_every_groups=2)
    seen = set[str]()
    for episode in range(24):
        sampler.reset(seed=episode)
        seen.add(sampler.unwrapped.task.scenario)  # type: ignore[attr-defined]
        sampler.step("done")
    for scenario in (*seen, *(task.scenario for task in result.accepted)):
        assert not is_held_out("toy", scenario, 0.6)


def test_demonstrating_a_held_out_task_is_refused() -> None:
    def make_env() -> gym.Env[str, str]:
        return gym.make("Toy-v0", hold_out=SHARE, disable_env_checker=True).unwrapped

    agent = ChoiceAgent(TinyPolicy(), toy.BENCHMARK.choices)
    envs = EnvPool(make_env, max_envs=2)
    for task in (claimed(), divided("toy")[1][0]):
        with pytest.raises(SplitLeakError):
            demonstrate([task], envs, benchmark_of("toy", SHARE), agent)
    envs.close()


def test_a_run_trains_on_the_other_tasks_and_evaluates_on_held_out_tasks() -> None:
    sets = ["benchmark=toy", "benchmark.hold_out=0.3", "evaluation.split=held_out"]
    assembly = Assembly(load_config(None, sets=sets, environ={}).config)
    train, held_out = divided("toy", 0.3)
    assert list(assembly.train_tasks) == list(train)
    assert {task.id for task in assembly.held_out_tasks} == {task.id for task in held_out}
    assert {task.split for task in assembly.warmup_tasks()} == {Split.TRAIN}
    evaluation = assembly.evaluate(assembly.random_agent())
    assert (evaluation.split, len(evaluation.episodes)) == (Split.HELD_OUT, len(held_out))
    evaluation = assembly.evaluate(assembly.random_agent(), train)
    assert len(evaluation.episodes) == len(train)
    with pytest.raises(ConfigError, match="exactly one split"):
        evaluate(assembly.random_agent(), (train[0], held_out[0]), assembly.make_env_pool())


def test_the_held_out_split_needs_the_hold_out_setting() -> None:
    with pytest.raises(ConfigError, match=r"benchmark\.hold_out"):
        load_config(None, sets=["benchmark=toy", "evaluation.split=held_out"], environ={})
    config = load_config(None, sets=["benchmark=toy"], environ={}).config
    assert Assembly(config).benchmark is toy.BENCHMARK
    with pytest.raises(ConfigError, match="hold_out"):
        Assembly(config).tasks_to_evaluate("held_out")
    with pytest.raises(ConfigError, match=r"hold_out must be in \[0, 1\)"):
        coevo_gym.tasks("toy", hold_out=1.0)
    with pytest.raises(TaskError, match="hold_out"):
        get_benchmark("webshop").tasks(Split.HELD_OUT)
    with pytest.raises(ConfigError, match="scheme"):
        gym.make("CoEvolve-BFCL-v0", scheme="all200", split="test", hold_out=SHARE)


def test_a_share_that_holds_out_no_task_is_an_error() -> None:
    with pytest.raises(TaskError, match="no held_out task"):
        coevo_gym.tasks("toy", "held_out", hold_out=1e-9)


def test_a_benchmark_with_held_out_scenarios_is_otherwise_unchanged(benchmark: str) -> None:
    practised = benchmark_of(benchmark, SHARE)
    assert isinstance(practised, HoldingOut)
    assert (practised.name, practised.env_id) == (benchmark, get_benchmark(benchmark).env_id)
    assert pickle.loads(pickle.dumps(practised)) is practised
    assert not hasattr(practised, "no_such_member")
    assert Split.HELD_OUT not in NATIVE_SPLITS
