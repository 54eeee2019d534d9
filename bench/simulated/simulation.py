"""A simulated run of one arm in one world with one seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random import SeedSequence

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.seams import Ticket
from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import Trajectory
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.gates.candidate import Gate
from coevo_gym.curricula.gates.gates import (
    BuildGate,
    DuplicateGate,
    ParseGate,
    PrefixGate,
    ReplayGate,
    SplitLeakGate,
)
from coevo_gym.curricula.pool.known import KnownTasks
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.curricula.session.curriculum_session import CurriculumSession
from simulated.benchmark import SkillBenchmark, make_trajectory, register, world_of
from simulated.generator import SkillExplorer, draw_held_out
from simulated.learner import Rollouts, SkillLearner
from simulated.worlds import WorldConfig

N_NATIVE = 400
"""Number of native training tasks in a world; targets are planned from these tasks."""
N_HELD_OUT = 400


def curriculum_settings(world: WorldConfig) -> dict[str, Any]:
    """Return default curriculum settings for a world. An arm's own settings override them.

    A round is due after every 10 updates and tries 48 drafts, each from its own context.
    """
    return {
        "initial_size": world.first_tasks,
        "growth": {
            "every_groups": 10 * world.groups_per_step,
            "max_contexts": 48,
            "drafts": 48,
        },
    }


def simulate(
    world: WorldConfig, settings: CurriculumConfig, *, seed: int, proof: bool | None = None
) -> dict[str, float]:
    """Train until the world's env-step budget is spent.

    For one seed, the world, the initial tasks and the random draws are the same for all arms that
    find their initial tasks in the same way. With ``proof``, the arm's rounds replay drafts
    before accepting them; None uses the world's setting, which always applies to the initial tasks.

    Returns:
        ``success``, the share of held-out tasks that the greedy learner solves at the end;
        ``success_before``, the same before training; ``success_sampled``; ``steps``, ``env_steps``
        and ``episodes`` as in every run; and all metrics of the curriculum.

    Example:
        >>> world = WorldConfig(env_steps=2_000)
        >>> fixed = {**curriculum_settings(world), "growth": {"kind": "none"}}
        >>> settings = CurriculumConfig(**fixed)
        >>> ended = simulate(world, settings, seed=0)
        >>> ended["pool_size"], ended["env_steps"] >= 2_000
        (40.0, True)
    """
    register()
    return _Run(world, settings, seed, world.proof if proof is None else proof).run()


class _Run:
    """A simulated run in progress."""

    def __init__(
        self, world: WorldConfig, settings: CurriculumConfig, seed: int, proof: bool
    ) -> None:
        self.world = world
        of_world, of_chance = SeedSequence(seed).spawn(2)
        rng = np.random.default_rng(of_world)
        self.rng = np.random.default_rng(of_chance)
        self.learner = SkillLearner(world, rng)
        self.explorer = SkillExplorer(world, rng)
        self.held_out = draw_held_out(world, N_HELD_OUT, rng)
        self.benchmark = SkillBenchmark(self.explorer.draw_native_tasks(N_NATIVE, rng))
        first, later = self._make_evolver(world.proof), self._make_evolver(proof)
        curriculum = settings.make(native=self.benchmark.tasks(Split.TRAIN))
        self.session = CurriculumSession(
            curriculum, _Evolvers(first, later), group_size=world.group_size, seed=seed
        )
        self.env_steps = self.episodes = 0

    def run(self) -> dict[str, float]:
        """Run until the env-step budget is spent and return the results."""
        before = self.learner.success_on(self.held_out)
        self._evolve()
        while self.env_steps < self.world.env_steps:
            self._run_step()
            self._evolve()
        return {
            "success": self.learner.success_on(self.held_out),
            "success_before": before,
            "success_sampled": self.learner.success_on(self.held_out, greedy=False),
            "steps": float(self.learner.version),
            "env_steps": float(self.env_steps),
            "episodes": float(self.episodes),
            **self.session.metrics(),
        }

    def _run_step(self) -> None:
        """Run one update: request episodes, play them, form groups and learn from the groups."""
        n_groups, session = self.world.groups_per_step, self.session
        session.open_step(n_groups)
        items = [
            session.take(policy_version=self.learner.version)
            for _ in range(session.n_ready_tickets)
        ]
        tickets = [ticket for ticket in items if isinstance(ticket, Ticket)]
        size = session.group_size  # tickets of a group are consecutive
        groups = [tickets[at : at + size] for at in range(0, len(tickets), size)]
        tasks = [group[0].task for group in groups]
        self.learner.add_memories(tasks)
        rollouts = self.learner.sample_rollouts(tasks, size, self.rng)
        for row, group in enumerate(groups):
            for ticket, trajectory in zip(
                group, self._make_trajectories(rollouts, row, group), strict=True
            ):
                session.report(ticket.id, trajectory)
                self.env_steps += len(trajectory.steps)
        self.episodes += len(tickets)
        session.close_step()
        self.learner.learn(rollouts)

    def _make_trajectories(
        self, rollouts: Rollouts, row: int, group: Sequence[Ticket]
    ) -> list[Trajectory]:
        """Return a group's episodes. Identical episodes share one record."""
        task, known = group[0].task, dict[tuple[int, bool], Trajectory]()
        ends = zip(rollouts.n_used[row].tolist(), (rollouts.rewards[row] > 0).tolist(), strict=True)
        records = []
        for end in ends:
            if end not in known:
                known[end] = make_trajectory(
                    task.id,
                    world_of(task),
                    *end,
                    group_id=group[0].group_id,
                    version=self.learner.version,
                )
            records.append(known[end])
        return records

    def _evolve(self) -> None:
        result = self.session.evolve()
        if result is not None:
            self.env_steps += result.env_steps

    def _make_evolver(self, proof: bool) -> GatedEvolver:
        def gates(benchmark: Benchmark, known: KnownTasks) -> Sequence[Gate]:
            proven = (ReplayGate(benchmark), PrefixGate()) if proof else ()
            split_leak = SplitLeakGate(benchmark)
            built = (ParseGate(), BuildGate(benchmark), split_leak, DuplicateGate(known))
            return (*built, *proven)

        native = self.benchmark.tasks(Split.TRAIN)
        return GatedEvolver(self.benchmark, self.explorer, gates_of=gates, native=native)


class _Evolvers:
    """An evolver that uses one evolver for the initial tasks and another for all later rounds."""

    def __init__(self, first: GatedEvolver, later: GatedEvolver) -> None:
        self.first, self.later = first, later

    def run(self, round: Round) -> RoundResult:
        """Run a round; see :class:`~coevo_gym.core.seams.Evolver`."""
        return (self.later if round.known else self.first).run(round)
