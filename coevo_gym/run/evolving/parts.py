"""What rounds are carried out with, made from settings: explorer, gates, solver, evolver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import gymnasium as gym

from coevo_gym.config import ArmConfig, ExplorerSettings, RunConfig, asks_policy
from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Verdict
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
from coevo_gym.curricula.gates.similarity import BinnedEvolver, set_aside
from coevo_gym.curricula.gates.solve import Solver
from coevo_gym.curricula.pool.known import KnownTasks
from coevo_gym.methods import DEFAULT_PROMPTS
from coevo_gym.run.evolving.models import SOLVE, Asked
from coevo_gym.run.rounds import DrawnAside

OnVerdict = Callable[[Verdict], None]


def aside(evolver: Evolver, settings: ArmConfig | RunConfig, policy: Policy) -> Evolver:
    """The evolver; where the policy under training takes part, its draws are the round's own."""
    if not asks_policy(settings):
        return evolver
    drawing = getattr(policy, "drawing", None)
    if drawing is None:
        raise ConfigError(
            f"{type(policy).__name__} cannot take part in rounds: it has no method drawing(seed), "
            "a scope in which it draws by a seed."
        )
    return DrawnAside(evolver, drawing)


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
class RoundParts:
    """Makes the parts of rounds.

    Attributes:
        benchmark: whose tasks they are.
        native_tasks: its training tasks.
        make_env: one raw env on the training split.
        max_envs: most envs alive at once.
        explorer_settings: who explores.
        gates_settings: what drafts must pass.
        asked: the model that is asked; None where none is.
        tries: acts with the policy under training, at a temperature.
        on_verdict: called with each verdict; what it raises stops the round.
    """

    benchmark: Benchmark
    native_tasks: Sequence[Task]
    make_env: Callable[[], gym.Env[str, str]]
    max_envs: int
    explorer_settings: ExplorerSettings
    gates_settings: GatesConfig
    asked: Asked | None
    tries: Callable[[float], Agent]
    on_verdict: OnVerdict | None = None

    def explorer(self, prompts: str = DEFAULT_PROMPTS) -> Explorer:
        """Who goes back into the env; nobody does of ``noisy``, whatever explorer it is given.

        Args:
            prompts: the room of the prompt files that a model explores with.

        Raises:
            ConfigError: if models cannot explore the benchmark, or there is no such prompt.
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
            walks=settings.walks,
            max_steps=settings.max_steps,
            concurrency=settings.concurrency,
            max_envs=min(self.max_envs, settings.concurrency * settings.walks),
            sampling=Sampling(settings.temperature, settings.max_answer_tokens),
            make_env=self.make_env,
        )

    def advisor(self) -> Advisor:
        """Who is asked questions.

        Raises:
            ConfigError: if this run asks no model.
        """
        if self.asked is None:
            raise ConfigError(
                "Here a model is to be asked, and this run has none: set explorer.kind to 'model', "
                "and explorer.model to the one."
            )
        return self.asked.advisor

    @property
    def scope(self) -> Scope:
        """Names the work that asks."""
        return no_scope if self.asked is None else self.asked.scope

    def gates(self, benchmark: Benchmark, known: KnownTasks) -> Sequence[Gate]:
        """The gates of a round."""
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
        """The training tasks that may be explored from: all that are not set aside."""
        if self.gates_settings.similarity.bin == "all":
            return self.native_tasks
        _, rest = set_aside(self.native_tasks)
        return rest

    def evolver(self, explorer: Explorer) -> Evolver:
        """Who carries out rounds with an explorer; without one and without gates of ``noisy``."""
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
        bin = self.gates_settings.similarity.bin
        evolver = GatedEvolver(
            self.benchmark,
            explorer,
            gates_of=self.gates,
            native=self.starts,
            on_verdict=self.on_verdict,
            scope=self.scope,
        )
        if bin == "all":
            return evolver
        aside, _ = set_aside(self.native_tasks)
        return BinnedEvolver(evolver, bin, aside)

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
