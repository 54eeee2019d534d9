"""``coevo show``: print one stored episode in the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.rule import Rule

from coevo_gym.cli.output import AsJson, console, print_json, say, say_to_stderr
from coevo_gym.cli.sources import eval_names, make_completer, run_names
from coevo_gym.core.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from coevo_gym.view.collection import RunCollection
    from coevo_gym.view.model.episodes import StepView
    from coevo_gym.view.model.trajectories import TrajectoryDetail

_MAX_LISTED = 8


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name or folder of a run or an evaluation.",
            autocompletion=make_completer(run_names, eval_names),
        ),
    ],
    episode: Annotated[
        str,
        typer.Argument(
            metavar="EPISODE",
            help="Id of an episode, or the beginning of the id; or the name of an evaluated task.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Print a stored episode: prompts, answers, actions, rewards and the verdict.

    The command prints the system message and the tools if a language model was sent any, and for
    each step the observation, the complete answer and the action. A failed episode ends with the
    reason, as far as it may be shown: how a held-out task is judged is withheld.

    For example:

      coevo show quickstart coevolve.group-12.0

      coevo show gpt-on-webshop webshop/builtin/synthetic/7

      coevo show quickstart coevolve.group-12.0 --json
    """
    from coevo_gym.view.collection import RunCollection
    from coevo_gym.view.library import Library
    from coevo_gym.view.refusals import Refusal

    collection = RunCollection(Library([name]))
    try:
        detail = _find_episode(collection, name, episode)
    except Refusal as refusal:
        raise StoreError(str(refusal)) from refusal
    redacted = collection.censor.redact(detail.model_dump_json())
    if as_json:
        print_json(json.loads(redacted))
    else:
        _print_episode(type(detail).model_validate_json(redacted))


def _find_episode(collection: RunCollection, name: str, episode: str) -> TrajectoryDetail:
    from coevo_gym.view.model.evals import episode_detail, episode_rows
    from coevo_gym.view.model.trajectories import trajectory_detail
    from coevo_gym.view.model.trajectory_list import all_trajectories

    runs, evaluations = collection.runs(), collection.evals()
    if len(runs) + len(evaluations) != 1:
        cells = ", ".join(str(run.folder.path) for run in runs[:_MAX_LISTED])
        raise ConfigError(f"{name} is a table of {len(runs)} runs. Name one of them: {cells}, …")
    if evaluations:
        rows = [row for row in episode_rows(evaluations[0]) if row.stored]
        ids = {row.id: row.name for row in rows}
        return episode_detail(evaluations[0], _choose(name, episode, ids))
    trajectories = {row.id: row.task.name for row in all_trajectories(runs[0])}
    return trajectory_detail(runs[0], _choose(name, episode, trajectories))


def _choose(name: str, episode: str, ids: dict[str, str]) -> str:
    """Return the only id that is meant.

    Raises:
        ConfigError: if none or several are.
    """
    if episode in ids:
        return episode
    matches = [id for id, task in ids.items() if id.startswith(episode) or task == episode]
    if len(matches) == 1:
        return matches[0]
    if not ids:
        raise ConfigError(f"{name} stores no episodes, so none can be shown.")
    choices = ", ".join((matches or list(ids))[:_MAX_LISTED])
    more = ", …" if len(matches or ids) > _MAX_LISTED else ""
    problem = f"{len(matches)} episodes match" if matches else "there is no episode"
    raise ConfigError(f"In {name}, {problem} {episode!r}. Choose one of: {choices}{more}.")


def _print_episode(detail: TrajectoryDetail) -> None:
    grade = detail.grade
    outcome = "solved" if grade.success else "not solved"
    place = f"{detail.run}, {detail.arm}" + (f", step {detail.step}" if detail.step else "")
    say(f"{detail.task.name or detail.task.id}: {outcome}, score {grade.score:.2f}")
    say(f"{place}, episode {detail.id}, {detail.split} task")
    if detail.notice:
        say_to_stderr(detail.notice)
    if detail.system:
        _print_part("system", detail.system)
    for tool in detail.tools:
        say(f"tool: {tool}")
    _print_part("task", detail.instruction)
    for step in detail.steps:
        _print_part(f"step {step.number}: observation", step.observation)
        if step.said:
            _print_part(f"step {step.number}: answer", step.said)
        _print_part(f"step {step.number}: action", step.action)
        for remark in _remarks(step):
            say(remark)
    if detail.last_observation:
        _print_part("last observation", detail.last_observation)
    _print_part("verdict", f"score {grade.score:.2f}, {grade.end_reason}")
    for text in filter(None, (grade.why, grade.withheld, *_notes(detail))):
        say(text)


def _remarks(step: StepView) -> Sequence[str]:
    remarks = []
    if step.error_kind:
        remarks.append(f"no effect: {step.error_kind}")
    if step.choices is not None and step.taken is not None:
        chance = step.choices[step.taken].probability
        known = "" if chance is None else f", probability {chance:.2f}"
        remarks.append(f"choice {step.taken + 1} of {len(step.choices)}{known}")
    if step.tokens:
        remarks.append(f"{len(step.tokens)} sampled tokens")
    if step.reward:
        remarks.append(f"reward {step.reward:g}")
    return remarks


def _notes(detail: TrajectoryDetail) -> Sequence[str]:
    signals = [f"signal: {signal.kind}" for signal in detail.signals]
    labels = [f"note: {note.kind} {note.label}" for note in detail.notes if note.label]
    return [*signals, *labels]


def _print_part(heading: str, text: str) -> None:
    console.print(Rule(heading, align="left", style="dim"))
    say(text)
