"""The kit that a run hands to a method's file: makers of parts, and the settings of those parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import gymnasium as gym

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, Verdict
from coevo_gym.core.inquiry import Advisor, Analyst, Scope, no_scope
from coevo_gym.core.seams import Agent, Evolver, Policy, Sampling
from coevo_gym.core.task import FrozenDict, Task
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import Explorer, ScriptedExplorer
from coevo_gym.curricula.explore.model_explorer import ModelExplorer
from coevo_gym.curricula.explore.settings import ExplorerConfig
from coevo_gym.curricula.explore.unproven import UnprovenEvolver
from coevo_gym.curricula.gates.candidate import Gate
from coevo_gym.curricula.gates.gates import default_gates
from coevo_gym.curricula.gates.settings import GatesConfig
from coevo_gym.curricula.gates.similarity import set_aside
from coevo_gym.curricula.gates.solve import Solver
from coevo_gym.curricula.pool.embed import Embedder
from coevo_gym.curricula.pool.known import KnownTasks
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.methods import DEFAULT_PROMPTS
from coevo_gym.prompts import AnswerForm
from coevo_gym.trainers.settings import LearnerConfig

UNGUIDED_TEMPERATURE = 1.0
"""Walks without guidance have to differ from each other."""
EXPLORE, SOLVE = "explore", "solve"
"""Purposes by which the steps of walks, and those of tries of new tasks, are counted."""
OnVerdict = Callable[[Verdict], None]


class ExplorerModel(Protocol):
    """The model that rounds ask."""

    @property
    def advisor(self) -> Advisor:
        """Answers questions."""
        ...

    @property
    def scope(self) -> Scope:
        """Names the work that asks."""
        ...

    @property
    def tasks(self) -> str:
        """What makes a task valid in the env, in words."""
        ...

    def agent(self, purpose: str = EXPLORE, temperature: float | None = None) -> Agent:
        """Create an agent that acts in the env with it.

        Args:
            purpose: what its answers are counted as.
            temperature: what logits are divided by; None for the explorer's temperature.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Kit:
    """All that a method is made from. It holds no more of a run's settings than these parts need.

    The settings are those of the arm: the run's, those that define the method, and the arm's own.

    Attributes:
        benchmark: the benchmark that is practised.
        native_tasks: its training tasks.
        max_steps: most steps of an episode.
        curriculum: settings of the pool, its selector and its growth.
        learner: settings of the learner.
        make_env: creates a raw env on the training split.
        policy: returns the policy under training. There is one, made when it is first asked for.
        first_round: returns the round that finds the first ``n`` tasks, as ``curriculum.initial``
            says. It is the same for all arms that say the same and look for equally many, so that
            they begin with the same tasks.
        seed: returns the seed of one part of the run, by its purpose.
        explorer_settings: settings of the explorer.
        gate_settings: settings of the gates.
        group_size: K, rollouts in a group.
        study_only_steps: first steps of the learner in which nothing is learned.
        embedder: creates what turns texts into vectors, as ``curriculum.embedder`` says.
        language_model: whether the policy under training is a language model.
        answer_form: where its answers hold the action; None for another policy.
        asked: the model that rounds ask; None if they ask none.
        tries: creates an agent that acts with the policy under training, at a temperature.
        analyst: returns the model that studies ask, made when it is first asked for. The settings
            of a method whose studies ask have a member ``questions_per_step``.
        max_envs: most envs alive at once.
        on_verdict: called with each verdict; what it raises stops the round.
    """

    benchmark: Benchmark
    native_tasks: Sequence[Task]
    max_steps: int
    curriculum: CurriculumConfig
    learner: LearnerConfig
    make_env: Callable[[], gym.Env[str, str]]
    policy: Callable[[], Policy]
    first_round: Callable[[int], Round]
    seed: Callable[[str], int]
    explorer_settings: ExplorerConfig
    gate_settings: GatesConfig
    tries: Callable[[float], Agent]
    analyst: Callable[[], Analyst]
    max_envs: int
    group_size: int
    study_only_steps: int
    embedder: Callable[[], Embedder]
    language_model: bool
    answer_form: AnswerForm | None = None
    asked: ExplorerModel | None = None
    on_verdict: OnVerdict | None = None

    def explorer(
        self, prompts: str = DEFAULT_PROMPTS, *, told: Mapping[str, Any] = FrozenDict()
    ) -> Explorer:
        """Create the explorer that ``explorer.kind`` names; kind "noisy" ignores it.

        Args:
            prompts: the room of the prompt files that a model explores with.
            told: more inputs of these prompts, as JSON; each is given those that it declares.

        Raises:
            ConfigError: if models cannot explore the benchmark, there is no such prompt, or none
                declares an input in ``told``.
        """
        settings, asked = self.explorer_settings, self.asked
        if asked is None:
            return ScriptedExplorer(
                self.benchmark,
                rounds=settings.walks,
                max_steps=settings.max_steps,
                make_env=self.make_env,
            )
        return ModelExplorer(
            self.benchmark,
            asked.advisor,
            asked.agent(),
            prompts=prompts,
            unguided=asked.agent(temperature=UNGUIDED_TEMPERATURE),
            tasks=asked.tasks,
            walks=settings.walks,
            max_steps=min(settings.max_steps, self.max_steps),
            concurrency=settings.concurrency,
            max_envs=min(self.max_envs, settings.concurrency * settings.walks),
            sampling=Sampling(settings.temperature, settings.max_answer_tokens),
            make_env=self.make_env,
            told=told,
        )

    def advisor(self) -> Advisor:
        """Return the model that explores, to be asked questions.

        Raises:
            ConfigError: if this run asks no model.
        """
        if self.asked is None:
            raise ConfigError(
                'This step needs a language model. Set explorer.kind = "model" and configure '
                "explorer.model."
            )
        return self.asked.advisor

    @property
    def scope(self) -> Scope:
        """Names the work of an evolver of one's own, so that what it asks is taped and counted."""
        return no_scope if self.asked is None else self.asked.scope

    def gates(self, benchmark: Benchmark, known: KnownTasks) -> Sequence[Gate]:
        """Create the gates that a draft must pass."""
        settings = self.gate_settings
        asks = settings.has("judge") or settings.accept == "paper"
        return default_gates(
            benchmark,
            known,
            settings=settings,
            solver=self._solver() if self._solves else None,
            advisor=self.advisor() if asks else None,
        )

    @cached_property
    def starts(self) -> Sequence[Task]:
        """Training tasks that rounds may explore from; targets are planned from these."""
        if self.gate_settings.similarity.bin == "all":
            return self.native_tasks
        _, rest = set_aside(self.native_tasks)
        return rest

    def evolver(self, explorer: Explorer) -> Evolver:
        """Create the evolver that carries out rounds with an explorer and the gates.

        With ``explorer.kind = "noisy"`` it uses neither.
        """
        settings = self.explorer_settings
        if settings.kind == "noisy":
            return UnprovenEvolver(
                self.benchmark,
                self.native_tasks,
                broken=settings.broken,
                steps_each=settings.max_steps,
                easy=settings.easy,
                solver=Solver(self.tries(1.0), self.make_env) if settings.easy else None,
            )
        return GatedEvolver(
            self.benchmark,
            explorer,
            gates_of=self.gates,
            native=self.starts,
            on_verdict=self.on_verdict,
            scope=self.scope,
        )

    @property
    def _solves(self) -> bool:
        return self.gate_settings.has("solve") or self.gate_settings.accept == "paper"

    def _solver(self) -> Solver:
        """Create the agent that tries new tasks."""
        solve = self.gate_settings.solve
        if solve.solver == "policy":
            return Solver(self.tries(solve.temperature), self.make_env)
        assert self.asked is not None  # settings that ask for one without a model are refused
        return Solver(self.asked.agent(SOLVE, solve.temperature), self.make_env)
