"""What every benchmark keeps towards curricula, agents and trainers, as checks over its name.

They go beside those of :mod:`coevo_gym.testing.contract`, which run over its env.
"""

from __future__ import annotations

from collections.abc import Sequence

from coevo_gym.core.benchmark import Benchmark, find_spec, find_task, get_benchmark
from coevo_gym.core.errors import TaskError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.task import Split, Task
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.prompts import load_prompt
from coevo_gym.testing.fixtures import make_env, replay

_SAMPLE = 8
_WANTED, _MOST_DRAFTS = 3, 120


def check_splits(name: str) -> None:
    """Each native task lies where it says, in a scenario of its split alone, and can be found."""
    benchmark, seen = get_benchmark(name), dict[str, Split]()
    ids, names = set[str](), set[str]()
    for split in Split:
        for task in _some(benchmark.tasks(split), 200):
            assert task.split is split, f"{task.name} is listed as {split}, and says {task.split}"
            assert task.benchmark == name, f"{task.name} is a task of {task.benchmark!r}"
            assert benchmark.side_of(task) is split, f"{task.name} does not lie in {split}"
            where = seen.setdefault(task.scenario, split)
            assert where is split, f"{task.scenario} is in {where} and in {split}"
            ids.add(task.id)
            names.add(task.name)
        first = benchmark.tasks(split)[0]
        assert find_task(name, first.name) == find_task(name, first.id) == first
    assert len(ids) == len(names), "two native tasks have one name, or one content"


def check_copies_are_recognised(name: str) -> None:
    """A validation or test task that claims to be a training task is known for what it is."""
    benchmark = get_benchmark(name)
    train = benchmark.tasks(Split.TRAIN)[0]
    for split in (Split.VAL, Split.TEST):
        task = benchmark.tasks(split)[0]
        for scenario in (task.scenario, train.scenario):
            copy = task.model_copy(update={"split": Split.TRAIN, "scenario": scenario})
            side = benchmark.side_of(copy)
            assert side is not Split.TRAIN, f"a copy of {task.name} in {scenario} counts as train"


def check_json(name: str) -> None:
    """Tasks go to JSON and back, with their worlds and verifiers, and keep their ids."""
    for task in _sample(get_benchmark(name)):
        again = Task.model_validate_json(task.model_dump_json())
        assert again == task
        assert again.id == task.id
        assert type(again.world) is type(task.world)
        assert type(again.verifier) is type(task.verifier)


def check_replay(name: str) -> None:
    """The reference solves its task at the last action; replaying it twice is the same twice."""
    benchmark = get_benchmark(name)
    for task in _sample(benchmark):
        played = benchmark.replay(task, task.solution)
        assert played.solves, f"{task.name}: its reference does not solve it: {played}"
        assert played == benchmark.replay(task, task.solution)
        n = len(played.errors)
        assert len(played.effects) == len(played.shown) == n
        assert len(played.scores) == len(played.states) == n + 1
        assert len(played.listed) in (0, n + 1)
        assert benchmark.replay(task, ()).scores[-1] < 1.0, f"{task.name}: nothing solves it"


def check_demonstration(name: str) -> None:
    """The demonstration solves the task in the env, and every step of it has a symbol."""
    benchmark = get_benchmark(name)
    for task in _sample(benchmark):
        played = replay(task, benchmark.demonstration(task))
        assert played.success, f"{task.name}: its demonstration does not solve it"
        for step in played.steps:
            assert isinstance(benchmark.symbol(step), str)


def check_choices(name: str) -> None:
    """There is something to choose from at the start, all of it text."""
    env = make_env(name)
    choices = get_benchmark(name).choices(env.view)
    env.close()
    assert choices, "there is nothing to choose from at the start"
    assert all(isinstance(choice, str) for choice in choices)


def check_evolution(name: str) -> None:
    """Exploring from training tasks finds tasks that pass every gate, and the same ones twice."""
    found, again = _evolved(name), _evolved(name)
    assert found.accepted == again.accepted
    reasons = [f"{verdict.gate}: {verdict.reason}" for verdict in found.verdicts]
    assert found.accepted, f"no draft of {len(reasons)} passed the gates: {reasons[:5]}"
    for task in found.accepted:
        assert replay(task).success, f"{task.id}: the reference of an evolved task fails in the env"


def check_prompt(name: str) -> None:
    """The benchmark's prompt can be written for the first view of an episode."""
    spec = find_spec(name)
    if spec is None:
        raise TaskError(f"Unknown benchmark {name!r}.")
    prompt, env = load_prompt(name), make_env(name)
    assert prompt.header.name == name
    for thinking in (False, True):
        assert prompt.system(env.view, thinking=thinking) + prompt.first(env.view)
    env.step("")
    assert prompt.turn(env.view)
    env.close()


BENCHMARK_CHECKS = (
    check_splits,
    check_copies_are_recognised,
    check_json,
    check_replay,
    check_demonstration,
    check_choices,
    check_evolution,
    check_prompt,
)


def assert_benchmark_contract(name: str) -> None:
    """Run every check over a registered benchmark.

    Raises:
        AssertionError: at the first promise that is broken.
    """
    for check in BENCHMARK_CHECKS:
        check(name)


def _evolved(name: str) -> RoundResult:
    benchmark = get_benchmark(name)
    round = Round(id="round-0", n_unguided=_WANTED, budget=_MOST_DRAFTS, seed=0)
    return GatedEvolver(benchmark, ScriptedExplorer(benchmark)).run(round)


def _sample(benchmark: Benchmark) -> Sequence[Task]:
    return _some(benchmark.tasks(Split.TRAIN), _SAMPLE)


def _some(tasks: Sequence[Task], n: int) -> Sequence[Task]:
    return tasks[:: max(1, len(tasks) // n)][:n]
