"""Run ``coevo`` as ``python -m coevo_gym``."""

from coevo_gym.cli.app import main

if __name__ == "__main__":
    main()
