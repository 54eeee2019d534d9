"""An env that runs ALFWorld's text games."""

from __future__ import annotations

import functools
import re
from typing import Any, ClassVar

from numpy.random import Generator

from coevo_gym.core.task import FrozenDict, Verifier, World
from coevo_gym.envs.alfworld.engine.translation import import_fast_downward
from coevo_gym.envs.alfworld.goals import PROGRESS, RoomGoal, count_conditions
from coevo_gym.envs.alfworld.tasks import goal_of, scene_definition
from coevo_gym.envs.alfworld.world import ALFWorldWorld
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.checks import check_flag
from coevo_gym.envs.frame import PRIVATE_INFO, Frame, Grade
from coevo_gym.envs.vector import TaskVectorEnv

_ALIAS = re.compile(r"put (.+?) (?:in/on|in|on|into|onto) (.+)")


class ALFWorldEnv(TaskEnv):
    """A simulated home in which the agent does a household task with text commands.

    The engine is TextWorld with ALFWorld's games and object names. The only change is a cache for
    results. The observations, command lists and outcomes are the same as in the stock engine.

    Observation:
        The engine's text: at first the room and the task, then the result of each action.

    Action:
        A command, such as ``go to desk 1``, ``take mug 2 from desk 1``, ``move mug 2 to shelf 3``,
        ``heat mug 2 with microwave 1`` or ``use desklamp 1``. A command that is not admissible
        changes nothing. The env answers ``Nothing happens.``, counts the command as a step and sets
        ``info["error_kind"]``. With ``aliases=True``, the older form ``put X in/on Y`` is accepted
        as an alias for ``move X to Y``.

    Reward:
        1.0 at the end if the goal holds, otherwise 0.0. ``reward_mode="score"`` is the same.

    Starting state:
        The agent stands in the middle of a scene. ``reset`` picks a task from the split, or uses
        the task given in ``options``.

    Episode end:
        Terminated when the goal holds; truncated after ``max_steps`` commands (default 50, the most
        common value in the literature; CoEvolve allows 15, others 30).

    Options:
        ``{"task": Task}`` or ``{"task_id": id or name}``.

    Info keys:
        The keys of every env (:class:`coevo_gym.envs.frame.Info`); ``admissible`` lists the
        commands that have an effect now. ``alfworld.task_type``: the kind of task.
        ``alfworld.goal_conditions``: the share of the goal's conditions that hold, computed from
        the engine's facts; agents do not see it.

    Splits and versions:
        Tasks are split by scene. The official games have the splits ``train`` (3,553 games),
        ``val`` (``valid_seen``: 140 games, whose scenes also occur in training by design) and
        ``test`` (``valid_unseen``: 134 games, whose four scenes occur nowhere else). Evolved tasks
        that repeat the scene, initial state and goal of a val or test game are rejected. The
        instructions of evolved tasks follow ALFWorld's own templates, unless a model wrote them.
        ``valid_train`` (200 games) is used only on request. Without the official games, or with
        ``subset="builtin"``, the scenes are generated from ALFWorld's layouts. v0: first version.

    Installation:
        ``coevo install alfworld`` compiles the engine with cmake and g++, which takes a minute or
        two. ``coevo install alfworld --from FILE`` installs the official games. The env also runs
        on Python 3.13, where TextWorld's own ``PddlEnv`` fails on its first observation.

    Several at once:
        With several envs, the engines run in worker processes unless you pass ``mode="in_process"``
        to ``make_vec``. A step takes a few milliseconds of Python time, and workers run steps in
        parallel.

    Differences from the original:
        The planner's translation runs without the planner's C library, because each env of the
        original maps 33 MB that are never unmapped. The task text is never passed through
        TextWorld's grammar, which would evaluate text in braces. ``sys.argv`` is left unchanged.

    Arguments:
        The arguments of :class:`coevo_gym.envs.base.TaskEnv`, and ``aliases`` (see Action).

    Citation:
        Shridhar et al., ALFWorld: Aligning Text and Embodied Environments for Interactive
        Learning, ICLR 2021.
    """

    benchmark = "alfworld"
    default_max_steps = 50
    observation_tokens = 320
    extra_info: ClassVar = FrozenDict({"alfworld.task_type": "", "alfworld.goal_conditions": -1.0})
    private_info: ClassVar = PRIVATE_INFO | {"alfworld.goal_conditions"}
    vector_mode: ClassVar = "process"
    engine_modules: ClassVar = ("coevo_gym.envs.alfworld.engine.game",)

    def __init__(self, *, aliases: bool = False, **kwargs: Any) -> None:
        check_flag("aliases", aliases)
        import_fast_downward()  # raises an error with install instructions before any episode
        self.aliases = aliases
        super().__init__(**kwargs)

    def _begin(self, world: World, instruction: str, rng: Generator) -> Frame:
        from coevo_gym.envs.alfworld.engine.game import Game, open_scene

        assert isinstance(world, ALFWorldWorld)
        self._goal: RoomGoal | None = None if world.goal == "nothing" else goal_of(world)
        self._game = Game(open_scene(*scene_definition(world)), instruction)
        return self._current_frame(acted=False)

    def _act(self, action: str) -> Frame:
        if self.aliases and (match := _ALIAS.fullmatch(action.strip())):
            action = f"move {match[1]} to {match[2]}"
        self._game.step(action)
        return self._current_frame(acted=True)

    def _grade(self, verifier: Verifier) -> Grade:
        assert self._goal is not None
        goal = FrozenDict(self._goal.model_dump())
        return Grade(float(self._game.won), self._game.won, report=FrozenDict(goal=goal))

    def _current_frame(self, *, acted: bool) -> Frame:
        game = self._game
        extras: dict[str, Any] = {}
        if self._goal is not None:
            met, total = count_conditions(self._goal, game.facts(PROGRESS))
            extras = {
                "alfworld.task_type": self._goal.kind,
                "alfworld.goal_conditions": met / total,
            }
        return Frame(
            observation=game.observation,
            done=acted and game.won and self._goal is not None,
            valid=bool(game.last_action) or not acted,
            error_kind="" if game.last_action or not acted else "not_admissible",
            admissible=game.admissible,
            calls=(game.last_action,) if game.last_action else (),
            extras=FrozenDict(extras),
        )


make_vec = functools.partial(TaskVectorEnv, "CoEvolve-ALFWorld-v0")
