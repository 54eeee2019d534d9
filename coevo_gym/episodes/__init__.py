"""Running episodes, and evaluating agents with them."""

from coevo_gym.episodes.evaluation import Evaluation, evaluate
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.episodes.runner import Rollout, rollout

__all__ = ["EnvPool", "Evaluation", "Rollout", "evaluate", "rollout"]
