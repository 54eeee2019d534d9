"""The pool of experiences, searched by task instruction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coevo_gym.core.advice import AdviceOrigin, AdviceState
from coevo_gym.core.notes import Note, Notes
from coevo_gym.core.task import FrozenDict
from coevo_gym.curricula.pool.embed import EMBEDDERS, Embedder, embedder_name
from coevo_gym.curricula.pool.index import VectorIndex
from coevo_gym.curricula.saved import Count, Finite, validate
from coevo_gym.methods.agentevolver.experience import (
    DROP_RULE,
    EXPERIENCE,
    EXPERIENCE_USE,
    OFFERED,
    UNMEASURED,
    DropRule,
    Experience,
    Usefulness,
)

_EMBEDDED_AT_ONCE = 1_000
"""Maximum number of texts to embed in one call, which limits memory use."""


class _Entry(NamedTuple):
    experience: Experience
    use: Usefulness
    row: int


class _Dropped(NamedTuple):
    experience: Experience
    step: int


class ExperiencePool:
    """A memory of experiences that can be searched by task instruction.

    Near copies are refused. A full pool drops its least useful experience; in a tie, the oldest.
    Harmful experiences are dropped, and return unmeasured when the policy has changed
    (:class:`~coevo_gym.methods.agentevolver.experience.DropRule`).

    Metrics: ``experiences`` is the number of experiences, ``measured`` the number with a utility,
        and ``utility`` their mean utility. ``resting`` is the number of dropped experiences that
        have not returned. ``admitted``, ``copies`` (refused), ``harmful`` and ``crowded`` (both
        dropped) and ``returned`` are total counts. ``guided_groups`` is the number of groups in the
        latest step that had rollouts with and without experiences, and ``success_guided`` and
        ``success_free`` are the mean success of these rollouts over these groups.

    Attributes:
        steps: number of learner steps so far.

    Args:
        embed: embeds texts.
        capacity: maximum number of experiences.
        copy: minimum cosine at which two ``when_to_use`` texts count as copies.
        beta: weight of a new group in the moving average of utility.
        drop: the rule for dropping harmful experiences; None to keep them.

    Example:
        >>> from coevo_gym.curricula.pool.embed import HashingEmbedder
        >>> pool = ExperiencePool(HashingEmbedder())
        >>> pool.admit(Experience(when_to_use="a red mug is wanted", content="Look in the sink.",
        ...     task_id="t", source="rule"))
        True
        >>> [found.content for found in pool.retrieve("find a red mug", k=5, least=0.3)]
        ['Look in the sink.']
    """

    def __init__(
        self,
        embed: Embedder,
        *,
        capacity: int = 1000,
        copy: float = 0.9,
        beta: float = 0.2,
        drop: DropRule | None = DROP_RULE,
    ) -> None:
        self._embed, self._capacity, self._copy = embed, capacity, copy
        self._beta, self._drop_rule = beta, drop
        self._entries: dict[str, _Entry] = {}
        self._index: VectorIndex | None = None
        self._ids: list[str] = []  # of each row of the index, "" for a removed one
        self._dropped: dict[str, _Dropped] = {}
        self._counts = Counter[str]()
        self._rates: dict[str, float] = {}
        self._changes: dict[str, AdviceState] = {}
        self.steps = 0

    @property
    def embedder(self) -> str:
        """Return the name of the embedder, or "" if it has no name."""
        return embedder_name(self._embed)

    def __len__(self) -> int:
        return len(self._entries)

    def retrieve(self, text: str, *, k: int, least: float) -> tuple[Experience, ...]:
        """Return up to ``k`` experiences whose ``when_to_use`` is most similar to the text.

        Their cosine is at least ``least``. The most similar experience comes first; in a tie, the
        older one.
        """
        neighbours = self._nearest(self._embed_text(text), k)
        return tuple(self._entries[id].experience for id, cosine in neighbours if cosine >= least)

    def admit(self, experience: Experience, use: Usefulness = UNMEASURED) -> bool:
        """Try to add an experience to the pool.

        Return True if the experience is now in the pool.
        """
        if experience.id in self._dropped:
            return False
        vector = self._embed_text(experience.when_to_use)
        nearest = self._nearest(vector, 1)
        if experience.id in self._entries or (nearest and nearest[0][1] >= self._copy):
            self._counts["copies"] += 1
            return False
        self._add_entry(experience, use, vector)
        self._counts["admitted"] += 1
        if len(self._entries) > self._capacity:
            worst = min(self._entries, key=lambda id: self._entries[id].use.utility)
            if worst != experience.id:
                self._record_change(worst, self._entries[worst].use, why="crowded")
            self._drop(worst, "crowded")
        return experience.id in self._entries

    def usefulness(self, id: str) -> Usefulness | None:
        """Return the usefulness of an experience, or None if it is not in the pool."""
        return self._entries[id].use if id in self._entries else None

    def note(self, notes: Notes) -> None:
        """Update the usefulness scores of experiences, then add new and returning experiences."""
        used = [note for note in notes if note.kind == EXPERIENCE_USE]
        by_group = {note.group_id: note.evidence for note in used}
        self._rates, self._changes = {"guided_groups": float(len(by_group))}, {}
        if used:
            for kind in ("guided", "free"):
                self._rates[f"success_{kind}"] = fmean(one[kind] for one in by_group.values())
        for note in used:
            self._update_or_drop(note.evidence["experience"], note.value)
        for note in notes:
            if note.kind == EXPERIENCE and note.label == OFFERED:
                experience = Experience.model_validate(dict(note.evidence))
                if self.admit(experience):
                    self._record_change(experience.id, UNMEASURED, origin=_origin(experience, note))
        self.steps += 1
        self._readmit_rested()

    def changes(self) -> tuple[AdviceState, ...]:
        """Return the experiences that were changed by the latest notes."""
        return tuple(self._changes.values())

    def _record_change(
        self, id: str, use: Usefulness, *, why: str = "", origin: AdviceOrigin | None = None
    ) -> None:
        """Record a change to an experience. The origin of an earlier record is kept."""
        before = self._changes.get(id)
        self._changes[id] = AdviceState(
            id=id,
            held=not why,
            why=why,
            utility=use.utility if use.groups else None,
            groups=use.groups,
            origin=origin or (before.origin if before else None),
        )

    def _update_or_drop(self, id: str, gained: float) -> None:
        """Update an experience's usefulness. Drop the experience if it is harmful."""
        if id not in self._entries:
            return
        use = self._entries[id].use.update(gained, self._beta)
        self._entries[id] = self._entries[id]._replace(use=use)
        harms = self._drop_rule is not None and self._drop_rule.drops(use)
        self._record_change(id, use, why="harmful" if harms else "")
        if harms:
            self._dropped[id] = _Dropped(self._entries[id].experience, self.steps)
            self._drop(id, "harmful")

    def _readmit_rested(self) -> None:
        """Try to add each experience that was dropped ``rest_steps`` ago, without its scores."""
        rest = 0 if self._drop_rule is None else self._drop_rule.rest_steps
        rested = [id for id, one in self._dropped.items() if rest and self.steps - one.step >= rest]
        for id in rested:
            if self.admit(self._dropped.pop(id).experience):
                self._counts["returned"] += 1
                self._record_change(id, UNMEASURED)

    def metrics(self) -> dict[str, float]:
        """Return metrics for the pool, including its number of experiences."""
        measured = [entry.use.utility for entry in self._entries.values() if entry.use.groups]
        numbers = {"experiences": float(len(self)), "measured": float(len(measured))}
        if measured:
            numbers["utility"] = fmean(measured)
        numbers |= self._rates
        numbers["resting"] = float(len(self._dropped))
        names = ("admitted", "copies", "harmful", "crowded", "returned")
        return numbers | {name: float(self._counts[name]) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """Return the pool as JSON, without the vectors, which are recomputed on loading."""
        return {
            "steps": self.steps,
            "embedder": self.embedder,
            "experiences": [
                {"experience": entry.experience.model_dump(mode="json"), "use": [*entry.use]}
                for entry in self._entries.values()
            ],
            "dropped": [
                {"experience": one.experience.model_dump(mode="json"), "step": one.step}
                for one in self._dropped.values()
            ],
            "counts": dict(self._counts),
            "rates": dict(self._rates),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`.

        The pool continues with the embedder that it was saved with, even if another one would now
        be chosen.
        """
        self.steps = validate(Count, state["steps"])
        if (name := state["embedder"]) != self.embedder:
            self._embed = EMBEDDERS[name]()
        dropped = [
            _Dropped(Experience.model_validate(one["experience"]), one["step"])
            for one in state["dropped"]
        ]
        self._dropped = {one.experience.id: one for one in dropped}
        self._counts = Counter(validate(dict[str, Count], state["counts"]))
        self._rates = validate(dict[str, Finite], state["rates"])
        saved = [
            (Experience.model_validate(one["experience"]), _parse_use(one["use"]))
            for one in state["experiences"]
        ]
        self._entries, self._index, self._ids = {}, None, []
        for first in range(0, len(saved), _EMBEDDED_AT_ONCE):
            some = saved[first : first + _EMBEDDED_AT_ONCE]
            vectors = self._embed([experience.when_to_use for experience, _ in some])
            for (experience, use), vector in zip(some, vectors, strict=True):
                self._add_entry(experience, use, vector)

    def _embed_text(self, text: str) -> NDArray[np.float64]:
        (vector,) = self._embed([text])
        return np.asarray(vector)

    def _nearest(self, vector: NDArray[np.float64], k: int) -> list[tuple[str, float]]:
        """Return the ids and cosine similarities of the most similar experiences, best first."""
        if not self._entries or self._index is None:
            return []
        rows, cosines = self._index.nearest(vector[None], k)
        return [
            (self._ids[row], float(cosine)) for row, cosine in zip(rows[0], cosines[0], strict=True)
        ]

    def _add_entry(
        self, experience: Experience, use: Usefulness, vector: NDArray[np.float64]
    ) -> None:
        if self._index is None:
            self._index = VectorIndex(len(vector))
        self._index.add(vector[None])
        self._entries[experience.id] = _Entry(experience, use, len(self._ids))
        self._ids.append(experience.id)

    def _drop(self, id: str, why: str) -> None:
        """Drop an experience. Rebuild the index if most of its entries have been removed."""
        row = self._entries.pop(id).row
        self._counts[why] += 1
        assert self._index is not None
        self._index.remove(row)
        self._ids[row] = ""
        if self._index.n_removed > len(self._index):
            self._index, self._ids = self._index.compact_copy(), [*self._entries]
            for place, (known, entry) in enumerate(self._entries.items()):
                self._entries[known] = entry._replace(row=place)


def _parse_use(saved: Sequence[float]) -> Usefulness:
    utility, groups, mean, squares = saved
    return Usefulness(utility, int(groups), mean, squares)


def _origin(experience: Experience, note: Note) -> AdviceOrigin:
    return AdviceOrigin(
        texts=FrozenDict(when_to_use=experience.when_to_use, content=experience.content),
        task_id=note.task_id,
        group_id=note.group_id,
        index=note.index,
        source=experience.source,
    )
