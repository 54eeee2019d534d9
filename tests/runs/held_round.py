"""``coevo`` whose rounds beside training never end."""

from __future__ import annotations

import sys

from coevo_gym.cli import main
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.runs.evolving.rounds import StoredEvolver
from tests import toy

run = StoredEvolver.run


def wait_and_run(self: StoredEvolver, round: Round) -> RoundResult:
    if not round.n_unguided:
        print("in flight:", round.id, flush=True)
        sys.stdin.read()
    return run(self, round)


if __name__ == "__main__":
    toy.register()
    StoredEvolver.run = wait_and_run  # type: ignore[method-assign]
    main()
