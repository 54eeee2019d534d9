"""All scenarios of the mini world, from easy to hard."""

from .mini_ask_costs import COSTS
from .mini_ask_music import MUSIC
from .mini_ask_venmo import VENMO
from .mini_ask_words import WORDS

SCENARIOS = tuple(sorted((*MUSIC, *VENMO, *COSTS, *WORDS), key=lambda s: s.difficulty))
