"""The kit of a run: the parts of an arm's method, made from settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import gymnasium as gym

from coevo_gym.config import ArmConfig, ExplorerSettings, RunConfig
from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, Verdict
from coevo_gym.core.inquiry import Advisor, Scope, no_scope
from coevo_gym.core.seams import Agent, Evolver, Policy, Sampling
from coevo_gym.core.task import Task
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import Explorer, ScriptedExplorer
from coevo_gym.curricula.explore.model_explorer import ModelExplorer
from coevo_gym.curricula.explore.unproven import UnprovenEvolver
from coevo_gym.curricula.gates.candidate import Gate
from coevo_gym.curricula.gates.gates import default_gates
from coevo_gym.curricula.gates.settings import GatesConfig
from coevo_gym.curricula.gates.similarity import set_aside
from coevo_gym.curricula.gates.solve import Solver
from coevo_gym.curricula.pool.known import KnownTasks
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.methods import DEFAULT_PROMPTS
from coevo_gym.run.evolving.models import SOLVE, Asked
from coevo_gym.trainers.settings import LearnerConfig

OnVerdict = Callable[[Verdict], None]


def check_gates(settings: ArmConfig | RunConfig, *, reads: bool) -> None:
    """Look whether there are the models that the gates need.

    Args:
        settings: of an arm, or of the run.
        reads: whether the policy under training is a language model.

    Raises:
        ConfigError: if there are not.
    """
    gates, asks = settings.gates, settings.explorer.kind == "model"
    solves, paper = gates.has("solve") or gates.accept == "paper", gates.accept == "paper"
    if solves and (paper or gates.solve.tip) and gates.solve.solver == "policy" and not reads:
        raise ConfigError(
            "gates: policy.kind = 'tiny' scores actions and reads no advice, so it cannot be "
            "shown a reference. Leave gates.solve.tip and gates.accept as they are, set "
            "gates.solve.solver to 'explorer', or use a language model."
        )
    needs = {
        "gates.accept = 'paper'": paper,
        "gates.judge": gates.has("judge"),
        "gates.solve.solver = 'explorer'": solves and gates.solve.solver == "explorer",
    }
    for key, needed in needs.items():
        if needed and not asks:
            raise ConfigError(
                f"{key} needs a model to ask, but explorer.kind = "
                f"{settings.explorer.kind!r} asks no model: set it "
                "to 'model', and explorer.model to the one."
            )


@dataclass(frozen=True, kw_only=True)
class RunKit:
    """A :class:`~coevo_gym.methods.kit.Kit`, made from the settings of an arm.

    Attributes:
        benchmark: the benchmark that is practised.
        native_tasks: its training tasks.
        max_steps: most steps of an episode.
        curriculum: settings of the pool, its selector and its growth.
        learner: settings of the learner.
        make_env: creates a raw env on the training split.
        policy: returns the policy under training.
        first_round: returns the round that finds the first ``n`` tasks.
        seed: returns the seed of one part of the run.
        max_envs: most envs alive at once.
        explorer_settings: settings of the explorer.
        gates_settings: what drafts must pass.
        asked: the model that is asked; None where none is.
        tries: creates an agent that acts with the policy under training, at a temperature.
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
    max_envs: int
    explorer_settings: ExplorerSettings
    gates_settings: GatesConfig
    asked: Asked | None
    tries: Callable[[float], Agent]
    on_verdict: OnVerdict | None = None

    def explorer(self, prompts: str = DEFAULT_PROMPTS) -> Explorer:
        """Create the explorer; kind ``noisy`` ignores it. See :class:`Kit`."""
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
            walks=settings.walks,
            max_steps=settings.max_steps,
            concurrency=settings.concurrency,
            max_envs=min(self.max_envs, settings.concurrency * settings.walks),
            sampling=Sampling(settings.temperature, settings.max_answer_tokens),
            make_env=self.make_env,
        )

    def advisor(self) -> Advisor:
        """See :class:`Kit`."""
        if self.asked is None:
            raise ConfigError(
                'This step needs a language model. Set explorer.kind = "model" and configure '
                "explorer.model."
            )
        return self.asked.advisor

    @property
    def scope(self) -> Scope:
        """See :class:`Kit`."""
        return no_scope if self.asked is None else self.asked.scope

    def gates(self, benchmark: Benchmark, known: KnownTasks) -> Sequence[Gate]:
        """See :class:`Kit`."""
        settings = self.gates_settings
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
        """See :class:`Kit`; tasks that are set aside are left out."""
        if self.gates_settings.similarity.bin == "all":
            return self.native_tasks
        _, rest = set_aside(self.native_tasks)
        return rest

    def evolver(self, explorer: Explorer) -> Evolver:
        """See :class:`Kit`; kind ``noisy`` ignores explorer and gates."""
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
        return self.gates_settings.has("solve") or self.gates_settings.accept == "paper"

    def _solver(self) -> Solver:
        """Who tries new tasks."""
        solve = self.gates_settings.solve
        if solve.solver == "policy":
            return Solver(self.tries(solve.temperature), self.make_env)
        assert self.asked is not None  # see check_gates
        return Solver(self.asked.agent(SOLVE, solve.temperature), self.make_env)
