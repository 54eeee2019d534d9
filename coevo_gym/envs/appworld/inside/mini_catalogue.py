"""All scenarios of the mini world."""

from .mini_easy import EASY
from .mini_hard import HARD
from .mini_medium import MEDIUM

SCENARIOS = (*EASY, *MEDIUM, *HARD)
