"""Delivery of an arm's metrics to its sinks, each number once."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from coevo_gym.core.errors import StoreError
from coevo_gym.runs.sinks.sink import Sink, SinkArm, find_sink
from coevo_gym.store.folder import RunFolder, read_json, write_json

logger = logging.getLogger(__name__)

_GROUPS = {"step": "train", "round": "evolution"}
"""The default metric group for each event."""
_PLACE = ("event", "arm", "step")


class _Sent(NamedTuple):
    """The last step whose numbers a sink received, and the events of that step that were sent."""

    step: int = -1
    events: tuple[str, ...] = ()

    def has(self, step: int, event: str) -> bool:
        return step < self.step or (step == self.step and event in self.events)

    def and_(self, step: int, event: str) -> _Sent:
        return _Sent(step, (*(self.events if step == self.step else ()), event))


class ArmSinks:
    """The sinks of one arm.

    Each delivery is recorded in ``sinks.json`` before it is sent. A killed run that repeats some
    steps produces the same numbers again, so no point is drawn twice. Sinks are created on first
    use.

    Args:
        names: names of the sinks.
        folder: folder of the run.
        run: name of the run.
        arm: name of the arm.
        config: settings as JSON, without secrets.
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
        self._names = list(names)
        self._folder, self._run, self._arm, self._config = folder, run, arm, config
        self._open: dict[str, Sink] = {}
        known = self._read().get(arm, {}) if self._names else {}
        self._id = str(known.get("id") or secrets.token_hex(4))
        self._sent = {
            name: _Sent(int(sent["step"]), tuple(sent["events"]))
            for name, sent in known.get("sent", {}).items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, sink in list(self._open.items()):
            self._attempt(name, sink.close)
        self._open.clear()

    def send(self, line: Mapping[str, Any]) -> None:
        """Send a line of ``metrics.jsonl``."""
        step = int(line["step"])
        event = f"{line['event']} {line.get('round', '')}".strip()
        numbers = _numbers(line)
        for name in list(self._names):
            sent = self._sent.get(name, _Sent())
            if not sent.has(step, event):
                self._attempt(name, lambda: self._draw(name, sent, step, event, numbers))  # noqa: B023

    def _draw(
        self, name: str, sent: _Sent, step: int, event: str, numbers: Mapping[str, float]
    ) -> None:
        if name not in self._open:
            self._open[name] = find_sink(name)(
                SinkArm(
                    run=self._run,
                    arm=self._arm,
                    id=self._id,
                    folder=self._folder.path,
                    config=self._config,
                    resumed=sent.step >= 0,
                )
            )
        self._sent[name] = sent.and_(step, event)
        self._write()
        self._open[name].log(numbers, step)

    def _attempt(self, name: str, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception as error:  # a failing sink must not stop the run
            self._names.remove(name)
            self._open.pop(name, None)
            logger.warning(
                "sink=%s failed and gets no more metrics of arm %s (the run continues): %s: %s",
                name, self._arm, type(error).__name__, error,
            )  # fmt: skip

    def _read(self) -> dict[str, Any]:
        if not self._folder.sinks.is_file():
            return {}
        try:
            found: dict[str, Any] = read_json(self._folder.sinks)
        except StoreError as error:
            logger.warning("sinks may receive some numbers twice: %s", error)
            return {}
        return found

    def _write(self) -> None:
        sent = {name: sent._asdict() for name, sent in self._sent.items()}
        write_json(self._folder.sinks, {**self._read(), self._arm: {"id": self._id, "sent": sent}})


def _numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numeric values of a line, keyed by their metric names."""
    event = str(line["event"])
    return {
        _name(_GROUPS.get(event, event), key): float(value)
        for key, value in line.items()
        if key not in _PLACE and isinstance(value, int | float)
    }


def _name(group: str, key: str) -> str:
    own, dot, rest = key.partition(".")
    return f"{own}/{rest}" if dot else f"{group}/{key}"
