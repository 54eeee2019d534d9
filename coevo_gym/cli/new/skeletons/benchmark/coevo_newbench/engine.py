"""The engine: a room with boxes, and what happens to it."""

from __future__ import annotations

from typing import NamedTuple

from .world import NewbenchWorld


class Answer(NamedTuple):
    """What an action led to.

    Attributes:
        text: what the agent is told.
        error: why nothing happened, as one word; "" if something did.
        call: name of the operation that ran; "" if none did.
    """

    text: str
    error: str = ""
    call: str = ""


class Room:
    """Boxes, what lies in them, and what the agent holds.

    Args:
        world: how it starts.
    """

    def __init__(self, world: NewbenchWorld) -> None:
        self.contents = {
            box: list(things) for box, things in zip(world.boxes, world.contents, strict=True)
        }
        self.opened: set[str] = set()
        self.held = ""
        self.over = False

    def act(self, action: str) -> Answer:
        """Carry out an action; whatever cannot be done changes nothing and is answered."""
        match action.split():
            case ["open", box] if box in self.contents and box not in self.opened:
                self.opened.add(box)
                return Answer(f"In the {box} box: {self._listed(box)}.", call="open")
            case ["take", thing] if not self.held and (box := self._box_with(thing)):
                self.contents[box].remove(thing)
                self.held = thing
                return Answer(f"You hold the {thing}.", call="take")
            case ["put", box] if self.held and box in self.opened:
                thing, self.held = self.held, ""
                self.contents[box].append(thing)
                return Answer(f"The {thing} lies in the {box} box.", call="put")
            case ["done"]:
                self.over = True
                return Answer("You are done.", call="done")
        return Answer(f"That cannot be done now: {action[:60]!r}.", error="impossible")

    def possible(self) -> tuple[str, ...]:
        """The actions that do something now."""
        closed = [f"open {box}" for box in self.contents if box not in self.opened]
        opened = [box for box in self.contents if box in self.opened]
        if self.held:
            return (*closed, *(f"put {box}" for box in opened), "done")
        takes = [f"take {thing}" for box in opened for thing in self.contents[box]]
        return (*closed, *takes, "done")

    def state(self) -> list[object]:
        """All that an action can change, as JSON."""
        return [self.contents, sorted(self.opened), self.held, self.over]

    def lies_in(self, thing: str, box: str) -> bool:
        """Whether a thing lies in a box."""
        return thing in self.contents.get(box, ())

    def _box_with(self, thing: str) -> str:
        """The open box that a thing lies in; "" if none does."""
        return next((box for box in self.opened if thing in self.contents[box]), "")

    def _listed(self, box: str) -> str:
        return ", ".join(self.contents[box]) or "nothing"
