"""A sink that sends training metrics to trackio: use ``--set sinks=trackio_sink:TrackioSink``.

The metrics stay on this machine, and ``trackio show`` plots them. Each run becomes a project, and
each arm becomes a run of this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coevo_gym.runs.sinks import SinkArm


class TrackioSink:
    """A sink for the metrics of one arm."""

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
        """Send metrics to trackio."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Close the trackio run when the arm finishes or its process stops."""
        self._run.finish()
