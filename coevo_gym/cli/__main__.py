"""``python -m coevo_gym.cli`` is ``coevo``."""

from coevo_gym.cli.app import main

if __name__ == "__main__":
    main()
