"""All scenarios of the mini world, from easy to hard."""

from .ask_costs import COSTS
from .ask_music import MUSIC
from .ask_venmo import VENMO
from .ask_words import WORDS

SCENARIOS = tuple(sorted((*MUSIC, *VENMO, *COSTS, *WORDS), key=lambda s: s.difficulty))
