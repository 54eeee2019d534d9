"""The engine: a room with boxes, and the effects of actions on it."""

from __future__ import annotations

from typing import NamedTuple

from .world import NewbenchWorld


class Answer(NamedTuple):
    """The result of an action.

    Attributes:
        text: text for the agent.
        error: reason in one word if the action had no effect, else "".
        call: name of the operation that ran, or "".
    """

    text: str
    error: str = ""
    call: str = ""


class Room:
    """A room with boxes, their contents, and the thing that the agent holds.

    Args:
        world: the initial state.
    """

    def __init__(self, world: NewbenchWorld) -> None:
        self.contents = {
            box: list(things) for box, things in zip(world.boxes, world.contents, strict=True)
        }
        self.opened: set[str] = set()
        self.held = ""
        self.over = False

    def act(self, action: str) -> Answer:
        """Execute an action; an impossible action changes nothing, but still gets an answer."""
        match action.split():
            case ["open", box] if box in self.contents and box not in self.opened:
                self.opened.add(box)
                return Answer(f"In the {box} box: {self._list_items(box)}.", call="open")
            case ["take", thing] if not self.held and (box := self._open_box_with(thing)):
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

    def possible_actions(self) -> tuple[str, ...]:
        """Return the actions that would have an effect now."""
        closed = [f"open {box}" for box in self.contents if box not in self.opened]
        opened = [box for box in self.contents if box in self.opened]
        if self.held:
            return (*closed, *(f"put {box}" for box in opened), "done")
        takes = [f"take {thing}" for box in opened for thing in self.contents[box]]
        return (*closed, *takes, "done")

    def state(self) -> list[object]:
        """Return everything that an action can change, as JSON."""
        return [self.contents, sorted(self.opened), self.held, self.over]

    def is_in(self, thing: str, box: str) -> bool:
        """Return True if a thing is in a box."""
        return thing in self.contents.get(box, ())

    def _open_box_with(self, thing: str) -> str:
        """Return the open box that contains a thing, or ""."""
        return next((box for box in self.opened if thing in self.contents[box]), "")

    def _list_items(self, box: str) -> str:
        return ", ".join(self.contents[box]) or "nothing"
