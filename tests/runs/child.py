"""The ``coevo`` command with the toy benchmark, for tests that run it as a process of its own."""

from __future__ import annotations

from coevo_gym import cli
from tests import toy


def main() -> None:
    toy.register()
    cli.main()


if __name__ == "__main__":
    main()
