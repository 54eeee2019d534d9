"""Numbers of training in trackio: name it with ``--set sinks=trackio_sink:TrackioSink``.

They stay on this machine, and ``trackio show`` draws them. The project is the run, and each arm is
one of its runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coevo_gym.runs.sinks.sink import SinkArm


class TrackioSink:
    """Draws the numbers of one arm."""

    def __init__(self, arm: SinkArm) -> None:
        import trackio

        self._run = trackio.init(
            project=arm.run,
            name=f"{arm.arm}-{arm.id}",
            resume="allow",
            config=dict(arm.config),
            embed=False,
        )

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Draw numbers."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Close the run when the arm is finished or its process stops."""
        self._run.finish()
