"""Sinks: destinations for the metrics of a training run, looked up by name.

A built-in sink has the name of the package it needs, which is also the name of the extra that
installs it.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.own_code import is_import_path, load_own_object
from coevo_gym.core.registry import SINKS
from coevo_gym.provision import install_hint
from coevo_gym.store.folder import RunFolder, read_json, write_json

logger = logging.getLogger(__name__)

NAMES: Mapping[str, str] = {
    "tensorboard": "coevo_gym.runs.sinks:TensorBoardSink",
    "wandb": "coevo_gym.runs.sinks:WandbSink",
}
DEFAULT = ""
WANDB_PROJECT = "coevo_gym"
"""The wandb project for runs if the environment variable ``WANDB_PROJECT`` is not set."""

_GROUPS = {"step": "train", "round": "evolution"}
"""The default metric group for each event."""
_PLACE = ("event", "arm", "step")


@dataclass(frozen=True)
class SinkArm:
    """The arm whose metrics a sink receives.

    Attributes:
        run: name of the run.
        arm: name of the arm.
        id: eight hexadecimal digits, unique to the arm and stable when its run is resumed.
        folder: folder of the run; a sink that writes files creates its own folder in it.
        config: the settings of the run and of the arm as JSON, without secrets.
        resumed: True if the sink received metrics of this arm in an earlier process.
    """

    run: str
    arm: str
    id: str
    folder: Path
    config: Mapping[str, Any]
    resumed: bool


class Sink(Protocol):
    """A destination for the metrics of one arm.

    Any callable that takes a :class:`SinkArm` and returns a sink can be configured by its name. If
    a sink raises an error, the error is logged once, the sink gets no more metrics, and the run
    continues.

    Example:
        >>> class Print:
        ...     def __init__(self, arm: SinkArm) -> None:
        ...         self.name = f"{arm.run}, {arm.arm}"
        ...
        ...     def log(self, numbers: Mapping[str, float], step: int) -> None:
        ...         print(self.name, step, numbers["train/success"])
        ...
        ...     def close(self) -> None: ...
    """

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Log the arm's metrics at one step.

        Calls arrive in the order of the steps, with several calls per step. Each number arrives
        once, even if the run was killed and resumed.

        Args:
            numbers: values by name, such as ``train/success``, ``eval/success_rate``,
                ``curriculum/pool_size`` or ``evolution/accepted``.
            step: number of learner steps that the arm has done.
        """
        ...

    def close(self) -> None:
        """Save all metrics received so far. This process sends no more after that."""
        ...


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
        """Write the metrics to disk; see :class:`Sink`."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file; see :class:`Sink`."""
        self._writer.close()


class WandbSink:
    """A sink that sends an arm's metrics to a wandb run, grouped with the runs of the other arms.

    wandb's own environment variables set the destination: ``WANDB_PROJECT``, ``WANDB_ENTITY``, and
    ``WANDB_MODE=offline`` to write files into the run's folder that ``wandb sync`` uploads later.
    Apart from metrics, the sink sends the settings without secrets. It sends no data about the
    machine, the command or the code.

    Raises:
        ImportError: if wandb is not installed.
        wandb.Error: if no user is logged in, or the service is unreachable.
    """

    def __init__(self, arm: SinkArm) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or WANDB_PROJECT,
            group=arm.run,
            name=f"{arm.run}/{arm.arm}",
            id=arm.id,
            resume="allow",
            reinit="create_new",
            dir=str(arm.folder),
            config=dict(arm.config),
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                disable_job_creation=True,
                login_timeout=60,  # an unanswered login prompt must not block the run
                save_code=False,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send the metrics; see :class:`Sink`."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Finish the wandb run; see :class:`Sink`."""
        self._run.finish()


MakeSink = Callable[[SinkArm], Sink]


def find_sink(name: str) -> MakeSink:
    """Look up a sink factory by name.

    Args:
        name: a sink of this package or of an installed one, or the import path of the user's own.

    Raises:
        ConfigError: if there is no such sink.
        ImportError: if the package that the sink needs is not installed.
    """
    if is_import_path(name):
        return _load_own_sink(name)
    factory: MakeSink = SINKS.load(name)
    if name in SINKS.built_in:
        package = find_spec(name)
        if package is None or package.origin is None:  # a plain folder of that name does not count
            raise ImportError(
                f"The sink {name!r} needs a package that is not installed. {install_hint(name)}."
            )
    return factory


def check_sinks(names: Iterable[str]) -> None:
    """Check before a run begins that all sinks exist.

    Raises:
        ConfigError, ImportError: see :func:`find_sink`.
    """
    for name in names:
        find_sink(name)


def _load_own_sink(path: str) -> MakeSink:
    try:
        factory: MakeSink = load_own_object(path)
    except ConfigError as error:
        raise ConfigError(f"sinks: {error}") from error
    if not callable(factory):
        raise ConfigError(
            f"sinks: {path!r} is {factory!r}, which is not callable. Name a class or a function "
            "that creates a sink."
        )
    return factory


class _Sent(NamedTuple):
    """The last step whose metrics a sink received, and the events already sent for that step."""

    step: int = -1
    events: tuple[str, ...] = ()

    def has(self, step: int, event: str) -> bool:
        return step < self.step or (step == self.step and event in self.events)

    def with_event(self, step: int, event: str) -> _Sent:
        return _Sent(step, (*(self.events if step == self.step else ()), event))


class ArmSinks:
    """The metrics sinks of one arm.

    Each delivery is recorded in ``sinks.json`` before it is sent. A killed run that repeats some
    steps produces the same numbers again, so no point is drawn twice. Sinks are created on first
    use. The config has no secrets.
    """

    def __init__(
        self,
        names: Iterable[str],
        folder: RunFolder,
        *,
        run: str,
        arm: str,
        config: Mapping[str, Any],
    ) -> None:
        self._names, self._folder, self._arm = list(names), folder, arm
        self._open: dict[str, Sink] = {}
        known = self._read_state().get(arm, {}) if self._names else {}
        id = str(known.get("id") or secrets.token_hex(4))
        self._of = SinkArm(run, arm, id, folder.path, config, resumed=False)
        self._sent = {
            name: _Sent(int(progress["step"]), tuple(progress["events"]))
            for name, progress in known.get("sent", {}).items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for name, sink in list(self._open.items()):
            self._call_or_drop_sink(name, sink.close)
        self._open.clear()

    def send(self, line: Mapping[str, Any]) -> None:
        """Send a line of ``metrics.jsonl`` to all sinks."""
        step = int(line["step"])
        event = f"{line['event']} {line.get('round', '')}".strip()
        numbers = _metric_values(line)
        for name in list(self._names):
            progress = self._sent.get(name, _Sent())
            if not progress.has(step, event):
                self._call_or_drop_sink(
                    name, partial(self._deliver, name, progress, step, event, numbers)
                )

    def _deliver(
        self, name: str, progress: _Sent, step: int, event: str, numbers: Mapping[str, float]
    ) -> None:
        if name not in self._open:
            self._open[name] = find_sink(name)(replace(self._of, resumed=progress.step >= 0))
        self._sent[name] = progress.with_event(step, event)
        known = {name: progress._asdict() for name, progress in self._sent.items()}
        of_arm = {"id": self._of.id, "sent": known}
        write_json(self._folder.sinks, {**self._read_state(), self._arm: of_arm})
        self._open[name].log(numbers, step)

    def _call_or_drop_sink(self, name: str, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception as error:  # a failing sink must not stop the run
            self._names.remove(name)
            self._open.pop(name, None)
            logger.warning(
                "sink=%s failed and gets no further metrics of arm %s (the run continues): %s: %s",
                name, self._arm, type(error).__name__, error,
            )  # fmt: skip

    def _read_state(self) -> dict[str, Any]:
        if not self._folder.sinks.is_file():
            return {}
        try:
            state: dict[str, Any] = read_json(self._folder.sinks)
        except StoreError as error:
            logger.warning("sinks may receive some numbers twice: %s", error)
            return {}
        return state


def _metric_values(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numeric values in a line of metrics, keyed by metric name."""
    event = str(line["event"])
    return {
        _metric_name(_GROUPS.get(event, event), key): float(value)
        for key, value in line.items()
        if key not in _PLACE and isinstance(value, int | float)
    }


def _metric_name(group: str, key: str) -> str:
    own, dot, rest = key.partition(".")
    return f"{own}/{rest}" if dot else f"{group}/{key}"
