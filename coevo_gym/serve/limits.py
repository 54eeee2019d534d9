"""What a server allows its clients."""

from __future__ import annotations

from dataclasses import dataclass

from coevo_gym.core.errors import ConfigError


@dataclass(frozen=True)
class Limits:
    """Bounds on what clients may take up; a client beyond one is told so, and nobody else suffers.

    Attributes:
        sessions: most envs that clients may have open at a time.
        idle_s: seconds without a message after which an env is closed and its ticket given back.
        body_mb: largest request of the tickets face, in MiB; a trajectory or a state has to fit.
        message_kb: largest message of the envs face, in KiB; an action has to fit.

    Raises:
        ConfigError: if one is not positive.
    """

    sessions: int = 64
    idle_s: float = 600.0
    body_mb: float = 64.0
    message_kb: float = 256.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ConfigError(f"The limit {name} must be positive, actual: {value!r}")

    @property
    def body_bytes(self) -> int:
        """:attr:`body_mb` in bytes."""
        return int(self.body_mb * 2**20)

    @property
    def message_bytes(self) -> int:
        """:attr:`message_kb` in bytes."""
        return int(self.message_kb * 2**10)
