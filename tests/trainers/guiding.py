"""A coach, a study and a memory that do a little, for tests of whoever calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coevo_gym.core.notes import Findings, Note, Notes
from coevo_gym.core.seams import Guidance, Ticket
from coevo_gym.core.spend import Usage
from coevo_gym.core.trajectory import Cue, Group, View


@dataclass(frozen=True)
class Remark:
    """Puts a remark after every observation."""

    text: str

    @property
    def version(self) -> str:
        return f"remark:{self.text}"

    def show(self, view: View) -> View:
        return replace(view, observation=f"{view.observation} {self.text}")


class Tally:
    """A memory: how many notes of each label there were, and how often it was told any."""

    def __init__(self) -> None:
        self.told, self.labels = 0, dict[str, int]()

    def note(self, notes: Notes) -> None:
        self.told += 1
        for note in notes:
            self.labels[note.label] = self.labels.get(note.label, 0) + 1

    def metrics(self) -> dict[str, float]:
        return {"told": float(self.told)}

    def state_dict(self) -> dict[str, Any]:
        return {"told": self.told, "labels": self.labels}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.told, self.labels = state["told"], dict(state["labels"])


@dataclass
class Outcomes:
    """A study: notes how each episode ended, at the cost of a call and a step for each group."""

    kind: str = "outcome"
    seen: list[list[str]] = field(default_factory=list)

    def examine(self, groups: Sequence[Group]) -> Findings:
        self.seen.append([group.id for group in groups])
        notes = [
            Note(
                kind=self.kind,
                task_id=group.task.id,
                group_id=group.id,
                index=index,
                label="solved" if trajectory.success else "failed",
                value=trajectory.score,
                evidence={"shown": [step.shown[-12:] for step in trajectory.steps]},
            )
            for group in groups
            for index, trajectory in enumerate(group.trajectories)
        ]
        cost = {"outcomes": Usage(calls=len(groups))}
        return Findings(tuple(notes), cost, env_steps=len(groups))


@dataclass
class ByTally:
    """A coach: remarks how often its memory was told anything; odd places of a group get a cue."""

    memory: Tally
    asked: list[list[str]] = field(default_factory=list)

    def guide(self, tickets: Sequence[Ticket]) -> list[Guidance]:
        self.asked.append([ticket.id for ticket in tickets])
        interface = Remark(f"({self.memory.told} so far)")
        cue = Cue("Take your time.", "first", "time")
        return [Guidance(interface, (cue,) * (ticket.index % 2)) for ticket in tickets]
