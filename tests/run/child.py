"""The ``coevo`` command with the toy benchmark, for tests that run it as a process of its own."""

from __future__ import annotations

from coevo_gym.cli import main
from tests import toy

if __name__ == "__main__":
    toy.register()
    main()
