"""Functions that create a run's components, such as its envs and policy, from its config."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import numpy as np
from numpy.random import Generator

from coevo_gym.agents.scripted import RandomAgent
from coevo_gym.core.arithmetic import request_arithmetic
from coevo_gym.core.benchmark import Benchmark, grows, require_proposable, starts_with_native_tasks
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.evolution import Round, digest
from coevo_gym.core.inquiry import Analyst
from coevo_gym.core.panel import Panel
from coevo_gym.core.registry import METHODS
from coevo_gym.core.seams import Agent, ClosablePolicy, Policy, Sampling
from coevo_gym.core.task import FrozenDict, Split, Task
from coevo_gym.curricula.explore.unproven import require_breakable
from coevo_gym.curricula.growth.signal_growth import NoGrowth
from coevo_gym.curricula.growth.targets import first_round
from coevo_gym.envs.base import TaskEnv, env_class_of
from coevo_gym.envs.held_out import benchmark_of
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.episodes.evaluation import Evaluation, Parts, Players, evaluate
from coevo_gym.episodes.runner import episode_seed
from coevo_gym.methods.kit import Kit, OnVerdict
from coevo_gym.methods.method import Method, MethodSpec
from coevo_gym.prompts import load_prompt
from coevo_gym.runs.config import ArmConfig, RunConfig, arm_configs
from coevo_gym.runs.evolving.evolver_models import Asked, AskedExplorer, Models
from coevo_gym.runs.panels.leaks import refuse_leaks
from coevo_gym.runs.panels.panel_files import EVALUATED, find_panel, is_panel, tasks_of_panel
from coevo_gym.runs.planning.device import device_here
from coevo_gym.runs.planning.memory import check_memory_settings, simultaneous_episodes
from coevo_gym.runs.policies import PolicyAgent, make_agent, make_learnable, prompt_of
from coevo_gym.runs.tasks.demonstrations import read_demonstrations
from coevo_gym.trainers.credit import Credit
from coevo_gym.trainers.demonstrations import Demonstrations
from coevo_gym.trainers.learners import make_learner
from coevo_gym.trainers.protocols import TrainedLearner
from coevo_gym.trainers.settings import LearnerSettings

if TYPE_CHECKING:
    from coevo_gym.agents.lm.language_model import LanguageModel
    from coevo_gym.store.checkpoint import Checkpoint
    from coevo_gym.store.folder import RunFolder
    from coevo_gym.trainers.distributed import RankWorker
    from coevo_gym.trainers.grpo import LearnablePolicy
    from coevo_gym.trainers.sft import Imitator


@dataclass(frozen=True)
class Assembly:
    """A factory for a run's envs, policy and other components. Equal configs give equal components.

    Attributes:
        config: the run's settings.
        env_arguments: extra arguments for the benchmark's env, used only in evaluations.
        database: path of the database with the run's tape; None if no rounds are run.
        run_folder: folder of a run that has begun, whose copies of panels are used; None to read
            the panels that the settings name.
    """

    config: RunConfig
    env_arguments: Mapping[str, Any] = FrozenDict()
    database: Path | None = None
    run_folder: RunFolder | None = None

    @cached_property
    def benchmark(self) -> Benchmark:
        """The benchmark to train on."""
        settings = self.config.benchmark
        return benchmark_of(settings.name, settings.hold_out)

    @cached_property
    def train_tasks(self) -> Sequence[Task]:
        """The training tasks that come with the benchmark."""
        return self.benchmark.tasks(Split.TRAIN, self.config.benchmark.subset)

    @cached_property
    def held_out_tasks(self) -> Sequence[Task]:
        """The held-out tasks on which arms are compared. They do not depend on the seed."""
        if (panel := self.panels.get(EVALUATED)) is not None:
            return self._tasks_of_panel(panel)
        return self.tasks_to_evaluate(self.config.evaluation.split)

    @cached_property
    def panels(self) -> Mapping[str, Panel]:
        """The panels that the run is evaluated on, keyed by the names of the run's copies.

        Raises:
            ConfigError: if there is no such panel, it was edited, or the run cannot use it.
        """
        settings = self.config.evaluation
        panels = {
            name: self._read_panel(name, entry)
            for name, entry in zip(settings.final_set_names, settings.final, strict=True)
            if is_panel(entry)
        }
        if settings.panel is None:
            return panels
        panel = self._read_panel(EVALUATED, settings.panel)
        if panel.split is Split.TEST or str(panel.split) != settings.split:
            raise ConfigError(
                f"evaluation.panel: the tasks of {panel.name} are {panel.split} tasks, but a run "
                f"is evaluated on validation tasks, here with evaluation.split = "
                f"{settings.split!r}. Score test tasks once, at the end: evaluation.final = "
                f"[{settings.panel!r}], or `coevo eval RUN --panel {settings.panel}`."
            )
        return {EVALUATED: panel, **panels}

    def _read_panel(self, name: str, entry: str) -> Panel:
        """Return the run's copy of a panel or, before the run has begun, the panel itself."""
        return find_panel(entry) if self.run_folder is None else self.run_folder.read_panel(name)

    def _tasks_of_panel(self, panel: Panel) -> Sequence[Task]:
        """Return a panel's tasks if the run can play them and does not train on them.

        Raises:
            ConfigError: if the panel is for another benchmark, or needs an env argument that a
                run does not pass.
            SplitLeakError: if the run may train on tasks, products or rooms in the panel.
        """
        settings = self.config.benchmark
        if panel.benchmark != settings.name:
            raise ConfigError(
                f"The panel {panel.name} is for {panel.benchmark}, but this run is on "
                f"{settings.name}. Choose another panel (`coevo panel list`)."
            )
        if others := [name for name in panel.env if name != "subset"]:
            raise ConfigError(
                f"The tasks of the panel {panel.name} need the env argument {others[0]} = "
                f"{panel.env[others[0]]!r}, which a run does not pass. Evaluate the finished run "
                "with `coevo eval RUN --panel`."
            )
        tasks = tasks_of_panel(panel)
        refuse_leaks(panel, tasks, self.benchmark, self.config.name)
        return tasks

    @cached_property
    def final_tasks(self) -> Mapping[str, Sequence[Task]]:
        """The task sets in ``evaluation.final``, keyed by name.

        Each set contains all tasks of that name, in a panel's order or ordered by id.

        Raises:
            ConfigError: if some of these tasks are also evaluated during training.
            TaskError: if the benchmark has no test tasks of that name.
        """
        evaluated = {task.id for task in self.held_out_tasks}
        sets = {name: self._final_task_set(name) for name in self.config.evaluation.final_set_names}
        for name, tasks in sets.items():
            if any(task.id in evaluated for task in tasks):
                raise ConfigError(
                    f"evaluation.final: some {name} tasks are already used for evaluation during "
                    f"training (split {self.config.evaluation.split}). Choose different tasks."
                )
        return sets

    def _final_task_set(self, name: str) -> Sequence[Task]:
        if name in self.panels:
            return self._tasks_of_panel(self.panels[name])
        if name in list(Split):
            tasks = self.benchmark.tasks(Split(name), self.config.benchmark.subset)
        else:
            tasks = self.benchmark.tasks(Split.TEST, name)
        return sorted(tasks, key=lambda task: task.id)

    @property
    def task_sets(self) -> dict[str, Sequence[Task]]:
        """The predefined tasks that the run uses, keyed by purpose."""
        sets = {"training": self.train_tasks, "held-out": self.held_out_tasks}
        sets |= {f"final {name}": tasks for name, tasks in self.final_tasks.items()}
        return {**sets, "demonstrated": self.demonstrations} if self.demonstrations else sets

    def tasks_to_evaluate(self, split: str) -> Sequence[Task]:
        """Return the tasks to evaluate in a split, ordered by id.

        The settings ``evaluation.n_tasks`` and ``.per_scenario`` limit their number.
        """
        with closing(self.make_env(split)) as env:
            tasks = sorted(cast(TaskEnv, env).tasks, key=lambda task: task.id)
        settings = self.config.evaluation
        if settings.per_scenario is not None:
            tasks = _limit_per_scenario(tasks, settings.per_scenario)
        return tasks[: settings.n_tasks]

    @cached_property
    def demonstrations(self) -> Sequence[Task]:
        """The demonstrated tasks, each with the demonstrated actions as its solution."""
        path = self.config.warmup.demonstrations
        return () if path is None else read_demonstrations(Path(path), self.benchmark)

    def warmup_tasks(self) -> Sequence[Task]:
        """Return the warm-up's training tasks: demonstrations, then the benchmark's own tasks."""
        tasks = [task for task in self.train_tasks if self.benchmark.demonstration(task)]
        n = min(self.config.warmup.n_tasks, len(tasks))
        indices = self.rng("warm-up tasks").choice(len(tasks), size=n, replace=False) if n else ()
        ids = {task.id for task in self.demonstrations}
        native = (tasks[int(index)] for index in indices)
        return [*self.demonstrations, *(task for task in native if task.id not in ids)]

    def seed(self, purpose: str) -> int:
        """Return the random seed for the given purpose, such as ``"policy"`` or ``"imitation"``."""
        return episode_seed(self.config.seed, purpose)

    def rng(self, purpose: str) -> Generator:
        """Return a random number generator for the given purpose, such as ``"warm-up tasks"``."""
        return np.random.default_rng(self.seed(purpose))

    @property
    def env_class(self) -> type[TaskEnv]:
        """The class of the benchmark's env."""
        return env_class_of(self.benchmark.name)

    @property
    def max_steps(self) -> int:
        """The maximum number of steps per episode."""
        setting = self.env_arguments.get("max_steps", self.config.benchmark.max_steps)
        return setting or self.env_class.default_max_steps

    def make_env(self, split: str = "train") -> gym.Env[str, str]:
        """Create an env without wrappers."""
        settings = self.config.benchmark
        keywords = {"split": split, "subset": settings.subset, **self.env_arguments}
        if settings.hold_out:
            keywords["hold_out"] = settings.hold_out
        if settings.max_steps is not None:
            keywords["max_steps"] = settings.max_steps
        env: gym.Env[str, str] = gym.make(
            self.benchmark.env_id, disable_env_checker=True, **keywords
        )
        return env.unwrapped

    def make_env_pool(self, split: str = "train") -> EnvPool:
        """Create the pool of envs for a split."""
        limit = self.max_envs
        if self.config.policy.kind == "openai":
            # More episodes would wait for each other, and lose what they cost if all are stopped.
            limit = min(limit, self.config.policy.endpoint.max_concurrency)
        workers = min(self.config.rollout.workers, limit)
        return EnvPool(lambda: self.make_env(split), max_envs=limit, n_workers=workers)

    @cached_property
    def max_envs(self) -> int:
        """Maximum number of simultaneous episodes; see ``rollout.max_envs``."""
        if self.config.rollout.max_envs is not None:
            return self.config.rollout.max_envs
        most, device = self.env_class.max_live, device_here(self.config.policy)
        fitting = None if device is None else simultaneous_episodes(self.config, device)
        return most if fitting is None else min(most, fitting)

    @cached_property
    def policy(self) -> LearnablePolicy:
        """The policy object that all arms share. Each arm restores its own state first.

        Only one object exists, because a language model may fill a GPU.
        """
        return make_learnable(self.config.policy, seed=self.seed("policy"))

    @cached_property
    def rank_worker(self) -> RankWorker | None:
        """This process's part in the learner, if several processes share it, or None."""
        from coevo_gym.trainers.update.ranks import RankGroup, current_ranks

        ranks = current_ranks()
        if not isinstance(ranks, RankGroup):
            return None
        from coevo_gym.trainers.distributed import RankWorker

        policy = cast("LanguageModel", self.policy) if ranks.rank == 0 else None
        model, seed = self.config.policy.model, self.seed("policy")
        return RankWorker(ranks, model, policy, self.config.warmup, seed=seed)

    def make_learner(self, settings: LearnerSettings, credit: Credit | None) -> TrainedLearner:
        """Create a learner for the policy, which all of the run's processes share."""
        seed = self.seed("learner")
        if self.rank_worker is None:
            return make_learner(settings, self.policy, credit, seed)
        from coevo_gym.trainers.distributed import DistributedLearner

        return DistributedLearner(self.rank_worker, settings, credit=credit, seed=seed)

    def make_imitator(self, demonstrations: Demonstrations) -> Imitator:
        """Create the warm-up's imitator, which all of the run's processes share."""
        from coevo_gym.trainers.sft import Imitator

        seed = self.seed("imitation")
        if self.rank_worker is None:
            return Imitator(self.policy, demonstrations, self.config.warmup, seed=seed)
        from coevo_gym.trainers.distributed import DistributedImitator

        return DistributedImitator(self.rank_worker, demonstrations, seed=seed)

    def close(self) -> None:
        """Stop the servers of the policy, if it was created and has any."""
        policy = self.__dict__.get("policy")  # accessing the property would create one
        if isinstance(policy, ClosablePolicy):
            policy.close()

    def agent(self, policy: Policy, temperature: float | None = None) -> PolicyAgent:
        """Create an agent that follows a policy.

        Without a ``temperature``, the agent samples as in training.
        """
        return make_agent(self.config.policy, policy, self.benchmark, temperature=temperature)

    def evaluation_agent(self, policy: Policy) -> PolicyAgent:
        """Create the agent that follows a policy in the run's evaluations."""
        return self.agent(policy, self.config.evaluation.temperature)

    def seed_sampling(self, policy: object, *part: int) -> AbstractContextManager[None]:
        """Return a context manager that seeds a policy's sampling without affecting training.

        A policy without a ``use_seed`` method is not seeded. The numbers in ``part`` identify a
        part of an evaluation, and each part gets its own seed.
        """
        use_seed = getattr(policy, "use_seed", None)
        seed = int(digest([self.seed("samples"), *part]), 16) % 2**31
        return nullcontext() if use_seed is None else use_seed(seed)

    def random_agent(self, purpose: str = "random agent") -> RandomAgent:
        """Create a random agent whose seed is derived from ``purpose`` and the run's seed.

        Its action is "" where there are no choices, as for rows that are answered with free text.
        """
        return RandomAgent(lambda view: self.benchmark.choices(view) or ("",), self.rng(purpose))

    @cached_property
    def arms(self) -> Mapping[str, ArmConfig]:
        """The settings of each arm, in order, keyed by name.

        Raises:
            ConfigError: if a method cannot be found, or an arm sets a key that it may not set.
        """
        return arm_configs(self.config)

    def check_settings(self) -> None:
        """Check that a run with these settings is possible.

        Raises:
            ConfigError: if a method cannot be found, an arm sets a key that it may not set, a model
                cannot do its task, or settings that save memory do not suit the machine.
            ImportError: if the package of an optimiser is not installed.
        """
        check_memory_settings(self.config)
        parts: list[ArmConfig | RunConfig] = [self.config, *self.arms.values()]
        for settings in parts:
            if settings.explorer.kind == "model":
                require_proposable(self.benchmark)
            if settings.explorer.kind == "noisy" and settings.explorer.broken:
                require_breakable(self.benchmark)
            check_gate_models(settings, reads=self.config.policy.kind != "tiny")

    def method(self, arm: ArmConfig, on_verdict: OnVerdict | None = None) -> Method:
        """Create the components of an arm's method.

        ``on_verdict`` is called after each draft of a round; an exception from it stops the round.
        """
        spec: MethodSpec = METHODS.load(arm.method)
        return spec(arm.settings, self.kit(arm, on_verdict))

    def kit(self, arm: ArmConfig | None, on_verdict: OnVerdict | None = None) -> Kit:
        """Return the components of an arm's method, or of the initial rounds if ``arm`` is None."""
        settings: ArmConfig | RunConfig = self.config if arm is None else arm
        check_gate_models(settings, reads=self.config.policy.kind != "tiny")
        prompt = prompt_of(self.config.policy, self.benchmark.name)
        curriculum, full = settings.curriculum, starts_with_native_tasks(self.benchmark)
        if not grows(self.benchmark):
            curriculum = curriculum.model_copy(update={"growth": NoGrowth()})
        return Kit(
            benchmark=self.benchmark,
            native_tasks=self.train_tasks,
            max_steps=self.max_steps,
            observation_tokens=self.env_class.observation_tokens,
            curriculum=curriculum,
            learner=settings.learner,
            make_env=self.make_env,
            policy=lambda: self.policy,
            first_round=lambda n: None if full else self.first_round(n, curriculum.initial),
            seed=self.seed,
            explorer_settings=settings.explorer,
            gate_settings=settings.gates,
            tries=lambda temperature: self.agent(self.policy, temperature),
            max_envs=self.max_envs,
            analyst=lambda: self._analyst(arm),
            language_model=prompt is not None,
            answer_form=None if prompt is None else prompt.header.answer,
            group_size=self.config.rollout.group_size,
            study_only_steps=settings.loop.study_only_steps,
            embedder=partial(settings.curriculum.make_embedder, reads=prompt is not None),
            asked=self.explorer_model(arm),
            on_verdict=on_verdict,
        )

    def explorer_model(self, arm: ArmConfig | None) -> AskedExplorer | None:
        """Return the model that an arm's rounds query, or None if they query no model."""
        settings: ArmConfig | RunConfig = self.config if arm is None else arm
        name = "" if arm is None else arm.name
        return self.models.explorer(name, settings.explorer, settings.advisor)

    def analyst_model(self, arm: ArmConfig) -> Asked | None:
        """Return the model queried by an arm's studies, or None if they query no model."""
        if not arm.questions_per_step:
            return None
        return self.models.analyst(arm.name, arm.analyst, arm.advisor)

    def _analyst(self, arm: ArmConfig | None) -> Analyst:
        asked = None if arm is None else self.analyst_model(arm)
        if arm is None or asked is None:
            raise ConfigError(
                "The method calls kit.analyst() to query a model, but its settings do not define "
                "questions_per_step, so the cost is unknown. Define this property in the settings."
            )
        sampling = Sampling(arm.analyst.temperature, arm.analyst.max_answer_tokens)
        return Analyst(asked.advisor, asked.scope, sampling)

    @cached_property
    def models(self) -> Models:
        """The models queried by rounds and studies."""
        return Models(
            self.config,
            database=self.database,
            policy=lambda: self.policy,
            prompt=lambda: load_prompt(self.benchmark.name),
            seed=self.seed("explorer's model"),
        )

    def first_round(self, n: int, initial: str = "unguided") -> Round:
        """Return the round that finds the first ``n`` tasks (D_0) for all arms.

        It uses the run's explorer for all arms, so targets are planned from the tasks that the run
        may explore.
        """
        if (n, initial) not in self._first_rounds:
            starts = self.kit(None).starts if initial == "coverage" else ()
            self._first_rounds[n, initial] = first_round(
                n, initial, native=starts, seed=self.seed("D_0")
            )
        return self._first_rounds[n, initial]

    @cached_property
    def _first_rounds(self) -> dict[tuple[int, str], Round]:
        return {}

    def make_players(self, agent: Agent) -> Players:
        """Return a function that assigns tasks to an agent and reseeds its policy on each call."""

        @contextmanager
        def seeded_players(sample: int, done: int, tasks: Sequence[Task]) -> Iterator[Parts]:
            # Otherwise a resumed evaluation would repeat the random draws of its first episodes.
            with self.seed_sampling(getattr(agent, "policy", None), sample, done):
                yield [(agent, tasks)]

        return seeded_players

    def evaluate(
        self,
        agent: Agent,
        tasks: Sequence[Task] | None = None,
        on_done: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Evaluate an agent on the held-out tasks, or on the given tasks of a single split.

        The result is only returned, not stored.
        """
        tasks = self.held_out_tasks if tasks is None else tasks
        split = str(tasks[0].split) if tasks else self.config.evaluation.split
        samples = self.config.evaluation.samples
        with closing(self.make_env_pool(split)) as envs:
            return evaluate(
                self.make_players(agent),
                tasks,
                envs,
                seed=self.config.seed,
                samples=samples,
                on_done=on_done,
            )


def _limit_per_scenario(tasks: Sequence[Task], n: int) -> list[Task]:
    """Keep the first ``n`` tasks of each scenario, in order."""
    counts, subset = Counter[str](), []
    for task in tasks:
        counts[task.scenario] += 1
        if counts[task.scenario] <= n:
            subset.append(task)
    return subset


def check_gate_models(settings: ArmConfig | RunConfig, *, reads: bool) -> None:
    """Check that the settings include all models that the gates need.

    ``reads`` is True if the policy being trained is a language model.

    Raises:
        ConfigError: if a model is missing.
    """
    gates, asks = settings.gates, settings.explorer.kind == "model"
    solves, paper = gates.has_gate("solve") or gates.accept == "paper", gates.accept == "paper"
    if solves and (paper or gates.solve.tip) and gates.solve.solver == "policy" and not reads:
        raise ConfigError(
            "gates: the tiny policy scores actions but does not read advice, so it cannot use a "
            "reference solution. Set gates.solve.solver = 'explorer', use a language model, or "
            "leave gates.solve.tip and gates.accept at their defaults."
        )
    needs = {
        "gates.accept = 'paper'": paper,
        "gates.judge": gates.has_gate("judge"),
        "gates.solve.solver = 'explorer'": solves and gates.solve.solver == "explorer",
    }
    for key, needed in needs.items():
        if needed and not asks:
            raise ConfigError(
                f"{key} needs a language model, but explorer.kind = {settings.explorer.kind!r} "
                "does not use one. Set explorer.kind = 'model' and configure explorer.model."
            )


@contextmanager
def configure_torch(config: RunConfig) -> Iterator[None]:
    """Make PyTorch's results in a ``with`` block depend on the machine as little as possible.

    The arithmetic is the one in the settings, unless PyTorch has already computed something. The
    tiny policy runs in one thread: a second one would not make it faster, and results do not depend
    on the number of cores. A language model uses all threads. An endpoint needs no PyTorch.
    """
    if config.policy.kind == "openai":
        yield
        return
    request_arithmetic(config.arithmetic)
    import torch

    before = torch.get_num_threads()
    if config.policy.kind == "tiny":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def raise_restore_errors(saved: Checkpoint, policy: LearnablePolicy) -> Iterator[None]:
    """Raise a StoreError if a checkpoint cannot be restored in the ``with`` block.

    Raises:
        StoreError: if the checkpoint does not match the run, or contains weights that are not
            finite; the message contains the path.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = shorten(f"{type(error).__name__}: {error}", 300)
        raise StoreError(f"{saved.path} does not match this run ({reason}). {_REPLACE}") from error
    if not all(bool(parameter.isfinite().all()) for parameter in policy.parameters()):
        raise StoreError(f"{saved.path} contains weights that are not finite. {_REPLACE}")


_REPLACE = (
    "Restore the right file, delete this one to use the previous checkpoint, or start over with "
    "--overwrite."
)


def load_evaluation_weights(policy: LearnablePolicy, saved: Mapping[str, Any]) -> None:
    """Load a checkpoint's weights into a policy for evaluation, using averaged weights if saved."""
    from coevo_gym.trainers.update.optimizer import load_weights

    policy.load_state_dict(saved["policy"])
    average = saved.get("learner", {}).get("average")
    if average is not None:
        load_weights(policy, average)


def weights_hash(policy: LearnablePolicy) -> str:
    """Return the SHA-256 hash of the trained weights' bytes."""
    import torch

    state = hashlib.sha256()
    for parameter in policy.parameters():
        flat = parameter.detach().cpu().contiguous().flatten()
        state.update(flat.view(torch.uint8).numpy().tobytes())
    return state.hexdigest()
