"""One arm of a run: the parts of its method at work, and their state as one."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from coevo_gym.core.errors import StoreError
from coevo_gym.core.evolution import RoundResult, Verdict
from coevo_gym.curricula.guiding import Guiding
from coevo_gym.curricula.pool_curriculum import PoolCurriculum
from coevo_gym.curricula.session.session import CurriculumSession, Seeds
from coevo_gym.episodes.evaluation import Evaluation
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.methods.kit import OnVerdict
from coevo_gym.runs.assembly import Assembly, restoring, weights_hash
from coevo_gym.runs.config import ArmConfig
from coevo_gym.runs.events import ArmEvents
from coevo_gym.runs.evolving.answers import answers_of
from coevo_gym.runs.rounds import StoredEvolver, StoredLandings, stack
from coevo_gym.runs.stop import Stopped
from coevo_gym.runs.table import WARMUP
from coevo_gym.store.checkpoint import Checkpoint, Checkpoints
from coevo_gym.store.database import RunStore
from coevo_gym.trainers.learners import make_learner
from coevo_gym.trainers.loop import Loop
from coevo_gym.trainers.rest import ReST
from coevo_gym.trainers.settings import UpdateConfig

_TOLD = (
    "step",
    "after_env_steps",
    "success_rate",
    "mean_score",
    "episodes",
    "warmup_tasks_success",
    "pool_tasks_success",
)
"""The metrics of each evaluation in a summary."""


class Arm:
    """A method at work.

    Attributes:
        evaluated: the agent that acts in evaluations, in the scope of :meth:`as_evaluated`.
    """

    events: ArmEvents

    def __init__(
        self,
        settings: ArmConfig,
        assembly: Assembly,
        envs: EnvPool,
        store: RunStore,
        on_verdict: OnVerdict,
    ) -> None:
        config, self.name, self.policy = assembly.config, settings.name, assembly.policy
        self._on_verdict, self._closed = on_verdict, False
        self.asked, self.analyst = assembly.asked(settings), assembly.asked_by_studies(settings)
        self._stop_asking = assembly.models.stop
        method = assembly.method(settings, self._judged)
        agent = assembly.agent(self.policy)
        self.learner = make_learner(
            method.learner, self.policy, method.credit, seed=assembly.seed("learner")
        )
        # The reference is what the arm starts from. That is saved once, for all arms; a checkpoint
        # only says which it was.
        refers = isinstance(method.learner, UpdateConfig) and method.learner.kl_coef > 0
        self.start = weights_hash(self.policy) if refers else ""
        self.first_round = method.first_round
        self.evolver: StoredEvolver | None = None
        if method.evolver is not None:
            self.evolver = stack(
                method.evolver,
                store,
                config,
                settings,
                policy=self.policy,
                native=assembly.train_tasks,
                shared=method.first_round,
                on_known=self._count_known,
            )
        landings = None
        if self.evolver is not None and settings.evolver.overlap:
            mode, models = config.tape.mode, assembly.models
            tape = models.store if self.asked is not None else None
            writes = mode in ("record", "fill")
            landings = StoredLandings(store, self.name, self.evolver.by, tape, writes=writes)

        evaluated = assembly.evaluated(self.policy)

        def evaluate() -> Evaluation:
            with self.as_evaluated():
                return assembly.evaluate(evaluated)

        self._assembly, self.evaluated = assembly, evaluated
        order = settings.loop.seed_of_order
        draws = assembly.seed(f"ledger, order {order}" if order else "ledger")
        self.loop = Loop(
            settings.loop,
            session=CurriculumSession(
                method.curriculum,
                self.evolver,
                group_size=config.rollout.group_size,
                max_staleness=settings.loop.max_staleness,
                seed=Seeds(draws=draws, rounds=settings.loop.seed),
            ),
            agent=agent,
            learner=self.learner,
            envs=envs,
            evaluate=evaluate,
            landings=landings,
            guiding=Guiding(method.coach, method.studies, method.memories),
        )

    def as_evaluated(self) -> AbstractContextManager[None]:
        """Give the policy, in this scope, the weights to evaluate and to save at the end."""
        average = None if isinstance(self.learner, ReST) else self.learner.average
        return average.in_place() if average else nullcontext()

    def success_on_trained(self) -> dict[str, float]:
        """Success on tasks of the warm-up and of the pool, of each the first ones by id.

        Empty unless ``evaluation.n_trained`` asks for it; without the pool where there is none.
        """
        n = self._assembly.config.evaluation.n_trained
        if not n:
            return {}
        curriculum = self.loop.session.curriculum
        pool = curriculum.pool.tasks if isinstance(curriculum, PoolCurriculum) else ()
        sets = {"warmup_tasks": self._assembly.warmup_tasks(), "pool_tasks": pool}
        with self.as_evaluated():
            return {
                f"{name}_success": self._assembly.evaluate(
                    self.evaluated, sorted(tasks, key=lambda task: task.id)[:n]
                ).success_rate
                for name, tasks in sets.items()
                if tasks
            }

    def weights_hash(self) -> str:
        """Hash of the weights that are evaluated, bit by bit."""
        with self.as_evaluated():
            return weights_hash(self.policy)

    def most_left(self) -> tuple[int, str]:
        """Return the most env steps that training still takes, as a number and in words."""
        config, state = self.loop.config, self.loop.state
        if config.max_steps is None:
            left = (config.max_env_steps or 0) - state.env_steps
            return left, f"{left:,} env steps"
        left, each = config.max_steps - state.step, self._assembly.max_steps
        episodes = config.groups_per_step * self._assembly.config.rollout.group_size
        words = f"{left:,} learner steps × {episodes:,} episodes × up to {each} env steps"
        return left * episodes * each, words

    def outcome(self) -> dict[str, Any]:
        """Return what the arm did and how it ended, for the run's summary."""
        state, numbers = self.loop.state, self.loop.session.metrics()
        return {
            "steps": state.step,
            "env_steps": state.env_steps,
            "episodes": state.episodes,
            "rounds": int(numbers.get("rounds", 0)),
            "pool_size": int(numbers.get("pool_size", 0)),
            "weights": self.weights_hash(),
            "evaluations": [
                {name: found[name] for name in _TOLD if name in found}
                for found in self.events.evaluations()
            ],
            "curriculum": numbers,
            "answers": answers_of(state.usage),
        }

    def close(self) -> None:
        """Call off a round that runs beside training, and wait until nothing of it runs any more.

        It ends at its next draft, or when it asks a model; requests in flight are given up. What
        models said by then is on the tape.
        """
        self._closed = True
        if self.loop.session.evolving:
            self._stop_asking()
        self.loop.session.call_off_round()

    def _count_known(self, result: RoundResult) -> None:
        if self.asked is not None:
            self.asked.meter.counted(result.round_id, result.usage)

    def _judged(self, verdict: Verdict) -> None:
        if self._closed:
            raise Stopped
        self._on_verdict(verdict)

    def save(self, checkpoints: Checkpoints) -> None:
        """Save all that the arm needs to go on."""
        state = {
            "policy": self.policy.state_dict(),
            "learner": self.learner.state_dict(reference=False),
            "start": self.start,
            "loop": json.dumps(self.loop.state_dict()),
            "evaluation": self.events.evaluation,
            "asked": None if self.asked is None else self.asked.state_dict(),
            "analyst": None if self.analyst is None else self.analyst.state_dict(),
        }
        checkpoints.save(self.loop.state.step, state)

    def load(self, saved: Checkpoint) -> None:
        """Restore :meth:`save`.

        Raises:
            StoreError: if the arm had begun with other weights, which are its reference, or the
                checkpoint does not fit.
        """
        # One that an older version wrote does not say its start, and holds the reference itself.
        if saved.state.get("start", self.start) != self.start:
            raise StoreError(
                f"{saved.path} was trained from other first weights than those that this run has "
                f"now: the checkpoint in {saved.path.parent.with_name(WARMUP)} was lost or "
                "replaced. Bring it back, or train anew with --overwrite."
            )
        with restoring(saved, self.policy):
            self.policy.load_state_dict(saved.state["policy"])
            self.learner.load_state_dict(saved.state["learner"])
            self.loop.load_state_dict(json.loads(saved.state["loop"]))
            self.events.evaluation = dict(saved.state["evaluation"])
            for name, asked in (("asked", self.asked), ("analyst", self.analyst)):
                if asked is not None and saved.state.get(name):
                    asked.load_state_dict(saved.state[name])
