"""Details of individual training episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from coevo_gym.core.evaluation_mark import notice_of
from coevo_gym.core.task import Task, thaw
from coevo_gym.core.trajectory import EvalTrajectory, Trajectory
from coevo_gym.envs.diagnosis import failure_of
from coevo_gym.store.sampled import Sampled, TokensSampled
from coevo_gym.view.collection import ShownRun, raise_as_damaged
from coevo_gym.view.grade import why_failed
from coevo_gym.view.model.episodes import (
    Behind,
    BehindPage,
    StepView,
    step_views,
    system_text,
    tools_of,
)
from coevo_gym.view.model.notes import (
    AdviceText,
    NoteView,
    advice_in_episode,
    interface_lines,
    note_views,
    notes_except_interfaces,
)
from coevo_gym.view.model.trajectory_list import Sibling, trajectories_where
from coevo_gym.view.refusals import NotFound
from coevo_gym.view.rows import Shape, SignalView, TaskBrief
from coevo_gym.view.safe import why_withheld


class FailureView(Shape):
    """The benchmark's own diagnosis of a failed episode, without expected values.

    Attributes:
        label: kind of failure in the first failed turn, such as ``state_mismatch``; if no turn
            failed, ``not_reached`` for the turn in which the episode ended; "" if unknown.
        turn: number of this turn, from 1; null if the task has a single request.
        modes: failure modes of the whole episode, most informative first.
        text: the label with its turn, or the first mode.
    """

    label: str
    turn: int | None
    modes: tuple[str, ...]
    text: str


class GradeView(Shape):
    """The grade of an episode.

    Attributes:
        success: the binary outcome.
        score: the benchmark's own score, in [0, 1].
        end_reason: why the episode ended.
        report: the grader's report as JSON; null if withheld.
        withheld: why the report is withheld, or "".
        notice: the mark of a report on a held-out task that is shown on request, or "".
        why: why the episode failed, in a few words; "" if it succeeded or nothing is known.
        failure: the benchmark's diagnosis, which may be shown for any task; null if the episode
            succeeded, or the benchmark does not diagnose episodes.
    """

    success: bool
    score: float
    end_reason: str
    why: str = ""
    failure: FailureView | None = None
    report: dict[str, Any] | None = None
    withheld: str = ""
    notice: str = ""


class TrajectoryDetail(Shape):
    """A complete episode, with its task, steps, grade and notes.

    Attributes:
        id: id of the episode, used in paths.
        of: ``training`` or ``evaluation``.
        run: id of the run or evaluation.
        arm: name of the arm; in an evaluation, the policy.
        step: learner step; null in an evaluation.
        group: id of its group; "" in an evaluation.
        position: position in the group or among the task's episodes, from 0.
        size: K of the group, or number of episodes of the task.
        split: split of the task. Data from any split other than ``train`` must not reach training.
        notice: a warning to read before using the episode, such as that it is evaluation data, or
            "".
        task: the episode's task.
        instruction: the full instruction.
        system: the policy's system prompt as it was sent, or made from the run's settings if it
            is not stored; null if the policy does not use chat or the prompt file has changed
            since.
        tools: a line for each function that the policy's model could call.
        steps: steps of the episode.
        last_observation: the observation after the last action.
        last_page: the parsed page of that observation.
        grade: the grade of the episode.
        signals: signals emitted for the episode.
        siblings: all episodes of the group, including this one.
        policy_version: version of the policy at the start; null in an evaluation.
        advantage: advantage used for learning, as in its row.
        cue_ids: ids of the cues given to the agent.
        advice: text of the advice in these cues; training episodes only.
        interface: version of the interface that presented the env's text, or "".
        shown_by: lines that this interface adds; null if not noted.
        notes: notes by studies, in order; training episodes only.
        stored: flags for ``choices``, ``tokens`` and ``advantages``: true if stored for this
            episode.
        before: id of the previous episode in the run's order; null for the first.
        after: id of the next episode in the run's order; null for the last.
    """

    id: str
    of: Literal["training", "evaluation"]
    run: str
    arm: str
    step: int | None
    group: str
    position: int
    size: int
    split: str
    notice: str = ""
    task: TaskBrief
    instruction: str
    system: str | None = None
    tools: tuple[str, ...] = ()
    steps: tuple[StepView, ...]
    last_observation: str = ""
    last_page: BehindPage
    grade: GradeView
    signals: tuple[SignalView, ...] = ()
    siblings: tuple[Sibling, ...] = ()
    policy_version: int | None = None
    advantage: float | None = None
    cue_ids: tuple[str, ...] = ()
    advice: tuple[AdviceText, ...] = ()
    interface: str = ""
    shown_by: tuple[str, ...] | None = None
    notes: tuple[NoteView, ...] = ()
    stored: dict[str, bool] = Field(default_factory=dict)
    before: str | None = None
    after: str | None = None


def trajectory_detail(run: ShownRun, id: str) -> TrajectoryDetail:
    """Return the complete episode with the id ``ARM.GROUP.POSITION``.

    Raises:
        NotFound: if the episode is not stored.
        Damaged: if the run cannot be read.
    """
    arm, group, position = _parse_id(run, id)
    with raise_as_damaged():
        here = trajectories_where(run, "t.arm = ? AND t.group_id = ?", arm, group)
        row = next((one for one in here if one.position == position), None)
        reader = run.reader
        episode = reader.trajectory(arm, group, position) if row is not None else None
        if row is None or episode is None:
            raise _not_found_error(run, id)
        task = reader.task(row.task.id)
        signals = [one for one in reader.signals_of(arm, group) if one.index == position]
        sampled = reader.sampled_decisions(arm, group, position)
        notes = notes_except_interfaces(reader, arm, row.step, group, position)
        split = str(task.split) if task else "train"
        advice = advice_in_episode(reader, arm, episode.cue_ids, split)
        version = episode.interface
        shown_by = interface_lines(reader, arm, version) if version else None
        advantages = reader.advantages(arm, group, position)
        texts = reader.token_texts(_token_ids(sampled))
        before, after = _neighbour_ids(run, arm, group, position)
        ((size,),) = run.query_rows(
            "SELECT size FROM groups WHERE arm = ? AND id = ?", arm, group
        ) or [(len(here),)]
    behind = Behind(run.config.benchmark.name, sampled, advantages, texts, hidden=False)
    steps, last = step_views(episode, behind)
    instruction = task.instruction if task else row.task.instruction
    return TrajectoryDetail(
        id=id,
        of="training",
        run=run.id,
        arm=arm,
        step=row.step,
        group=group,
        position=position,
        size=size,
        split=split,
        notice=notice_of(split),
        task=row.task,
        instruction=instruction,
        system=system_text(
            run.config.policy, run.config.benchmark.name, run.manifest, episode, instruction
        ),
        tools=tools_of(episode),
        steps=steps,
        last_observation=episode.last_observation,
        last_page=last,
        grade=_grade_view(
            episode,
            task if task and not why_withheld(task) else None,
            run.config.benchmark.name,
        ),
        signals=tuple(SignalView(kind=one.kind, evidence=one.evidence) for one in signals),
        siblings=tuple(here),
        policy_version=episode.policy_version,
        advantage=row.advantage,
        cue_ids=episode.cue_ids,
        advice=advice,
        interface=version,
        shown_by=shown_by,
        notes=note_views(notes, split),
        stored=stored_parts(steps, advantages),
        before=before,
        after=after,
    )


def _parse_id(run: ShownRun, id: str) -> tuple[str, str, int]:
    arm, _, rest = id.partition(".")
    group, _, position = rest.rpartition(".")
    if not (arm and group and position.isdecimal() and len(position) < 7):
        raise _not_found_error(run, id)
    return arm, group, int(position)


def _not_found_error(run: ShownRun, id: str) -> NotFound:
    return NotFound(
        f"{run.id} has no episode {id[:100]!r}. IDs look like ARM.GROUP.POSITION. It stores "
        f"only the episodes selected by store.record = {run.config.store.record!r}."
    )


def _neighbour_ids(
    run: ShownRun, arm: str, group: str, position: int
) -> tuple[str | None, str | None]:
    ((number,),) = run.query_rows(
        "SELECT rowid FROM trajectories WHERE arm = ? AND group_id = ? AND position = ?",
        *(arm, group, position),
    )
    ids = []
    for sign, way in (("<", "DESC"), (">", "ASC")):
        rows = run.query_rows(
            "SELECT arm, group_id, position FROM trajectories "  # noqa: S608 (constants)
            f"WHERE rowid {sign} ? ORDER BY rowid {way} LIMIT 1",
            number,
        )
        ids.append(".".join(map(str, rows[0])) if rows else None)
    return ids[0], ids[1]


def _grade_view(episode: Trajectory, task: Task | None, benchmark: str) -> GradeView:
    end = str(episode.end_reason)
    return GradeView(
        success=episode.success,
        score=episode.score,
        end_reason=end,
        why=why_failed(episode.success, end, episode.report, task),
        failure=failure_view(benchmark, episode),
        report=thaw(episode.report),
    )


def failure_view(benchmark: str, episode: Trajectory | EvalTrajectory) -> FailureView | None:
    """Return the benchmark's diagnosis of an episode; see :class:`FailureView`."""
    failure = failure_of(benchmark, episode)
    return failure and FailureView(**failure._asdict(), text=str(failure))


def _token_ids(sampled: Sequence[Sampled | None] | None) -> list[int]:
    return [id for one in sampled or () if isinstance(one, TokensSampled) for id in one.ids]


def stored_parts(
    steps: Sequence[StepView], advantages: float | Sequence[float] | None
) -> dict[str, bool]:
    """Report whether choices, tokens and advantages of an episode are stored."""
    return {
        "choices": any(step.choices is not None for step in steps),
        "tokens": any(step.tokens is not None for step in steps),
        "advantages": advantages is not None,
    }
