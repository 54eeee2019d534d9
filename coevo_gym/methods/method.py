"""Methods: a curriculum, credit for outcomes, a learner, and the evolution of tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.sections import flat
from coevo_gym.core.task import FrozenModel
from coevo_gym.curricula.guiding import MethodParts
from coevo_gym.methods.kit import Kit
from coevo_gym.trainers.credit import Credit
from coevo_gym.trainers.settings import LearnerConfig


@dataclass(frozen=True, kw_only=True)
class Method(MethodParts):
    """The new parts of a method, ready for training; a part that is omitted does nothing.

    Attributes:
        curriculum: the curriculum, which chooses the tasks.
        learner: settings of the learner.
        credit: the estimator of advantages from outcomes; None for the one that the learner's
            settings name.
        evolver: carries out rounds; None for a curriculum that never plans one.
        first_round: finds the tasks to begin with; None if the curriculum has some.
        coach: gives interface and cues to training episodes; None for no coach.
        studies: write notes about each step's groups.
        memories: grow from the notes, by name; names are also used for saving and restoring.
    """

    learner: LearnerConfig
    credit: Credit | None = None


class NoSettings(FrozenModel):
    """The settings of a method that has none of its own."""


@dataclass(frozen=True)
class MethodSpec:
    """The specification of a method, which the decorator :func:`method` makes from a function.

    Attributes:
        name: its name in settings of arms.
        settings: model of its own settings, which an arm sets as ``method.KEY``. An
            optional setting ``native`` says that all native training tasks are practised. Optional
            members: ``finds_own_tasks`` is True if the arm finds ``curriculum.initial_size`` tasks
            in a round of its own; ``questions_per_step`` maps each study's kind of notes to the
            most questions that it asks the analyst per step of the learner; ``shows_solutions`` is
            True if a question contains a task's solution, so that the policy may not answer it.
        assemble: makes its parts.
        sets: settings of the run's parts that define it, by dotted key. They override the
            run's settings, and the arm's own settings override them.
        summary: a description in one sentence.
    """

    name: str
    settings: type[FrozenModel]
    assemble: Callable[[FrozenModel, Kit], Method]
    sets: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""

    def __call__(self, settings: FrozenModel, kit: Kit) -> Method:
        """Return the method's parts."""
        made = self.assemble(settings, kit)
        if not isinstance(made, Method):
            raise ConfigError(
                f"The method {self.name!r} returned no Method, but {type(made).__name__}. Its "
                "function must return one."
            )
        return made

    def preset(self, name: str, summary: str, **sections: Mapping[str, Any]) -> MethodSpec:
        """Return a spec of the same parts under another name and with other settings.

        Args:
            name: its name in settings of arms.
            summary: a description in one sentence.
            **sections: settings that define it, by section: ``learner={"epochs": 1}``.
        """
        sets = {**self.sets, **dict(flat(sections))}
        return MethodSpec(name, self.settings, self.assemble, sets, summary)


def method(
    name: str, **sections: Mapping[str, Any]
) -> Callable[[Callable[..., Method]], MethodSpec]:
    """Make a method from a function that assembles it.

    The function takes the method's own settings, a :class:`FrozenModel` that its annotation names,
    and the :class:`Kit`; or the kit alone. The first line of its docstring describes the method.

    Args:
        name: its name in settings of arms.
        **sections: settings of the run's parts that define it, by section:
            ``curriculum={"evolve": "off"}``.

    Raises:
        ConfigError: if the function cannot assemble a method.

    Example:
        >>> from coevo_gym.methods.coevolve import coevolve
        >>> @method("patient", learner={"epochs": 1})
        ... def patient(kit: Kit) -> Method:
        ...     '''Look at each batch once.'''
        ...     return coevolve(NoSettings(), kit)
        >>> patient.summary, patient.sets["learner.epochs"]
        ('Look at each batch once.', 1)
    """

    def made(function: Callable[..., Method]) -> MethodSpec:
        settings, assemble = _parameters(name, function)
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        return MethodSpec(name, settings, assemble, dict(flat(sections)), summary)

    return made


def _parameters(
    name: str, function: Callable[..., Method]
) -> tuple[type[FrozenModel], Callable[[FrozenModel, Kit], Method]]:
    """Return the model of a method's settings, and its function as one of settings and kit."""
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) == 1:
        return NoSettings, lambda settings, kit: function(kit)
    try:
        annotation = get_type_hints(function).get(parameters[0]) if len(parameters) == 2 else None
    except NameError as error:
        raise ConfigError(
            f"The method {name!r}: {error}. Import the names in its annotations, even if "
            "only type checkers need them."
        ) from error
    if not (isinstance(annotation, type) and issubclass(annotation, FrozenModel)):
        raise ConfigError(
            f"The method {name!r} must be a function of a Kit, or of its settings and a Kit, and "
            "its first parameter must be annotated with its settings, a subclass of FrozenModel; "
            f"actual: {function.__name__}{inspect.signature(function)}"
        )
    return annotation, function
