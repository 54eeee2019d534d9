"""``coevo show``: list stored episodes in the terminal, or print one."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.markup import escape
from rich.rule import Rule
from rich.table import Column, Table

from coevo_gym.cli.output import (
    REVEAL_HELP,
    AsJson,
    console,
    print_json,
    print_table_unwrapped,
    say,
)
from coevo_gym.cli.sources import eval_names, make_completer, run_names
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.registry import did_you_mean
from coevo_gym.envs.diagnosis import describe_failure

if TYPE_CHECKING:
    from coevo_gym.view.collection import RunCollection
    from coevo_gym.view.model.episodes import StepView
    from coevo_gym.view.model.evals import EpisodeRow
    from coevo_gym.view.model.trajectories import TrajectoryDetail
    from coevo_gym.view.model.trajectory_list import TrajectoryRow
    from coevo_gym.view.safe import Reveal

    _Read = Callable[[], TrajectoryDetail]

_MAX_NAMED = 8
"""Maximum number of episodes in a message about an unknown episode."""
_MAX_LISTED = 40
"""Maximum number of episodes in a printed list."""


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
        str | None,
        typer.Argument(
            metavar="[EPISODE]",
            help="An episode, as the list names it; its id or the beginning of its id also works. "
            "Without it, the episodes are listed.",
        ),
    ] = None,
    reveal: Annotated[bool, typer.Option("--reveal", help=REVEAL_HELP)] = False,
    as_json: AsJson = False,
) -> None:
    """List the stored episodes of a run or evaluation, or print one of them step by step.

    The list has the failed episodes first, each with its kind of failure or the reason why it
    ended. Name one of them to print it.

    An episode begins with the system message and the functions, if a language model was sent any.
    Each step has the messages or the observation, the complete answer, the action, and the tokens
    and time that they took. The verdict names the kind of failure and the turn, such as
    state_mismatch at turn 2. The grader's report follows. For a held-out task, it is only printed
    with --reveal, and the output is marked, so that coevo_gym refuses to learn from it.

    For example:

      coevo show gpt-on-webshop

      coevo show gpt-on-webshop webshop/builtin/synthetic/7

      coevo show quickstart coevolve.group-12.0

      coevo show gpt-on-webshop webshop/builtin/synthetic/7 --reveal

      coevo show quickstart coevolve.group-12.0 --json
    """
    from coevo_gym.view.collection import RunCollection
    from coevo_gym.view.library import Library
    from coevo_gym.view.refusals import Refusal

    in_terminal = not as_json and sys.stdout.isatty()
    place: Reveal = "terminal" if in_terminal else "page"
    if Path(name).is_file():
        raise ConfigError(
            f"{name} is a file, but `coevo show` prints episodes of runs and evaluations. To look "
            f"at trajectories in ATIF files, use: coevo view {name}"
        )
    if reveal and episode is None:
        raise ConfigError(
            "--reveal prints the grader's report on one episode. Name the episode, or omit it."
        )
    collection = RunCollection(Library([name]), place if reveal else "")
    try:
        episodes = _stored_episodes(collection, name)
        if episode is None:
            _print_list(name, episodes, as_json=as_json)
            return
        detail = _choose(name, episode, episodes).read()
    except Refusal as refusal:
        raise StoreError(str(refusal)) from refusal
    redacted = collection.censor.redact(detail.model_dump_json())
    if as_json:
        print_json(json.loads(redacted))
    else:
        _print_episode(type(detail).model_validate_json(redacted))


class _StoredEpisode(NamedTuple):
    """An episode that can be printed.

    Attributes:
        id: id of the episode.
        task: name of its task, or "".
        name: the id, with the task's name in place of its id.
        success: the binary outcome.
        end_reason: why it ended.
        failure: the benchmark's kind of failure with its turn, or "".
        read: function that reads the whole episode.
    """

    id: str
    task: str
    name: str
    success: bool
    end_reason: str
    failure: str
    read: _Read

    @classmethod
    def trained(cls, row: TrajectoryRow, read: _Read) -> _StoredEpisode:
        """Return the training episode of a list's row."""
        failure = describe_failure(row.failure, row.failed_turn)
        return cls(row.id, row.task.name, row.id, row.success, row.end_reason, failure, read)

    @classmethod
    def evaluated(cls, row: EpisodeRow, read: _Read) -> _StoredEpisode:
        """Return the evaluation episode of a list's row."""
        name = row.id.replace(row.task, row.name or row.task)
        failure = describe_failure(row.failure, row.failed_turn)
        return cls(row.id, row.name, name, row.success, row.end_reason, failure, read)


def _stored_episodes(collection: RunCollection, name: str) -> list[_StoredEpisode]:
    """Return the stored episodes of a collection that contains one run or evaluation.

    Raises:
        ConfigError: if it contains a table, or no episode is stored.
    """
    from coevo_gym.runs.evals.sides import describe_table
    from coevo_gym.view.model.evals import (
        episode_detail,
        episode_rows,
        run_episode_detail,
        run_episode_rows,
    )
    from coevo_gym.view.model.trajectories import trajectory_detail
    from coevo_gym.view.model.trajectory_list import all_trajectories

    runs, evaluations = collection.runs(), collection.evals()
    if len(runs) + len(evaluations) != 1:
        kind = "runs" if runs else "evaluations"
        folders = [one.folder.path for one in runs] or [one.folder.path for one in evaluations]
        raise ConfigError(describe_table(name, kind, folders))
    episodes = list[_StoredEpisode]()
    for evaluation in evaluations:
        for row in episode_rows(evaluation):
            if row.stored:
                read = partial(episode_detail, evaluation, row.id)
                episodes.append(_StoredEpisode.evaluated(row, read))
    for run in runs:
        for trained in all_trajectories(run):
            read = partial(trajectory_detail, run, trained.id)
            episodes.append(_StoredEpisode.trained(trained, read))
        for row in run_episode_rows(run):
            read = partial(run_episode_detail, run, row.id)
            episodes.append(_StoredEpisode.evaluated(row, read))
    if not episodes:
        raise ConfigError(
            f"{name} stores no episodes, so none can be shown. Runs store those selected by "
            "store.record: train with --set store.record=all."
        )
    return episodes


def _short_names(episodes: Sequence[_StoredEpisode]) -> dict[str, str]:
    """Return the name to type for each episode, by id: its task's name, if that is unique.

    The name of a task is easier to read than an id that contains a hash.
    """
    tasks, names = Counter(one.task for one in episodes), Counter(one.name for one in episodes)
    return {
        one.id: one.task
        if one.task and tasks[one.task] == 1
        else one.name
        if names[one.name] == 1
        else one.id
        for one in episodes
    }


def _choose(name: str, episode: str, episodes: Sequence[_StoredEpisode]) -> _StoredEpisode:
    """Return the only episode that is meant.

    Raises:
        ConfigError: if none or several are.
    """
    short = _short_names(episodes)
    matches = [one for one in episodes if episode in (one.id, short[one.id])] or [
        one for one in episodes if one.id.startswith(episode) or one.task == episode
    ]
    if len(matches) == 1:
        return matches[0]
    names = list(short.values())
    options = [short[one.id] for one in matches] or names
    choices = ", ".join(options[:_MAX_NAMED]) + ", …" * (len(options) > _MAX_NAMED)
    problem = f"{len(matches)} episodes match" if matches else "there is no episode"
    meant = "" if matches else did_you_mean(episode, names)
    raise ConfigError(f"In {name}, {problem} {episode!r}. {meant}Choose one of: {choices}.")


def _print_list(name: str, episodes: Sequence[_StoredEpisode], *, as_json: bool) -> None:
    """Print the stored episodes, failed ones first. JSON has all of them, a table the first."""
    from coevo_gym.view.numbers import plural

    names = _short_names(episodes)
    ordered = sorted(episodes, key=lambda one: one.success)
    rows = [
        {
            "episode": names[one.id],
            "id": one.id,
            "success": one.success,
            "end_reason": one.end_reason,
            "failure": one.failure,
        }
        for one in (ordered if as_json else ordered[:_MAX_LISTED])
    ]
    if as_json:
        print_json(rows)
        return
    grid = Table(Column("episode", overflow="fold"), "outcome", "failure or end reason")
    for row in rows:
        outcome = "solved" if row["success"] else "not solved"
        reason = "" if row["success"] else row["failure"] or row["end_reason"]
        grid.add_row(escape(str(row["episode"])), outcome, escape(str(reason)))
    print_table_unwrapped(grid)
    solved = sum(one.success for one in episodes)
    say(f"{plural(len(episodes), 'stored episode')}, {solved:,} solved.")
    if len(rows) < len(episodes):
        say(f"{len(episodes) - len(rows):,} more are in the list of `coevo show {name} --json`.")
    say(f"To print one: coevo show {name} {names[ordered[0].id]}")


def _print_episode(detail: TrajectoryDetail) -> None:
    grade = detail.grade
    outcome = "solved" if grade.success else "not solved"
    failed = f", {grade.failure.text}" if grade.failure else ""
    place = f"{detail.run}, {detail.arm}" + (f", step {detail.step}" if detail.step else "")
    say(f"{detail.task.name or detail.task.id}: {outcome}{failed}, score {grade.score:.2f}")
    say(f"{place}, episode {detail.id}, {detail.split} task")
    if detail.notice:
        say(detail.notice)
    if detail.system:
        _print_part("system", detail.system)
    if detail.tools:
        _print_part("functions", "\n".join(detail.tools))
    _print_part("task", detail.instruction)
    for step in detail.steps:
        _print_step(step, known=detail.system)
    if detail.last_observation:
        _print_part("last observation", detail.last_observation)
    _print_part("verdict", f"score {grade.score:.2f}, {grade.end_reason}{failed}")
    modes = ", ".join(grade.failure.modes) if grade.failure else ""
    texts = (
        grade.why and f"why: {grade.why}",
        modes and f"failure modes: {modes}",
        *_notes(detail),
        _totals(detail.steps),
        grade.withheld,
        grade.notice,
    )
    for text in filter(None, texts):
        say(text)
    if grade.report:
        say(json.dumps(grade.report, indent=2, ensure_ascii=False))


def _print_step(step: StepView, known: str | None) -> None:
    """Print a step: the new messages or the observation, the answer, and the action.

    Args:
        step: the step.
        known: the system message, which has been printed.
    """
    turn = f" (turn {step.turn})" if step.turn else ""
    heading = f"step {step.number}{turn}"
    messages = [one for one in step.messages if (one.role, one.text) != ("system", known)]
    for message in messages:
        _print_part(f"{heading}: {message.role} message", message.text)
    if not messages:
        _print_part(f"{heading}: observation", step.observation)
    if step.said and step.said.strip() != step.action.strip():
        _print_part(f"{heading}: answer", step.said)
    _print_part(f"{heading}: action", step.action)
    for remark in _remarks(step):
        say(remark)


def _remarks(step: StepView) -> Sequence[str]:
    remarks = [", ".join(_costs([step]))]
    if step.error_kind:
        remarks.append(f"no effect: {step.error_kind}")
    if step.choices is not None and step.taken is not None:
        chance = step.choices[step.taken].probability
        known = "" if chance is None else f", probability {chance:.2f}"
        remarks.append(f"choice {step.taken + 1} of {len(step.choices)}{known}")
    if step.reward:
        remarks.append(f"reward {step.reward:g}")
    if step.extras:
        remarks.append(f"details: {json.dumps(step.extras, ensure_ascii=False)}")
    return list(filter(None, remarks))


def _costs(steps: Sequence[StepView]) -> Iterator[str]:
    """Yield the tokens and the wall time of steps, as far as they are stored."""
    if any(step.completion_tokens for step in steps):
        prompt = sum(step.prompt_tokens or 0 for step in steps)
        yield f"{prompt:,} prompt tokens"
        yield f"{sum(step.completion_tokens or 0 for step in steps):,} answer tokens"
    for name, times in (
        ("answer", [step.answer_s for step in steps]),
        ("env", [step.env_s for step in steps]),
    ):
        if known := [time for time in times if time is not None]:
            seconds = sum(known)
            yield f"{name} {seconds:.1f} s" if seconds >= 0.1 else f"{name} {1000 * seconds:.1f} ms"


def _totals(steps: Sequence[StepView]) -> str:
    costs = ", ".join(_costs(steps))
    return f"{len(steps)} steps: {costs}" if costs and len(steps) > 1 else ""


def _notes(detail: TrajectoryDetail) -> Sequence[str]:
    signals = [f"signal: {signal.kind}" for signal in detail.signals]
    labels = [f"note: {note.kind} {note.label}" for note in detail.notes if note.label]
    return [*signals, *labels]


def _print_part(heading: str, text: str) -> None:
    console.print(Rule(heading, align="left", style="dim"))
    say(text)
