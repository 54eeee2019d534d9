"""The secrets that open a server, and where it may listen without one."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from coevo_gym.core.errors import ConfigError
from coevo_gym.reading import read_file

_SHORTEST = 16


@dataclass(frozen=True)
class Tokens:
    """The secrets that open a server's faces.

    Attributes:
        trusted: opens both faces; "" where nobody needs one.
        agents: each opens the envs face only.
    """

    trusted: str = field(default="", repr=False)
    agents: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Tokens of a file: the first line opens both faces, each further one the envs face.

        Raises:
            ConfigError: if it cannot be read, may be read by others, or a token is too short.
        """
        try:
            text, mode = read_file(path).decode(), path.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"Cannot read the token file {path}: {error}") from error
        if mode & 0o077:
            raise ConfigError(
                f"The token file {path} may be read by other users of this machine. "
                f"Run `chmod 600 {path}`."
            )
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if not lines or any(len(line) < _SHORTEST or not line.isascii() for line in lines):
            raise ConfigError(
                f"The token file {path} needs a token of at least {_SHORTEST} ASCII characters on "
                "each line: the first opens both faces, others the envs face only. "
                "`openssl rand -hex 32` makes one."
            )
        return cls(lines[0], tuple(lines[1:]))

    def admits(self, header: str, *, to_tickets: bool) -> bool:
        """Whether an Authorization header opens a face."""
        if not self.trusted:
            return True
        scheme, _, said = header.partition(" ")
        known = (self.trusted,) if to_tickets else (self.trusted, *self.agents)
        # All are compared, each in constant time.
        same = [hmac.compare_digest(said.strip().encode(), token.encode()) for token in known]
        return scheme.lower() == "bearer" and any(same)


def require_safe(host: str, tokens: Tokens) -> None:
    """Refuse to listen where strangers could reach a server that asks for no token.

    Raises:
        ConfigError: if ``host`` is not this machine alone, and there is no token.
    """
    if not is_loopback(host) and not tokens.trusted:
        raise ConfigError(
            f"Others could reach a server on {host}, so it needs a token: write one into a file "
            "that only you can read (`openssl rand -hex 32 > token; chmod 600 token`) and pass "
            "--token-file token. Or leave --host at 127.0.0.1."
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
