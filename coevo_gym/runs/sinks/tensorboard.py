"""The sink that writes files for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping

from coevo_gym.runs.sinks.sink import SinkArm


class TensorBoardSink:
    """A sink that writes event files to ``tensorboard/ARM`` in the run's folder.

    ``tensorboard --logdir runs`` then shows the arms of all runs side by side.

    Raises:
        ImportError: if TensorBoard is not installed.
    """

    def __init__(self, arm: SinkArm) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(arm.folder / "tensorboard" / arm.arm))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write the metrics to disk; see :class:`~coevo_gym.runs.sinks.sink.Sink`."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file; see :class:`~coevo_gym.runs.sinks.sink.Sink`."""
        self._writer.close()
