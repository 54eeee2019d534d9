"""WebShop: find and buy the product that an instruction describes."""

from __future__ import annotations

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EvalTrajectory, Step, Trajectory
from coevo_gym.envs.diagnosis import Diagnosis
from coevo_gym.envs.folder import ProposableFolder
from coevo_gym.envs.webshop import builder, proposals, tasks
from coevo_gym.envs.webshop.choices import choices
from coevo_gym.envs.webshop.diagnosis import MODES, diagnose
from coevo_gym.envs.webshop.tags import tags_of

BELOW_ALL = 0.001
"""Dollars; no product costs as little."""


class WebShopBenchmark(ProposableFolder):
    """WebShop behind the seam that curricula and trainers know."""

    name = "webshop"
    env_id = "CoEvolve-WebShop-v0"
    subsets = tasks.SUBSETS
    modes = MODES

    def symbol(self, step: Step) -> str:
        """One of search, page, item, option, subpage, buy; "!" for an impossible action."""
        return "!" if step.error_kind else next(iter(step.calls), "")

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """Department and family of the product, and the options that are asked for."""
        return tags_of(task)

    def diagnose(self, episode: Trajectory | EvalTrajectory) -> Diagnosis:
        """One label an episode, from actions and the score; see the folder's ``diagnosis.py``."""
        return diagnose(episode)

    def broken(self, task: Task) -> Task:
        """The same task, with a price cap that no product meets and that nobody is told."""
        verifier = task.verifier.model_copy(update={"price_cap": BELOW_ALL})
        return task.model_copy(update={"verifier": verifier})


BENCHMARK = WebShopBenchmark(tasks, builder, choices, proposals)
