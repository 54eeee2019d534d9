"""An episode in the hands of a person: run and recorded like an agent's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import gymnasium as gym

from coevo_gym.core.seams import Act
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import EndReason, EvalTrajectory, Trajectory, View
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.episode import Finished, Lost, Outcome, eval_trajectory_of, trajectory_of
from coevo_gym.episodes.live import LiveEpisode


class Played(NamedTuple):
    """The record of an episode that a person has played to its end.

    Attributes:
        counted: it as an evaluation, for tables.
        training: it as something to learn from; None if its task is not a training task.
    """

    counted: EvalTrajectory
    training: Trajectory | None


@dataclass(frozen=True, slots=True)
class PersonEpisode:
    """An :class:`~coevo_gym.episodes.episode.Episode` that a person plays.

    Attributes:
        task: what is done in it.
        seed: seed of its env.

    Raises:
        TaskError: if nothing is asked for in the task.
    """

    task: Task
    seed: int

    def __post_init__(self) -> None:
        self.task.require_asked("play")

    def shown(self, view: View) -> View:
        """What a person sees is what an agent sees."""
        return view

    def record(self, env: TaskEnv, acts: Sequence[Act], shown: Sequence[str]) -> Played:
        """The record of the episode that has ended in ``env``."""
        learned = self.task.split is Split.TRAIN
        return Played(eval_trajectory_of(env, acts), trajectory_of(env, acts) if learned else None)


class Refusal(NamedTuple):
    """Why an action took no step.

    Attributes:
        reason: in a few words.
        shown: what the env said to it.
    """

    reason: str
    shown: str


class Game:
    """One episode, which goes on as its player says.

    What cannot be done, and got nothing out of the engine, takes no step: the episode is begun
    again, and the steps before are taken again, which leads to the same state. So a typo leaves
    no trace in the record, and whatever tells something about the world counts, as it does for an
    agent.

    For one thread at a time.

    Args:
        env: where it runs; nobody else may use it meanwhile. The game does not close it.
        task: what is played.
        seed: seeds the env.

    Attributes:
        taken: the actions that counted, in order.
        played: the record; None while it is not over.

    Example:
        >>> import coevo_gym, gymnasium as gym
        >>> task = coevo_gym.tasks("webshop")[0]
        >>> game = Game(gym.make("CoEvolve-WebShop-v0"), task)
        >>> game.begin()
        >>> game.act("click[the moon]").reason
        "Nothing called 'the moon' can be clicked on this page."
        >>> for action in task.solution:
        ...     _ = game.act(action)
        >>> game.played.counted.success, len(game.played.training.steps) == len(task.solution)
        (True, True)
    """

    def __init__(self, env: gym.Env[str, str], task: Task, seed: int = 0) -> None:
        self.env, self.task, self.seed = env, task, seed
        self.taken: list[str] = []
        self.played: Played | None = None
        self._episode = PersonEpisode(task, seed)
        self._live: LiveEpisode[Played] | None = None

    @property
    def view(self) -> View:
        """What an agent would see now; after the end, what the last action led to."""
        return self._bare.view

    @property
    def max_steps(self) -> int:
        """Most steps of the episode."""
        return self._bare.max_steps

    @property
    def under_way(self) -> bool:
        """Whether an action can be taken: it has begun, is not over, and its engine is there."""
        return self._live is not None and self.played is None

    def begin(self) -> None:
        """Begin the episode, or begin it again and go to where it was.

        Raises:
            EnvBackendError: if the engine fails; what was taken stays known, so this may be tried
                again.
        """
        self._live, self.played = None, None
        live: LiveEpisode[Played] = LiveEpisode(0, self._episode, self.env)
        self._unless_lost(live.begin())
        for action in self.taken:
            if (ended := self._unless_lost(live.step(Act(action)))) is not None:
                self.played = ended.record
                break
        self._live = live

    def act(self, action: str) -> Refusal | None:
        """Take an action; why it took no step, if it could not be done.

        Raises:
            EnvBackendError: if the engine fails. The action is not taken then, and :meth:`begin`
                leads back to where it was asked for.
        """
        live = self._running()
        ended = self._step(live, Act(action))
        if (refusal := self._refused()) is not None:
            self.begin()
            return refusal
        self.taken.append(action)
        self.played = ended
        return None

    def give_up(self) -> None:
        """End the episode here; it is graded as it stands.

        Raises:
            EnvBackendError: as :meth:`act`.
        """
        self.played = self._step(self._running(), Act("", end=EndReason.AGENT_DONE))

    @property
    def _bare(self) -> TaskEnv:
        return cast(TaskEnv, self.env.unwrapped)

    def _running(self) -> LiveEpisode[Played]:
        if self._live is None or self.played is not None:
            raise RuntimeError("no episode is under way: call begin first")
        return self._live

    def _step(self, live: LiveEpisode[Played], act: Act) -> Played | None:
        try:
            ended = self._unless_lost(live.step(act))
        except Exception:  # whatever it was, nobody knows what state the engine is in
            self._live = None
            raise
        return None if ended is None else ended.record

    @staticmethod
    def _unless_lost(outcome: Outcome[Played] | None) -> Finished[Played] | None:
        if isinstance(outcome, Lost):
            raise outcome.error
        return outcome

    def _refused(self) -> Refusal | None:
        """Why the last action did nothing, if it did nothing."""
        bare = self._bare
        info = bare.info
        if info["action_valid"] or bare.calls:
            return None
        reason = info.get(f"{bare.benchmark}.reason") or info["error_kind"]
        return Refusal(str(reason), bare.view.observation)
