"""WebShop: find and buy the product that an instruction describes."""

from __future__ import annotations

from coevo_gym.core.trajectory import Step
from coevo_gym.envs.folder import ProposableFolder
from coevo_gym.envs.webshop import builder, proposals, tasks
from coevo_gym.envs.webshop.choices import choices


class WebShopBenchmark(ProposableFolder):
    """WebShop behind the seam that curricula and trainers know."""

    name = "webshop"
    env_id = "CoEvolve-WebShop-v0"
    subsets = tasks.SUBSETS

    def symbol(self, step: Step) -> str:
        """One of search, page, item, option, subpage, buy; "!" for an impossible action."""
        return "!" if step.error_kind else step.calls[0]


BENCHMARK = WebShopBenchmark(tasks, builder, choices, proposals)
