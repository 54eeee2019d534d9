"""Games that run on the real TextWorld engine and use text from its real grammar.

The planner's translation determines the possible actions, their effects and the goal. TextWorld's
grammar generates the text, and ALFWorld's demangler names the objects. This module does the same
work as ``PddlEnv`` between these parts, but computes nothing twice. All text is byte-identical to
the stock engine's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container
from contextlib import suppress
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from alfworld.agents.utils.misc import Demangler
from mementos.core import _memento_cache
from textworld.envs.pddl.logic import PddlState
from textworld.generator.game import EntityInfo
from textworld.logic import Placeholder, Proposition, Type, TypeHierarchy, Variable
from textworld.logic import State as FactState

from coevo_gym.core.errors import TaskError
from coevo_gym.envs.alfworld.data import UNKNOWN
from coevo_gym.envs.alfworld.engine.grammar import DerivationContext, Grammar, open_grammar
from coevo_gym.envs.alfworld.engine.sas import Rules, State
from coevo_gym.envs.alfworld.engine.translation import Translation, translate

NOTHING = "Nothing happens."
MAX_FACTS = 20_000
"""Number of facts in TextWorld's global cache above which opening a scene clears the cache."""


class Fact(NamedTuple):
    """A fact: a predicate and the display names of its objects, such as ``desk 1``."""

    name: str
    objects: tuple[str, ...]


class Scene:
    """Data shared by all games that are based on the same problem.

    Raises:
        EnvBackendError: if the planner cannot read the problem.
        TaskError: if no command can affect the goal.
    """

    def __init__(self, domain: str, grammar: str, problem: str) -> None:
        self.grammar: Grammar = open_grammar(grammar)
        self.translation: Translation = translate(domain, problem)
        self.types = TypeHierarchy()
        for name, bases in self.translation.types:
            with suppress(ValueError):  # as in the original, if the type already exists
                self.types.add(Type(name, bases))
        self._propositions: dict[str, Proposition] = {}
        first = [
            Proposition(name, [self._variable(item) for item in objects])
            for name, objects in self.translation.facts
        ]
        self.rules = Rules(self.translation.sas)
        self.translation = self.translation._replace(sas="")  # frees about a megabyte
        if not self.rules.operators:  # the translator has simplified everything away
            raise TaskError(
                "The goal can never be met, or is always met: no command can make a difference. "
                "Choose a goal that the objects in the scene allow."
            )
        self.start = State(self.rules)
        atoms = [self.proposition(atom) for atom in self.start.atoms()]
        self.facts = [*first, *(fact for fact in atoms if not fact.is_negation)]
        self.infos = self._named(_Facts(self).facts)
        self._actions: dict[int, GameAction] = {}
        self._facts: dict[Proposition, Fact] = {}

    def proposition(self, atom: str) -> Proposition:
        """Convert an atom from the planner into a TextWorld proposition."""
        found = self._propositions.get(atom)
        if found is None:
            kind, _, rest = atom.partition(" ")
            name, _, objects = rest[:-1].partition("(")
            arguments = [self._variable(item) for item in objects.split(", ") if item]
            negated = "not_" if kind == "NegatedAtom" else ""
            found = self._propositions[atom] = Proposition(negated + name, arguments)
        return found

    def fact(self, proposition: Proposition) -> Fact:
        """Convert a TextWorld proposition into a fact with display names."""
        found = self._facts.get(proposition)
        if found is None:
            names = tuple(self.infos[v.name].name.strip() for v in proposition.arguments)
            found = self._facts[proposition] = Fact(proposition.name, names)
        return found

    def action(self, index: int, facts: Any) -> GameAction:
        """Return the game action for an operator. The result is the same for all ``facts``."""
        found = self._actions.get(index)
        if found is None:
            operator = self.rules.operators[index]
            name, *objects = operator.name.split()
            parameters = self.translation.parameters[name]
            mapping = {
                Placeholder(parameter, type_): Variable(item, type_)
                for (parameter, type_), item in zip(parameters, objects, strict=False)
            }
            spoken = self.grammar.actions[name]
            text = self.grammar.derive(spoken.template, self.setting(facts, mapping))
            names = {ph.name: self.infos[var.name].name for ph, var in mapping.items()}
            changes = [self.rules.atoms[e.variable][e.value] for e in operator.effects]
            found = self._actions[index] = GameAction(
                name=name,
                command=text.format(**names),
                feedback=spoken.feedback_rule,
                mapping=mapping,
                changes=tuple(self.proposition(atom) for atom in changes),
            )
        return found

    def setting(self, facts: Any, mapping: dict[Placeholder, Variable]) -> DerivationContext:
        """Return the context that the grammar needs to describe the given objects."""
        named = {ph.name: self.infos[var.name] for ph, var in mapping.items()}
        return DerivationContext(facts, self.infos, named, mapping)

    def _variable(self, name: str) -> Variable:
        shown = name.upper() if name in ("i", "p") else name
        return Variable(shown, self.translation.objects[name])

    def _named(self, facts: Any) -> dict[str, EntityInfo]:
        """Return an ``EntityInfo`` for each object, with its name from ALFWorld's demangler."""
        infos = {v.name: EntityInfo(v.name, v.type) for fact in facts for v in fact.arguments}
        for info in infos.values():
            info.name, info.definite, info.indefinite = info.id, "the", "a"
        demangler = Demangler(game_infos=infos, shuffle=False)
        for info in infos.values():
            info.name = demangler.demangle_alfred_name(info.id)
        return infos


class GameAction(NamedTuple):
    """An operator with its command text and its effects.

    Attributes:
        name: the action's name.
        command: the player's command.
        feedback: the grammar symbol for the action's result.
        mapping: the action's objects, by placeholder.
        changes: facts that become true, and negations of facts that become false. As in the
            original, this includes effects whose condition fails.
    """

    name: str
    command: str
    feedback: str
    mapping: dict[Placeholder, Variable]
    changes: tuple[Proposition, ...]


class _Facts(PddlState):  # type: ignore[misc]
    """A scene's facts at the current step, for queries by TextWorld's grammar.

    Each query needs all facts of one kind in sorted order. This class caches the sorted list until
    a fact of that kind changes.
    """

    def __init__(self, scene: Scene) -> None:
        self._facts: Any = defaultdict(set)
        self._vars_by_name: Any = {}
        self._vars_by_type: Any = defaultdict(set)
        self._var_counts: Any = Counter()
        self._logic = SimpleNamespace(types=scene.types)
        self._sorted: dict[Any, list[Proposition]] = {}
        FactState.add_facts(self, scene.facts)

    def facts_with_signature(self, sig: Any) -> Any:
        found = self._sorted.get(sig)
        if found is None:
            found = self._sorted[sig] = sorted(super().facts_with_signature(sig))
        return found

    def add_fact(self, prop: Proposition) -> None:
        self._sorted.pop(prop.signature, None)
        super().add_fact(prop)

    def remove_fact(self, prop: Proposition) -> None:
        self._sorted.pop(prop.signature, None)
        super().remove_fact(prop)


class Game:
    """A running game. Its first observation includes ``goal``, the description of the task.

    Attributes:
        observation: the engine's latest text.
        admissible: commands that have an effect now, sorted.
        won: True if the goal holds.
    """

    def __init__(self, scene: Scene, goal: str) -> None:
        self.scene = scene
        self._state = scene.start.copy()
        self._facts = _Facts(scene)
        intro = scene.grammar.derive("#intro#", scene.setting(self._facts, {}))
        self.observation = intro.replace(UNKNOWN, goal)
        self._look()

    def step(self, command: str) -> str:
        """Run a command and return its action's name, or "" if the command is not admissible."""
        index = self._operators.get(command.strip())
        if index is None:
            self.observation = NOTHING
            return ""
        self._state.apply(index)
        action = self.scene.action(index, self._facts)
        for change in action.changes:
            self._facts.remove_fact(change.negate())
            self._facts.add_fact(change)
        setting = self.scene.setting(self._facts, action.mapping)
        self.observation = self.scene.grammar.derive(action.feedback, setting)
        self._look()
        return action.name

    def facts(self, predicates: Container[str] | None = None) -> frozenset[Fact]:
        """Return all current facts, or only facts with the given predicates."""
        return frozenset(
            self.scene.fact(proposition)
            for proposition in self._facts.facts
            if predicates is None or proposition.name in predicates
        )

    def _look(self) -> None:
        """Update the admissible commands and the win flag."""
        # If two operators have the same command, the first operator is used.
        possible = sorted(self._state.possible, reverse=True)
        self._operators = {self.scene.action(i, self._facts).command: i for i in possible}
        self.admissible = tuple(sorted(self._operators))
        self.won = self._state.solved()


@lru_cache(maxsize=16)
def open_scene(domain: str, grammar: str, problem: str) -> Scene:
    """Return the scene for a problem. The most recent scenes are cached."""
    # TextWorld caches every fact ever made. Facts are compared by value, so clearing it is safe.
    if len(_memento_cache) > MAX_FACTS:
        _memento_cache.clear()
    return Scene(domain, grammar, problem)
