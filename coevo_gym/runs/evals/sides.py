"""Functions that find the two sides of a comparison: evaluations, or arms of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import digest
from coevo_gym.core.panel import EvalProtocol, Panel
from coevo_gym.core.registry import did_you_mean
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.evals.comparison import Side
from coevo_gym.runs.evals.final import final_scores, stored_name
from coevo_gym.runs.evals.protocol import make_protocol
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.runs.panels.panel_files import EVALUATED, is_panel
from coevo_gym.runs.planning.plan import max_steps_per_episode
from coevo_gym.runs.policies import model_settings
from coevo_gym.runs.table import RANDOM, WARMUP
from coevo_gym.store.eval_folder import EVALS, EvalFolder
from coevo_gym.store.folder import RUNS, RunFolder
from coevo_gym.store.reader import EvaluatedTask, RunReader

Source = RunFolder | EvalFolder
_MAX_LISTED = 8
"""Maximum number of a table's cells in a message."""


def find_sides(
    a: str, b: str | None, arms: Sequence[str] = (), *, final: str = ""
) -> tuple[Side, Side]:
    """Load the results of two policies for a comparison.

    Args:
        a: name or path of a run or an evaluation.
        b: name or path of the other side; None to compare two arms of the run ``a``.
        arms: the arm for each run, in order; a single arm is used for both runs. Defaults to the
            last arm of each run, or to the first and last arm of a single run.
        final: name of a task set in ``evaluation.final`` whose scores are compared, instead of the
            last evaluations. A policy without such a score has no outcomes.

    Raises:
        ConfigError: if a name is unknown, or the required results were not stored.
        StoreError: if a file is missing or damaged.
    """
    first = find_run_or_eval(a)
    if b is None:
        if not isinstance(first, RunFolder):
            raise ConfigError(
                f"{a} covers only one policy. Name a second evaluation to compare it with."
            )
        return _sides_of_run(first, arms, final)
    second = find_run_or_eval(b)
    runs = [one for one in (first, second) if isinstance(one, RunFolder)]
    if len(arms) > len(runs):
        raise ConfigError(
            f"--arm was given {len(arms)} times for {len(runs)} runs. Pass it at most once per run."
        )
    names = list(arms) * 2 if len(arms) == 1 and len(runs) == 2 else list(arms)
    sides = [
        _arm_side(one, names.pop(0) if names else None, final)
        if isinstance(one, RunFolder)
        else _evaluation_side(one)
        for one in (first, second)
    ]
    return _check_distinct(sides[0], sides[1])


def find_final_sides(
    a: str, b: str | None, arms: Sequence[str] = ()
) -> dict[str, tuple[Side, Side]]:
    """Return both sides of a comparison for each task set that is evaluated only after training.

    Tasks without a score on one side are left out. See :func:`find_sides` for the arguments.
    """
    runs = [find_run_or_eval(name) for name in (a, a if b is None else b)]
    if not all(isinstance(run, RunFolder) for run in runs):
        return {}
    first, second = (
        read_manifest(RunFolder(run.path))[1].evaluation.final_set_names for run in runs
    )
    pairs = {name: find_sides(a, b, arms, final=name) for name in first if name in second}
    return {name: pair for name, pair in pairs.items() if all(side.outcomes for side in pair)}


def find_result(name: str, *, each: bool = False) -> list[Side]:
    """Load the results of one policy.

    Args:
        name: name, folder or ``summary.json`` of an evaluation or a run. ``RUN:ARM`` selects an arm
            of a run instead of its last one.
        each: return each evaluation of the arm during training, in order, instead of the reported
            evaluations as a single side.

    Raises:
        ConfigError: if there is no such result, or it was not stored.
        StoreError: if a file is missing or damaged.
    """
    source, arm = _find_policy(name)
    if isinstance(source, EvalFolder):
        return [_evaluation_side(source)]
    side = _arm_side(source, arm, "")
    if not each:
        return [side]
    steps = RunReader(source.database).evaluation_steps(side.policy)
    return [_side_at(source, side.policy, "", [step]) for step in steps]


def find_history(name: str) -> list[Side]:
    """Load all evaluations of one policy: for an arm, that before training, then those during it.

    Raises the same errors as :func:`find_result`, which explains ``name``.
    """
    source, arm = _find_policy(name)
    if isinstance(source, EvalFolder):
        return [_evaluation_side(source)]
    return [*evaluations_by_step(source, _arm_side(source, arm, "").policy).values()]


def evaluations_by_step(run: RunFolder, arm: str) -> dict[int, Side]:
    """Return all evaluations of an arm by its learner step, in order; 0 is before training."""
    reader = RunReader(run.database)
    policies = (arm,) if arm in (WARMUP, RANDOM) else (WARMUP, arm)
    return {
        step: _side_at(run, policy, "", [step])
        for policy in policies
        for step in reader.evaluation_steps(policy)
    }


def final_result(run: RunFolder, arm: str, name: str) -> Side:
    """Return the result of an arm or of the warm-up on a task set in ``evaluation.final``.

    A policy that was not scored yet has no outcomes.
    """
    return _arm_side(run, arm, name)


def _find_policy(name: str) -> tuple[Source, str | None]:
    """Return the run or evaluation of :func:`find_result`, and the arm that ``name`` selects."""
    path = Path(name)
    name = str(path.parent) if path.name == "summary.json" else name
    arm: str | None = None
    run, _, end = name.rpartition(":")
    if run and not (RunFolder.find(name) or EvalFolder.find(name)):
        name, arm = run, end
    source = find_run_or_eval(name)
    if isinstance(source, EvalFolder) and arm is not None:
        raise ConfigError(f"{source.path} is an evaluation, which has no arm {arm!r}.")
    return source, arm


def middle_arms(run: str) -> Sequence[str]:
    """Return all arms of a run except the first and the last."""
    _, config = read_manifest(RunFolder.of(run))
    return config.arms[1:-1]


def find_run_or_eval(name: str) -> Source:
    """Return the run or evaluation with the given name or path.

    Raises:
        ConfigError: if there is none, or the name is ambiguous.
    """
    run, evaluation = RunFolder.find(name), EvalFolder.find(name)
    if run and evaluation:
        raise ConfigError(
            f"{name} is both a run and an evaluation. Use {run.path} or {evaluation.path}."
        )
    source = run or evaluation
    if source is None:
        for kind, cells in (
            ("runs", [run.path for run in RunFolder.of_table(Path(name))]),
            ("runs", [run.path for run in RunFolder.of_table(RUNS / name)]),
            ("evaluations", [one.path for one in EvalFolder.of_table(Path(name))]),
            ("evaluations", [one.path for one in EvalFolder.of_table(EVALS / name)]),
        ):
            if name and cells:
                raise ConfigError(describe_table(name, kind, cells))
        raise ConfigError(_describe_unknown(name))
    return source


def describe_table(name: str, kind: str, cells: Sequence[Path]) -> str:
    """Return a message that asks for one cell of a table instead of the table.

    Args:
        name: name of the table, as the user gave it.
        kind: ``runs`` or ``evaluations``.
        cells: folders of the cells, at least one.
    """
    more = ", …" * (len(cells) > _MAX_LISTED)
    return (
        f"{name} is a table of {len(cells)} {kind}. Name one of them: "
        f"{', '.join(map(str, cells[:_MAX_LISTED]))}{more}."
    )


def _describe_unknown(name: str) -> str:
    """Return a message about a name that is unknown, with all names of runs and evaluations."""
    places, known = [], list[str]()
    for folder, names, tables in (
        (RUNS, RunFolder.names(), RunFolder.table_folders()),
        (EVALS, EvalFolder.names(), EvalFolder.table_folders()),
    ):
        table_names = [table.name for table in tables]
        known += [*names, *table_names]
        entries = [*names, *(f"{table} (a table)" for table in table_names)]
        places.append(f"In {folder}/: {', '.join(entries) or 'none'}.")
    return f"There is no run or evaluation {name!r}. {did_you_mean(name, known)}{' '.join(places)}"


def _sides_of_run(run: RunFolder, arms: Sequence[str], final: str) -> tuple[Side, Side]:
    """Return two arms of a run as the sides of a comparison."""
    _, config = read_manifest(run)
    match len(arms):
        case 0:
            first, second = config.arms[0], config.arms[-1]
            if first == second:
                raise ConfigError(
                    f"{run.path.name} has no other arm to compare {first} with. Choose the policy "
                    f"after warm-up (--arm {WARMUP}) or the random policy (--arm {RANDOM}), or "
                    "name a second run."
                )
        case 1:
            first, second = arms[0], config.arms[-1]
        case 2:
            first, second = arms
        case _:
            raise ConfigError(f"--arm may be given at most twice, got {', '.join(arms)}.")
    return _check_distinct(_arm_side(run, first, final), _arm_side(run, second, final))


def _check_distinct(a: Side, b: Side) -> tuple[Side, Side]:
    if a.name == b.name:
        raise ConfigError(f"{a.name} cannot be compared with itself. Pass another run or --arm.")
    return a, b


def _arm_side(run: RunFolder, arm: str | None, final: str) -> Side:
    """Return one side of a comparison: an arm's reported evaluations or its final scores.

    ``final`` is the name of the final task set, or "".
    """
    _, config = read_manifest(run)
    name = run.path.name
    arm = arm or config.arms[-1]
    known = (*config.arms, WARMUP, RANDOM)
    if arm not in known:
        raise ConfigError(f"{name} has no arm {arm!r}. Choose one of: {', '.join(known)}.")
    reader, policy = RunReader(run.database), stored_name(arm, final) if final else arm
    if final and final not in final_scores(run).get(arm, {}):
        steps = []
    elif not (steps := reader.evaluation_steps(policy)):
        raise ConfigError(
            f"{name} has not evaluated {arm} yet. Resume it with `coevo resume {name}`."
        )
    return _side_at(run, arm, final, steps[-(1 if final else config.evaluation.last) :])


def _side_at(run: RunFolder, arm: str, final: str, late: Sequence[int]) -> Side:
    """Return an arm's evaluations at the given steps as one side of a comparison."""
    _, config = read_manifest(run)
    reader, policy = RunReader(run.database), stored_name(arm, final) if final else arm
    at = f" at step {', '.join(map(str, late))}" if arm in config.arms else ""
    return Side(
        name=f"{run.path}, {arm}{at}",
        policy=arm,
        benchmark=config.benchmark.name,
        split=final or config.evaluation.split,
        outcomes=reader.outcomes(policy, *late),
        tasks=_tasks_by_id(reader.evaluated_tasks()),
        protocol=make_protocol(
            config,
            max_steps=max_steps_per_episode(config),
            samples=config.evaluation.samples,
            temperature=None if arm == RANDOM else config.evaluation.temperature,
            has_model=arm != RANDOM,
            env={},
        ),
        panel=_panel_of_run(run, config, final),
        trained=arm != RANDOM,
        seed=config.seed,
        identity=_arm_identity(config, arm),
        origin="" if arm == RANDOM else str(run.path.resolve()),
    )


def _evaluation_side(folder: EvalFolder) -> Side:
    config, lines = folder.read_config(), folder.read_results()
    if not lines:
        raise ConfigError(
            f"{folder.path} has no finished episode yet. To continue it, run the command that "
            "began it again: `coevo eval`, or `coevo play` for episodes of your own."
        )
    outcomes: dict[str, list[bool]] = {}
    for id, sample in sorted(lines):
        outcomes.setdefault(id, []).append(lines[id, sample].success)
    trained = bool(config["model"]) and model_settings(config["policy"]) is None
    identity, origin = _policy_of(config, trained=trained)
    return Side(
        name=str(folder.path),
        policy=config["policy"],
        benchmark=config["benchmark"],
        split=config["split"],
        outcomes=outcomes,
        tasks=_tasks_by_id(RunReader(folder.database).evaluated_tasks()),
        protocol=EvalProtocol(parts=config.get("protocol", {})),
        panel=folder.read_panel() if "panel" in config else None,
        trained=trained,
        seed=config["seed"],
        identity=identity,
        origin=origin,
    )


def _policy_of(config: dict[str, Any], *, trained: bool) -> tuple[str, str]:
    """Return the identity and the origin of an evaluated policy; see :class:`Side`."""
    if not trained:
        return digest({key: config[key] for key in ("policy", "model", "weights", "settings")}), ""
    run = RunFolder.find(config["source"])
    if run is None:  # deleted, or in another folder: its settings are unknown
        return digest({key: config[key] for key in ("policy", "source")}), config["source"]
    return _arm_identity(read_manifest(run)[1], config["policy"]), str(run.path.resolve())


def _arm_identity(config: RunConfig, arm: str) -> str:
    """Return the identity of an arm's policy; see :class:`Side`."""
    if arm == RANDOM:
        return digest({"policy": RANDOM, "model": "", "weights": "", "settings": {}})
    settings = config.to_json()
    del settings["name"], settings["seed"]
    return digest({"arm": arm, "settings": settings})


def _panel_of_run(run: RunFolder, config: RunConfig, final: str) -> Panel | None:
    """Return the panel of a run's evaluations, or of a task set in ``evaluation.final``, or None.

    Raises:
        ConfigError: if the run's copy of the panel is missing, or was edited.
    """
    settings = config.evaluation
    if final:
        entry = dict(zip(settings.final_set_names, settings.final, strict=True))[final]
        return run.read_panel(final) if is_panel(entry) else None
    return None if settings.panel is None else run.read_panel(EVALUATED)


def _tasks_by_id(tasks: Iterable[EvaluatedTask]) -> dict[str, EvaluatedTask]:
    return {task.id: task for task in tasks}
