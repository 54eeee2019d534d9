"""Evaluation jobs: the policy to evaluate, its tasks, and the number of episodes."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, NoReturn, get_type_hints

from pydantic import TypeAdapter, ValidationError

from coevo_gym.agents.advice.tape import Tape
from coevo_gym.agents.endpoint.openai_policy import OpenAIPolicy
from coevo_gym.agents.lm.stored_models import files_hash
from coevo_gym.agents.scripted import reference_players
from coevo_gym.core.arithmetic import request_arithmetic, warn_if_other_arithmetic
from coevo_gym.core.benchmark import (
    BenchmarkSpec,
    benchmark_specs,
    find_spec_by_any_name,
    require_spec_by_any_name,
)
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.panel import EvalProtocol, Panel
from coevo_gym.core.registry import did_you_mean, suggest
from coevo_gym.core.seams import ClosablePolicy, Policy
from coevo_gym.core.spend import NO_USAGE, Cost
from coevo_gym.core.task import FrozenDict, Split, Task
from coevo_gym.envs.rows import from_rows
from coevo_gym.envs.rows.source import load_function
from coevo_gym.episodes.evaluation import Evaluation, Parts, Players
from coevo_gym.episodes.runner import Admission
from coevo_gym.runs.assembly import (
    Assembly,
    configure_torch,
    load_evaluation_weights,
    raise_restore_errors,
    weights_hash,
)
from coevo_gym.runs.config import RunConfig, Sets, key_permission, load_config
from coevo_gym.runs.evals.admission import PaidAdmission
from coevo_gym.runs.evals.protocol import make_protocol
from coevo_gym.runs.manifest import freeze_arithmetic_for, model_id, read_manifest
from coevo_gym.runs.panels.leaks import refuse_leaks
from coevo_gym.runs.panels.panel_files import find_panel, make_automatic_panel, tasks_of_panel
from coevo_gym.runs.planning.cost import CostEstimate, estimate_evaluation_cost
from coevo_gym.runs.policies import MODEL_KINDS, make_policy, model_settings
from coevo_gym.runs.progress_reports import SILENT, ProgressSink
from coevo_gym.runs.stop import StopRequest
from coevo_gym.runs.table import PERSON, RANDOM, SCRIPTED, WARMUP, TableRow, table_row
from coevo_gym.store.answers import AnswerFile
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.eval_folder import EvalFolder, EvalLine
from coevo_gym.store.folder import RunFolder

_SET_ELSEWHERE = {
    "split": "Pass --split instead.",
    "render_mode": "An evaluation does not render anything.",
}


def parse_env_arguments(env_class: type, items: Sequence[str]) -> dict[str, Any]:
    """Parse ``name=value`` arguments for an env.

    Args:
        env_class: class of the env.
        items: arguments as ``"name=value"``; a value is parsed as JSON if possible, else as text.

    Raises:
        ConfigError: if the class has no argument of this name, or does not accept the value.

    Example:
        >>> from coevo_gym.envs.base import TaskEnv
        >>> parse_env_arguments(TaskEnv, ["max_steps=3", "subset=human"])
        {'max_steps': 3, 'subset': 'human'}
    """
    known = dict(_keyword_parameters(env_class))
    arguments = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals:
            raise ConfigError(f"--env must have the form name=value, got {item!r}.")
        if name in _SET_ELSEWHERE:
            raise ConfigError(f"--env does not take {name!r}. {_SET_ELSEWHERE[name]}")
        if name not in known:
            raise ConfigError(
                f"{env_class.__name__} has no argument {name!r}. {did_you_mean(name, known)}"
                f"It accepts: {', '.join(known)}."
            )
        arguments[name] = _parse_value(name, text, known[name])
    return arguments


def _keyword_parameters(env_class: type) -> Iterator[tuple[str, Any]]:
    """Yield the name and type of each keyword argument that a class or its bases accept."""
    for base in env_class.__mro__:
        init = vars(base).get("__init__")
        if not inspect.isfunction(init):
            continue
        types = get_type_hints(init)
        parameters = inspect.signature(init).parameters.values()
        for parameter in parameters:
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in _SET_ELSEWHERE:
                yield parameter.name, types.get(parameter.name, Any)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return


def _parse_value(name: str, text: str, wanted: Any) -> Any:
    """Parse the value of an env argument and check its type."""
    adapter = TypeAdapter(wanted)
    try:
        return adapter.validate_python(json.loads(text), strict=True)
    except (ValueError, RecursionError):  # not JSON, or another type
        pass
    try:
        return adapter.validate_python(text, strict=True)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ConfigError(f"--env {name}={text}: {reason}.") from None


class TrialRules(NamedTuple):
    """Rules for retrying failed tasks.

    Attributes:
        n: maximum trials per task.
        keep: number of latest reflections that are included in the agent's prompt.
        cut: True to end an episode at an action that repeats the previous one.
        reflection_temperature: sampling temperature of reflections, not of episodes.

    Source: Reflexion (arXiv 2303.11366); the temperature is that for reflections in Role-Agent
    (arXiv 2606.10917), Table 5.
    """

    n: int = 3
    keep: int = 3
    cut: bool = True
    reflection_temperature: float = 0.5


@dataclass(frozen=True)
class EvalJob:
    """An evaluation to run: a policy and its tasks.

    Attributes:
        source: name of the policy's run, or of the benchmark for an untrained policy.
        policy: name of the policy.
        assembly: assembly for the benchmark to play.
        split: the split of the tasks.
        samples: episodes per task.
        players: the agents that play.
        model: short name of the policy's model; "" for a baseline.
        weights: hash of the model's weights; "" if they are not available.
        env_steps: env steps used to train the policy.
        elsewhere: True if the policy was trained on another benchmark.
        set_folder: called with the evaluation's folder before any task is played, so that caps on
            an endpoint count what earlier starts have spent.
        close: called when all tasks are played.
        asked: returns the language model that plays, for questions about its failures; None if no
            language model plays.
        trials: rules for trying tasks again; None for an evaluation.
        final: task set in ``evaluation.final`` to play; "" for the first tasks of the split.
        panel: the panel to play; None for ``final``, or the first tasks of the split.
    """

    source: str
    policy: str
    assembly: Assembly
    split: str
    samples: int
    players: Players
    model: str = ""
    weights: str = ""
    env_steps: int = 0
    elsewhere: bool = False
    set_folder: Callable[[EvalFolder], None] = lambda folder: None
    close: Callable[[], None] = lambda: None
    asked: Callable[[], Policy] | None = None
    trials: TrialRules | None = None
    final: str = ""
    panel: Panel | None = None

    @cached_property
    def tasks(self) -> Sequence[Task]:
        """The tasks to play, in the panel's order or ordered by id."""
        if self.panel is not None:
            return tasks_of_panel(self.panel)
        if self.final:
            return self.assembly.final_tasks[self.final]
        return self.assembly.tasks_to_evaluate(self.split)

    @cached_property
    def played_panel(self) -> Panel:
        """The panel to play, or a panel made from the tasks if the job was not given one."""
        if self.panel is not None:
            return self.panel
        settings = self.assembly.config.benchmark
        arguments = {"subset": settings.subset, **self.assembly.env_arguments}
        if self.split == Split.HELD_OUT:
            arguments["hold_out"] = settings.hold_out
        return make_automatic_panel(self.tasks, self.assembly.benchmark, arguments)

    @cached_property
    def protocol(self) -> EvalProtocol:
        """The settings that determine how the tasks are played."""
        return make_protocol(
            self.assembly.config,
            max_steps=self.assembly.max_steps,
            samples=self.samples,
            temperature=self.temperature,
            has_model=bool(self.model),
            env=self.assembly.env_arguments,
        )

    @property
    def temperature(self) -> float | None:
        """Return the sampling temperature, or None if there is no model to sample from."""
        if not self.model:
            return None
        return _temperature(self.assembly.config, self.samples)

    def estimate_costs(self, done: int = 0) -> list[CostEstimate]:
        """Estimate the remaining cost of endpoint requests after ``done`` episodes."""
        tasks, config = len(self.tasks), self.assembly.config
        if self.trials is None:
            return estimate_evaluation_cost(config, tasks * self.samples - done)
        n = self.trials.n
        return estimate_evaluation_cost(config, tasks * n - done, questions=tasks * (n - 1))

    def row(self, evaluation: Evaluation) -> TableRow:
        """Return the evaluation's results as a table row."""
        usage = sum((line.usage for line in evaluation.lines), NO_USAGE)
        return table_row(self.policy, evaluation.metrics(), self.env_steps, usage=usage)

    @property
    def uses_endpoint(self) -> bool:
        """True if the episodes are played by a model behind an endpoint."""
        return bool(self.model) and self.assembly.config.policy.kind == "openai"

    @property
    def endpoint(self) -> OpenAIPolicy | None:
        """The endpoint whose model plays the episodes, or None. It is opened on first use."""
        policy = self.asked() if self.uses_endpoint and self.asked is not None else None
        return policy if isinstance(policy, OpenAIPolicy) else None

    def stop_request(
        self, at_once: Callable[[], NoReturn] | None = None
    ) -> AbstractContextManager[StopRequest | None]:
        """Return a context manager that lets Ctrl-C finish open episodes first if they cost money.

        ``at_once`` is called at the second Ctrl-C; see :class:`StopRequest`.
        """
        if not self.uses_endpoint:
            return nullcontext()
        return StopRequest(at_once, says="Finishing the open episodes")

    def make_admission(self, lines: Collection[EvalLine], stop: StopRequest | None) -> Admission:
        """Create the rule for starting episodes, and let stop requests describe the open ones."""
        endpoint = self.endpoint
        if endpoint is None:
            return Admission()
        usages = (line.usage for line in lines)
        rule = PaidAdmission(endpoint, usages, stop or (lambda: False))
        if stop is not None:
            stop.waits_for = rule.describe_live_episodes
        return rule

    def cost(self, lines: Collection[EvalLine]) -> Cost:
        """Return the cost so far, as counted by the endpoint or summed over finished episodes."""
        steps, endpoint = sum(line.steps for line in lines), self.endpoint
        if endpoint is not None:
            return Cost.from_usages(steps, endpoint.usage)
        tokens = sum(line.prompt_tokens + line.completion_tokens for line in lines)
        return Cost(env_steps=steps, tokens=tokens, usd=math.fsum(line.usd for line in lines))


def find_benchmark_or_run(name: str) -> BenchmarkSpec | RunFolder:
    """Return the benchmark or run with this name.

    Raises:
        ConfigError: if neither exists.
    """
    origin = find_spec_by_any_name(name) or RunFolder.find(name)
    if origin is not None:
        return origin
    known = [spec.name for spec in benchmark_specs()], RunFolder.names()
    benchmarks, runs = (", ".join(names) or "none" for names in known)
    raise ConfigError(
        f"There is no benchmark or run named {name!r}. "
        f"{did_you_mean(name.lower(), [*known[0], *known[1]])}"
        f"Benchmarks: {benchmarks}. Runs here: {runs}."
    )


def make_eval_job(
    source: str,
    policy: str | None,
    split: str | None = None,
    progress: ProgressSink = SILENT,
    *,
    panel: str | None = None,
    n_tasks: int | None = None,
    samples: int = 1,
    on: str | None = None,
    sets: Sets = (),
    env: Sequence[str] = (),
    verify: str = "",
    tools: Sequence[str] = (),
) -> EvalJob:
    """Create the job that evaluates a run's policy, or an untrained policy on a benchmark.

    Args:
        source: name of a benchmark or a run, or a run's folder; with ``verify``, a JSONL file of
            rows.
        policy: see :func:`make_run_job` and :func:`make_model_job`.
        split: ``train``, ``val`` (the default), ``test`` or ``held_out``; None with a panel.
        progress: display for the usage of an endpoint.
        panel: name of a shipped panel, or path to a panel file, to play in its order.
        n_tasks: number of tasks of the split; None for the number in the settings.
        samples: episodes per task.
        on: for a run: name of another benchmark to play.
        sets: for a benchmark: more settings.
        env: for a benchmark: extra arguments for its env, each as ``"name=value"``.
        verify: for rows: the function that judges answers, as ``"FILE.py:FUNCTION"``.
        tools: for rows: functions and classes that the agent can call, in the same form.

    Raises:
        ConfigError: if the source or the policy does not exist, or an option does not fit it.
        TaskError: if the benchmark ``on`` does not exist.
        SplitLeakError: if a run may have trained on tasks, products or rooms in the panel.
    """
    if panel is not None and split is not None:
        raise ConfigError(
            f"The panel {panel} determines the split. Omit --split (split in Python)."
        )
    if panel is not None and n_tasks is not None:
        raise ConfigError(
            f"A panel is always played in full, so -n {n_tasks} (n_tasks) cannot shorten "
            f"{panel}. Omit it, or make a smaller panel with `coevo panel make`."
        )
    if verify:
        called = [load_function(tool) for tool in tools]
        source = from_rows(source, load_function(verify), tools=called).name
    elif tools:
        raise ConfigError("--tool only works with rows. Also pass --verify FILE.py:FUNCTION.")
    elif source.endswith(".jsonl"):
        raise ConfigError(
            f"To evaluate on the rows in {source}, also pass --verify FILE.py:FUNCTION, a function "
            "verify(row, answer)."
        )
    origin = find_benchmark_or_run(source)
    if isinstance(origin, RunFolder):
        if sets or env:
            raise ConfigError(
                "--set and --env (sets and env in Python) only work with a benchmark; a run always "
                "uses its own settings."
            )
        elsewhere = None if on is None else require_spec_by_any_name(on).name
        if panel is None:
            number = [] if n_tasks is None else [f"evaluation.n_tasks={n_tasks}"]
            return make_run_job(
                origin, policy, split or DEFAULT_SPLIT, samples=samples, on=elsewhere, sets=number
            )
        return play_panel_with_run(origin, policy, find_panel(panel), samples, elsewhere)
    if on is not None:
        raise ConfigError(
            f"--on {on} only works if the source is a run. Name a run, or omit --on (on in Python)."
        )
    wanted = None if panel is None else find_panel(panel)
    if wanted is not None and wanted.benchmark != origin.name:
        raise ConfigError(
            f"The panel {wanted.name} is for {wanted.benchmark}, not for {origin.name}. Run "
            f"`coevo eval {wanted.benchmark} --panel {panel}`."
        )
    config = load_config({"benchmark": origin.name}, sets=sets).config
    if n_tasks is not None:
        config = load_config(config, sets={"evaluation.n_tasks": n_tasks}, environ={}).config
    return make_model_job(
        origin.name,
        policy,
        (split or DEFAULT_SPLIT) if wanted is None else wanted.split,
        progress,
        panel=wanted,
        samples=samples,
        config=config,
        env=env,
    )


DEFAULT_SPLIT = "val"
"""The split to evaluate on if neither a split nor a panel is given."""


def play_panel_with_run(
    run: RunFolder,
    policy: str | None,
    panel: Panel,
    samples: int,
    on: str | None = None,
    *,
    sets: Sets = (),
    env: Sequence[str] = (),
) -> EvalJob:
    """Create a job in which a run's policy plays a panel that the run has not trained on.

    See :func:`make_run_job` for the arguments.

    Raises:
        ConfigError: if the panel is for another benchmark than ``on``, or there is no such policy.
        SplitLeakError: if the run may have trained on tasks, products or rooms in the panel.
    """
    if on not in (None, panel.benchmark):
        raise ConfigError(
            f"The panel {panel.name} is for {panel.benchmark}, not for {on}. Omit --on (in "
            "Python, on)."
        )
    job = make_run_job(
        run, policy, panel.split, samples=samples, on=panel.benchmark, sets=sets, env=env
    )
    job = _with_panel(job, panel)
    if not job.elsewhere and job.policy not in (RANDOM, SCRIPTED):
        refuse_leaks(panel, job.tasks, job.assembly.benchmark, job.source)
    return job


def _with_panel(job: EvalJob, panel: Panel) -> EvalJob:
    """Return a copy of the job that plays the tasks of a panel, in the env that has them."""
    own = job.assembly.env_arguments
    for name, value in panel.env.items():
        if own.get(name, value) != value:
            raise ConfigError(
                f"--env {name}={own[name]} conflicts with the panel {panel.name}, whose tasks "
                f"have {name}={value}. Omit it."
            )
    arguments = FrozenDict({"subset": None, **panel.env, **own})
    assembly = replace(job.assembly, env_arguments=arguments)
    return replace(job, panel=panel, assembly=assembly)


def make_run_job(
    folder: RunFolder,
    policy: str | None,
    split: str,
    *,
    samples: int = 1,
    on: str | None = None,
    subset: str | None = None,
    final: str = "",
    sets: Sets = (),
    env: Sequence[str] = (),
) -> EvalJob:
    """Create a job that evaluates a run's policy on as many tasks as the run's own evaluations use.

    Args:
        folder: the run.
        policy: an arm, ``warm-up``, ``random`` or ``scripted`` (plays the references); None for
            the last arm.
        split: ``train``, ``val``, ``test`` or ``held_out``.
        samples: episodes per task.
        on: name of another benchmark to play, with its own prompt and choices.
        subset: the other benchmark's name for a part of the split; None for all of it.
        final: name of a task set in the run's ``evaluation.final`` to play instead.
        sets: settings that override the run's own, such as ``policy.chat.style=react``.
        env: extra arguments for the benchmark's env, each as ``"name=value"``.

    Raises:
        ConfigError: if the run has no such policy, or it cannot be sampled.
    """
    _, config = read_manifest(folder)
    if sets:
        config = load_config(config, sets=sets, environ={}).config
    name, elsewhere = policy or config.arms[-1], on is not None and on != config.benchmark.name
    trained = assembly = Assembly(config, run_folder=folder)
    if on is not None and elsewhere:
        there = _change_benchmark(config, on, subset)
        assembly = Assembly(load_config(there, sets=sets, environ={}).config if sets else there)
    if env:
        arguments = parse_env_arguments(assembly.env_class, env)
        assembly = replace(assembly, env_arguments=FrozenDict(arguments))
    job = EvalJob(
        folder.path.name,
        name,
        assembly,
        split,
        samples,
        _no_players,
        elsewhere=elsewhere,
        final=final,
    )
    if name in (RANDOM, SCRIPTED):
        return _add_baseline_players(job)
    if name not in (WARMUP, *config.arms):
        known = (*config.arms, WARMUP, RANDOM, SCRIPTED)
        raise ConfigError(f"{config.name} has no policy {name!r}. {suggest(name, known)}")
    request_arithmetic(config.arithmetic)  # before a checkpoint imports PyTorch
    saved = Checkpoints(folder.checkpoints / name).load_latest()
    if saved is None:
        raise ConfigError(
            f"{config.name} has no checkpoint of {name} yet. Train it with "
            f"`coevo resume {config.name}`."
        )
    _check_samples(assembly.config, samples)
    with configure_torch(config):
        warn_if_other_arithmetic(config.arithmetic, freeze_arithmetic_for(config))
        learnable = trained.policy
    with raise_restore_errors(saved, learnable):
        load_evaluation_weights(learnable, saved.state)
        if name == WARMUP:
            env_steps = int(saved.state["env_steps"])
        else:
            env_steps = int(json.loads(saved.state["loop"])["state"]["env_steps"])
    return replace(
        job,
        players=_policy_players(assembly, learnable, samples),
        model=model_id(config),
        weights=weights_hash(learnable),
        env_steps=env_steps,
        close=trained.close,
        asked=None if config.policy.kind == "tiny" else lambda: learnable,
    )


def make_model_job(
    benchmark: str,
    policy: str | None,
    split: str,
    progress: ProgressSink,
    *,
    panel: Panel | None = None,
    samples: int = 1,
    config: RunConfig | None = None,
    sets: Sets = (),
    env: Sequence[str] = (),
) -> EvalJob:
    """Create an evaluation job for an untrained language model or a baseline.

    Args:
        benchmark: name of the benchmark.
        policy: ``transformers:MODEL``, ``vllm:MODEL``, ``vllm_server:MODEL`` or ``openai:MODEL``;
            ``random`` or ``scripted``.
        split: ``train``, ``val``, ``test`` or ``held_out``.
        progress: display for the usage of an endpoint.
        panel: the benchmark's panel to play, of the same split.
        samples: episodes per task.
        config: settings, such as those from a file; None for the defaults with ``sets``.
        sets: more settings, see :func:`~coevo_gym.runs.config.load_config`.
        env: extra arguments for the benchmark's env, each as ``"name=value"``.

    Raises:
        ConfigError: if there is no such policy, or it cannot be sampled.
    """
    model_sets = model_settings(policy or "")
    if policy == PERSON:
        raise ConfigError(
            f"The policy {PERSON!r} stands for a human player, so it cannot be evaluated "
            "automatically. To save a player's score, run "
            f"`coevo play {benchmark} --web --split {split} --name NAME`."
        )
    if policy is None or (model_sets is None and policy not in (RANDOM, SCRIPTED)):
        raise ConfigError(
            f"Evaluation on {benchmark} needs a valid policy, got {policy!r}. "
            f"{did_you_mean(policy or '', [RANDOM, SCRIPTED, *MODEL_KINDS])}Set the policy "
            f"(--policy) to {', '.join(f'{kind}:MODEL' for kind in MODEL_KINDS)}, {RANDOM} or "
            f"{SCRIPTED}."
        )
    config = config or load_config({"benchmark": benchmark}, sets=sets).config
    if model_sets is not None:
        config = load_config(config, sets=model_sets, environ={}).config
    if config.benchmark.name != benchmark:
        raise ConfigError(
            f"--set benchmark={config.benchmark.name} conflicts with the benchmark {benchmark}. "
            f"Run `coevo eval {config.benchmark.name}` instead."
        )
    assembly = Assembly(config)
    assembly = Assembly(config, parse_env_arguments(assembly.env_class, env))
    job = EvalJob(benchmark, policy, assembly, split, samples, _no_players)
    job = job if panel is None else _with_panel(job, panel)
    if model_sets is None:
        return _add_baseline_players(job)
    _check_samples(config, samples)
    weights = "" if config.policy.kind == "openai" else files_hash(config.policy.model.path)
    opened = _LazyModel(job.assembly, progress)
    return replace(
        job,
        players=lambda *place: _policy_players(job.assembly, opened.player, samples)(*place),
        model=model_id(config),
        weights=weights,
        set_folder=opened.set_folder,
        close=opened.close,
        asked=lambda: opened.policy,
    )


def make_person_job(benchmark: str, split: str) -> EvalJob:
    """Create an evaluation job for a user who plays by hand.

    Raises:
        ConfigError: if a setting in an environment variable is invalid.
    """
    assembly = Assembly(load_config({"benchmark": benchmark}).config)
    return EvalJob(benchmark, PERSON, assembly, split, 1, _no_players)


class _LazyModel:
    """A model that is loaded when it is first used.

    Attributes:
        policy: the model.
        player: the model as the episodes use it: with a folder, the answers of an endpoint are
            recorded as they arrive. An episode that was interrupted replays them when it is run
            again, so the endpoint is not asked again.
    """

    def __init__(self, assembly: Assembly, progress: ProgressSink) -> None:
        self._assembly, self._progress = assembly, progress
        self._folder: EvalFolder | None = None
        self._policy: Policy | None = None
        self._player: Policy | None = None

    @property
    def policy(self) -> Policy:
        if self._policy is None:
            assembly, folder = self._assembly, self._folder
            settings = assembly.config.policy
            if settings.kind == "openai" and (permission := key_permission(settings.endpoint)):
                self._progress.say(f"Permitted: {permission}.")
            self._policy = make_policy(settings, seed=assembly.seed("policy"))
            if folder is not None and isinstance(self._policy, OpenAIPolicy):
                self._policy.sync_counts_with(folder.endpoint)
        return self._policy

    @property
    def player(self) -> Policy:
        if self._player is None:
            self._player = policy = self.policy
            if self._folder is not None and isinstance(policy, OpenAIPolicy):
                answers = AnswerFile(self._folder.answers)
                name = model_id(self._assembly.config)
                self._player = Tape(policy, answers, "fill", model=name, by_episode=True)
        return self._player

    def set_folder(self, folder: EvalFolder) -> None:
        self._folder = folder

    def close(self) -> None:
        if isinstance(self._policy, OpenAIPolicy):
            self._progress.say(self._policy.describe_usage())
        if isinstance(self._policy, ClosablePolicy):
            self._policy.close()


def _change_benchmark(config: RunConfig, benchmark: str, subset: str | None) -> RunConfig:
    """Return settings for the same policy on another benchmark, with that benchmark's prompt."""
    tree = config.to_json()
    hold_out = config.benchmark.hold_out
    tree["benchmark"] = {"name": benchmark, "subset": subset, "hold_out": hold_out}
    tree["policy"] = {**tree["policy"], "prompt": None}
    return RunConfig.model_validate(tree)


def _no_players(sample: int, done: int, tasks: Sequence[Task]) -> AbstractContextManager[Parts]:
    return nullcontext(())


def _add_baseline_players(job: EvalJob) -> EvalJob:
    if job.policy == RANDOM:
        return replace(job, players=_random_players(job.assembly))
    if job.samples > 1:
        raise ConfigError(
            f"{SCRIPTED} plays reference solutions, so {job.samples} samples would be identical."
        )
    return replace(job, players=reference_players)


def _random_players(assembly: Assembly) -> Players:
    """Return a factory of random agents, each with its own seed. Resuming creates a new agent."""

    def players(sample: int, done: int, tasks: Sequence[Task]) -> AbstractContextManager[Parts]:
        later = (f"random agent, sample {sample} from {done}",) if sample or done else ()
        return nullcontext([(assembly.random_agent(*later), tasks)])

    return players


def _policy_players(assembly: Assembly, policy: Policy, samples: int) -> Players:
    return assembly.make_players(assembly.agent(policy, _temperature(assembly.config, samples)))


def _check_samples(config: RunConfig, samples: int) -> None:
    if samples > 1 and _temperature(config, samples) == 0:
        raise ConfigError(
            f"policy.chat.temperature is 0, so {samples} samples would be identical. Sample once, "
            "or raise the temperature."
        )


def _temperature(config: RunConfig, samples: int) -> float:
    """Return the sampling temperature for an evaluation.

    It is the temperature of evaluations in runs. If that is 0, several samples are drawn at the
    temperature of training.
    """
    if config.evaluation.temperature or samples == 1:
        return config.evaluation.temperature
    return 1.0 if config.policy.kind == "tiny" else config.policy.chat.temperature
