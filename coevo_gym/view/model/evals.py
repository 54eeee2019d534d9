"""Views of evaluations, whether stored in their own folders or within runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from coevo_gym.core.evaluation_mark import notice_of
from coevo_gym.core.stats import SOLVED, success_rate
from coevo_gym.core.task import thaw
from coevo_gym.core.trajectory import EvalTrajectory
from coevo_gym.envs.tags import kind_of_tag, value_of_tag
from coevo_gym.episodes.evaluation import by_task, pass_at, rate_of, rates_by_type
from coevo_gym.runs.config.run_sections import PolicySettings
from coevo_gym.runs.folders.listing import inspect_evaluation
from coevo_gym.runs.table import RANDOM, WARMUP
from coevo_gym.store.eval_folder import EvalLine
from coevo_gym.store.folder import is_in_use, read_lines
from coevo_gym.store.links import linked_folder
from coevo_gym.store.reader import Evaluated, EvaluatedTask
from coevo_gym.store.secrets import redact_secrets
from coevo_gym.view.collection import RunCollection, ShownEval, ShownRun, raise_as_damaged
from coevo_gym.view.filters import EPISODES, select_page
from coevo_gym.view.grade import why_failed
from coevo_gym.view.model.episodes import Behind, step_views, system_text, tools_of
from coevo_gym.view.model.run_progress import latest_change
from coevo_gym.view.model.trajectories import (
    GradeView,
    TrajectoryDetail,
    failure_view,
    stored_parts,
)
from coevo_gym.view.model.trajectory_list import Sibling
from coevo_gym.view.query import Query, to_lower_case
from coevo_gym.view.refusals import Damaged, NotFound
from coevo_gym.view.rows import FolderRow, Paged, Rated, Shape, TaskBrief, one_line
from coevo_gym.view.safe import partial_scores, why_verdict_withheld


class EvalRow(FolderRow):
    """A row in the list of evaluations, with the success rate averaged over the tasks.

    Attributes:
        source: the run or benchmark that was evaluated.
        policy: name of the policy.
        split: split of the tasks.
        n_tasks: number of tasks.
        samples: episodes per task.
        done: number of finished episodes.
        total: number of planned episodes.
        lost: number of episodes lost to infrastructure faults, across all attempts.
        finished: true if the summary has been written.
        running: true while a process writes to the evaluation.
        updated_at: time of the last write in UTC (ISO 8601).
    """

    source: str = ""
    policy: str = ""
    split: str = ""
    n_tasks: int = 0
    samples: int = 1
    done: int = 0
    total: int = 0
    lost: int = 0
    finished: bool = False
    running: bool = False
    updated_at: str | None = None


class EvalList(Shape):
    """All evaluations that the viewer shows, latest first."""

    evals: tuple[EvalRow, ...]


class TypeRow(Rated):
    """The mean success rate of all tasks of one type.

    Attributes:
        kind: the kind of tag, such as ``category`` or ``subset``.
        value: the value of the tag.
        tasks: number of tasks with at least one finished episode.
    """

    kind: str
    value: str
    tasks: int


class EvalDetail(Shape):
    """An evaluation with all its details.

    Attributes:
        eval: the evaluation's row in the list.
        notice: a warning to read before using the episodes; "" for training tasks.
        score: mean score in [0, 1].
        scenario_success: share of scenarios in which all episodes succeeded; null if unknown.
        steps: mean number of env steps per episode.
        end_reasons: number of episodes by end reason.
        failures: number of failed episodes by kind of failure, as far as it is known.
        pass_at: pass@k by k when there are several samples per task; the keys are numbers as text.
        types: success by task type, grouped by kind.
        tokens: the model's ``prompt`` and ``completion`` tokens, and their cost ``usd``.
        panel: the panel's ``name`` and ``hash``, and ``declared``: true if the evaluation was given
            this panel, false if it was made from the tasks; null until the evaluation is finished.
        protocol: the ``hash`` of the protocol and its ``parts``; null until it is finished.
        cite: the line to cite; "" until it is finished.
        config: all settings that the results depend on, without secrets.
        used_from: the folder of the identical evaluation that a table uses instead of its own cell;
            "" for an evaluation in its own folder.
    """

    eval: EvalRow
    notice: str
    score: float | None
    scenario_success: float | None
    steps: float | None
    end_reasons: dict[str, int]
    failures: dict[str, int]
    pass_at: dict[str, float]
    types: tuple[TypeRow, ...]
    tokens: dict[str, float]
    panel: dict[str, Any] | None
    protocol: dict[str, Any] | None
    cite: str
    config: dict[str, Any]
    used_from: str = ""


class EpisodeRow(Sibling):
    """A row in the list of an evaluation's episodes.

    Filters: ``success`` (``true`` or ``false``), ``end`` (reason), ``failure`` (kind), ``type``
    (``kind:value``), ``sample``, ``task`` (id), ``q`` (words of name, id and instruction). Sorts:
    ``name`` (default), ``score``, ``steps``, ``success``.

    Attributes:
        task: id of the task.
        name: name of the task.
        instruction: the task's instruction, truncated to 300 characters.
        sample: index among the task's episodes, from 0.
        tags: the task's tags.
        stored: true if ``evals/{name}/episodes/{id}`` returns the episode.
    """

    task: str
    name: str
    instruction: str
    sample: int
    tags: tuple[str, ...]
    stored: bool


class EpisodePage(Paged):
    """A page of an evaluation's episodes."""

    rows: tuple[EpisodeRow, ...]


class TaskOutcome(Shape):
    """The result for a held-out task in one of a run's evaluations.

    Attributes:
        id: id of the task.
        name: name of the task.
        instruction: the task's instruction, truncated to 300 characters.
        tags: the task's tags.
        success: true if at least half of the task's episodes succeeded.
        share: share of the episodes that succeeded.
        episodes: number of episodes.
        score: mean of the benchmark's own score.
        end_reason: why the episodes ended; the most frequent reason if they differ.
        failure: the benchmark's kind of failure; the most frequent one if they differ, or "".
        failed_turn: number of the turn that failed; null if the task has a single request.
        steps: mean number of env steps.
        before: ``success`` at the arm's previous evaluation; null for the first.
        stored: id of the task's first stored episode, for ``runs/{run}/evaluated/{id}``; null if
            none is stored.
    """

    id: str
    name: str
    instruction: str
    tags: tuple[str, ...]
    success: bool
    share: float
    episodes: int
    score: float
    end_reason: str
    failure: str = ""
    failed_turn: int | None = None
    steps: float
    before: bool | None = None
    stored: str | None = None


class EvaluationDetail(Rated):
    """An evaluation of an arm on held-out tasks, with the result for each task.

    Attributes:
        run: id of the run.
        arm: name of the arm; the baselines are ``random`` and ``warm-up``.
        step: the arm's step.
        split: split of the tasks.
        steps: all steps with an evaluation of the arm whose results per task are stored.
        types: success by task type.
        tasks: the result for each task, in order.
    """

    run: str
    arm: str
    step: int
    split: str
    steps: tuple[int, ...]
    types: tuple[TypeRow, ...]
    tasks: tuple[TaskOutcome, ...]


def eval_list(collection: RunCollection) -> EvalList:
    """Return all evaluations, latest first."""
    return EvalList(evals=eval_rows(collection))


def eval_rows(collection: RunCollection) -> tuple[EvalRow, ...]:
    """Return the rows of all evaluations, latest first."""
    rows = sorted(
        map(eval_row, collection.evals()), key=lambda row: row.updated_at or "", reverse=True
    )
    return tuple(rows)


def eval_rows_for_terminal(collection: RunCollection) -> list[EvalRow]:
    """Return the rows of all evaluations for terminal output, sorted by name.

    The success rate comes from the summary; it is None until the evaluation is finished.
    """
    rows = []
    for evaluation in collection.evals():
        on_disk = inspect_evaluation(evaluation.folder)
        summary = evaluation.summary if on_disk.state != "damaged" else None
        success = (summary or {}).get("success")
        rows.append(
            eval_row(evaluation).model_copy(update={"on_disk": on_disk, "success": success})
        )
    return rows


def eval_detail(evaluation: ShownEval) -> EvalDetail:
    """Return an evaluation with all its details.

    Raises:
        Damaged: if the evaluation cannot be read.
    """
    lines, summary = list(evaluation.episode_lines.values()), evaluation.summary or {}
    tried = list(by_task(lines).values())
    return EvalDetail(
        eval=eval_row(evaluation),
        notice=notice_of(evaluation.config["split"]),
        score=_mean_of_known(
            [_mean_of_known([line.score for line in episodes]) for episodes in tried]
        ),
        scenario_success=summary.get("scenario_success"),
        steps=_mean_of_known([line.steps for line in lines]),
        end_reasons=dict(Counter(line.end_reason for line in lines).most_common()),
        failures=dict(Counter(line.failure for line in lines if line.failure).most_common()),
        pass_at={
            str(k): value for k, value in pass_at(tried, evaluation.config["samples"]).items()
        },
        types=tuple(
            TypeRow(kind=kind, value=value, **asdict(rate))
            for kind, values in rates_by_type(tried).items()
            for value, rate in values.items()
        ),
        tokens={
            "prompt": sum(line.prompt_tokens for line in lines),
            "completion": sum(line.completion_tokens for line in lines),
            "usd": math.fsum(line.usd for line in lines),
        },
        panel=summary.get("panel"),
        protocol=summary.get("protocol"),
        cite=str(summary.get("cite", "")),
        used_from=linked_folder(evaluation.folder.path),
        config=redact_secrets(
            {key: value for key, value in evaluation.config.items() if key not in _OWN_PLACE}
        ),
    )


def episode_page(evaluation: ShownEval, query: Query) -> EpisodePage:
    """Return a page of an evaluation's episodes.

    Raises:
        BadRequest: if a parameter is invalid.
        Damaged: if the evaluation cannot be read.
    """
    selection = select_page(episode_rows(evaluation), EPISODES, query)
    return EpisodePage(rows=tuple(selection.rows), **selection.paging)


_OWN_PLACE = ("panel", "protocol")
"""Settings that the details show in a place of their own."""
_SHOWN = {
    *("name", "sample", "tags", "success", "score", "end_reason", "steps"),
    *("failure", "failed_turn"),
}
"""Fields of the results file that a list row also contains."""


def episode_rows(evaluation: ShownEval) -> list[EpisodeRow]:
    """Return the rows of all episodes, sorted by name."""
    return list(
        _make_episode_rows(evaluation.episode_lines.values(), *_tasks_and_stored_keys(evaluation))
    )


def _make_episode_rows(
    lines: Iterable[EvalLine], tasks: Mapping[str, EvaluatedTask], stored: set[tuple[str, int]]
) -> Iterator[EpisodeRow]:
    for line in sorted(lines, key=lambda line: (line.name, line.sample)):
        asked = tasks[line.id].instruction if line.id in tasks else ""
        yield EpisodeRow(
            **line.model_dump(include=_SHOWN),
            id=f"{line.id}.{line.sample}",
            position=line.sample,
            task=line.id,
            instruction=one_line(asked),
            stored=line.key in stored,
            words=to_lower_case(f"{line.name} {line.id} {asked}"),
        )


def episode_detail(evaluation: ShownEval, id: str) -> TrajectoryDetail:
    """Return an evaluation episode.

    Unless the evaluation reveals it, how a held-out task is judged is left out. Ids have the form
    ``TASK.SAMPLE``.

    Raises:
        NotFound: if the episode is not stored.
        Damaged: if the evaluation cannot be read.
    """
    config, lines = evaluation.config, evaluation.episode_lines
    tasks, stored = _tasks_and_stored_keys(evaluation)
    of_task = [line for line in lines.values() if line.id == id.rpartition(".")[0]]
    return _stored_detail(
        evaluation,
        id,
        list(_make_episode_rows(of_task, tasks, stored)),
        [f"{line.id}.{line.sample}" for line in lines.values()],
        tasks,
        stored_as=(config["policy"], 0),
        benchmark=config["benchmark"],
        split=config["split"],
        system_of=lambda episode, asked: _system_prompt(config, episode, asked),
        form="TASK.SAMPLE",
    )


def run_episode_rows(run: ShownRun) -> list[EpisodeRow]:
    """Return the rows of all episodes that a run stored in its evaluations.

    Their ids have the form ``ARM.STEP.TASK.SAMPLE``. A run stores these episodes with
    ``store.record = "all"``.
    """
    with raise_as_damaged():
        places = run.query_rows(
            "SELECT arm, step FROM evaluations WHERE body IS NOT NULL GROUP BY arm, step "
            "ORDER BY min(rowid)"
        )
        tasks = {task.id: task for task in run.reader.evaluated_tasks()}
        return [
            row for arm, step in places for row in _rows_at(run, arm, step, tasks) if row.stored
        ]


def run_episode_detail(run: ShownRun, id: str) -> TrajectoryDetail:
    """Return an episode of one of a run's evaluations; see :func:`run_episode_rows`.

    Unless the run reveals it, how a held-out task is judged is left out.

    Raises:
        NotFound: if the episode is not stored.
        Damaged: if the run cannot be read.
    """
    arm, _, rest = id.partition(".")
    step = rest.partition(".")[0]
    number = int(step) if step.isdecimal() and len(step) < 13 else -1
    with raise_as_damaged():
        tasks = {task.id: task for task in run.reader.evaluated_tasks()}
        rows = _rows_at(run, arm, number, tasks)
    config = run.config
    return _stored_detail(
        run,
        id,
        rows,
        [row.id for row in rows],
        tasks,
        stored_as=(arm, number),
        benchmark=config.benchmark.name,
        split=config.evaluation.split,
        system_of=lambda episode, asked: system_text(
            config.policy, config.benchmark.name, run.manifest, episode, asked
        ),
        form=f"ARM.STEP.TASK.SAMPLE. It stores them with store.record = 'all', and has "
        f"store.record = {config.store.record!r}",
    )


def _rows_at(
    run: ShownRun, arm: str, step: int, tasks: Mapping[str, EvaluatedTask]
) -> list[EpisodeRow]:
    """Return the rows of the episodes of one of a run's evaluations."""
    reader = run.reader
    stored = reader.stored_eval_episodes(arm, step)
    return [
        _run_episode_row(f"{arm}.{step}", one, tasks.get(one.task_id), stored)
        for one in reader.evaluation(arm, step)
    ]


def _run_episode_row(
    place: str, one: Evaluated, task: EvaluatedTask | None, stored: Collection[tuple[str, int]]
) -> EpisodeRow:
    asked = task.instruction if task else ""
    return EpisodeRow(
        id=f"{place}.{one.task_id}.{one.sample}",
        position=one.sample,
        task=one.task_id,
        name=task.name if task else "",
        instruction=one_line(asked),
        sample=one.sample,
        tags=task.tags if task else (),
        success=one.success,
        score=one.score,
        end_reason=one.end_reason,
        steps=one.steps,
        failure=one.failure,
        failed_turn=one.failed_turn,
        stored=(one.task_id, one.sample) in stored,
    )


def _stored_detail(
    source: ShownEval | ShownRun,
    id: str,
    rows: Sequence[EpisodeRow],
    order: Sequence[str],
    tasks: Mapping[str, EvaluatedTask],
    *,
    stored_as: tuple[str, int],
    benchmark: str,
    split: str,
    system_of: Callable[[EvalTrajectory, str], str | None],
    form: str,
) -> TrajectoryDetail:
    """Return an episode of one evaluation.

    Args:
        source: the evaluation, or the run that evaluated.
        id: id of the episode.
        rows: episodes of the evaluation, at least those of the same task.
        order: ids of all episodes of the evaluation, in order.
        tasks: the evaluated tasks, by id.
        stored_as: arm and step of the evaluation in the database.
        benchmark: name of the benchmark.
        split: split of the evaluation.
        system_of: returns the system prompt of an episode with an instruction.
        form: form of the ids, for the error message.

    Raises:
        NotFound: if the episode is not stored.
        Damaged: if the database cannot be read.
    """
    row = next((row for row in rows if row.id == id and row.stored), None)
    if row is None:
        raise NotFound(f"{source.id} has no episode {id[:100]!r}. IDs look like {form}.")
    place = order.index(id)
    arm, step = stored_as
    with raise_as_damaged():
        reader = source.reader
        episode = reader.eval_trajectory(arm, step, row.task, row.sample)
        assert episode is not None
        decisions = reader.eval_decisions(arm, step, row.task, row.sample)
    task = tasks.get(row.task)
    asked = task.instruction if task else ""
    split = task.split if task else split
    withheld = why_verdict_withheld(split, benchmark, source.reveal)
    behind = Behind(benchmark, decisions, None, {}, hidden=bool(withheld))
    steps, last = step_views(episode, behind)
    siblings = tuple(one for one in rows if one.task == row.task)
    return TrajectoryDetail(
        id=id,
        of="evaluation",
        run=source.id,
        arm=arm,
        step=step if isinstance(source, ShownRun) else None,
        group="",
        position=row.sample,
        size=len(siblings),
        split=split,
        notice=notice_of(split),
        task=TaskBrief(id=row.task, name=row.name, instruction=row.instruction),
        instruction=asked,
        system=system_of(episode, asked),
        tools=tools_of(episode),
        steps=steps,
        last_observation=episode.last_observation,
        last_page=last,
        grade=_grade_view(episode, benchmark, split, withheld),
        siblings=siblings,
        stored=stored_parts(steps, None),
        before=order[place - 1] if place else None,
        after=order[place + 1] if place + 1 < len(order) else None,
    )


def run_evaluation_detail(run: ShownRun, arm: str, step: str) -> EvaluationDetail:
    """Return one of a run's evaluations, with the result for each task.

    Raises:
        NotFound: if there is no such evaluation.
        Damaged: if the run cannot be read.
    """
    run.require_arm(arm, (RANDOM, WARMUP))
    with raise_as_damaged():
        reader = run.reader
        steps = reader.evaluation_steps(arm)
        if not step.isdecimal() or len(step) > 12 or int(step) not in steps:
            text, stored = step[:20], ", ".join(map(str, steps)) or "none"
            raise NotFound(
                f"{run.id} has no evaluation of {arm} at step {text!r}. Stored steps: {stored}."
            )
        number = int(step)
        outcomes = _outcomes_by_task(reader.evaluation(arm, number))
        earlier = [one for one in steps if one < number]
        before = _outcomes_by_task(reader.evaluation(arm, earlier[-1])) if earlier else {}
        tasks = {task.id: task for task in reader.evaluated_tasks()}
        first = dict(sorted(reader.stored_eval_episodes(arm, number), reverse=True))
    rows = [
        TaskOutcome(
            id=id,
            name=tasks[id].name if id in tasks else "",
            instruction=one_line(tasks[id].instruction) if id in tasks else "",
            tags=tasks[id].tags if id in tasks else (),
            success=_success_share(episodes) >= SOLVED,
            share=_success_share(episodes),
            episodes=len(episodes),
            score=fmean(one.score for one in episodes),
            end_reason=Counter(one.end_reason for one in episodes).most_common(1)[0][0],
            **_most_common_failure(episodes),
            steps=fmean(one.steps for one in episodes),
            before=_success_share(before[id]) >= SOLVED if id in before else None,
            stored=f"{arm}.{number}.{id}.{first[id]}" if id in first else None,
        )
        for id, episodes in outcomes.items()
    ]
    rate = success_rate([row.share for row in rows])
    return EvaluationDetail(
        run=run.id,
        arm=arm,
        step=number,
        split=run.config.evaluation.split,
        steps=tuple(steps),
        success=rate.success,
        low=rate.low,
        high=rate.high,
        types=type_rows(rows),
        tasks=tuple(rows),
    )


def type_rows(rows: Iterable[TaskOutcome]) -> tuple[TypeRow, ...]:
    """Compute the success rate per task type."""
    of_tag: dict[str, list[float]] = {}
    for row in rows:
        for tag in row.tags:
            of_tag.setdefault(tag, []).append(row.share)
    return tuple(
        TypeRow(kind=kind_of_tag(tag), value=value_of_tag(tag), **asdict(success_rate(of_tag[tag])))
        for tag in sorted(of_tag)
    )


def _outcomes_by_task(outcomes: Iterable[Evaluated]) -> dict[str, list[Evaluated]]:
    episodes: dict[str, list[Evaluated]] = {}
    for one in outcomes:
        episodes.setdefault(one.task_id, []).append(one)
    return episodes


def _most_common_failure(outcomes: Sequence[Evaluated]) -> dict[str, Any]:
    """Return ``failure`` and ``failed_turn`` of :class:`TaskOutcome`."""
    failures = Counter((one.failure, one.failed_turn) for one in outcomes if one.failure)
    (kind, turn), _ = failures.most_common(1)[0] if failures else (("", None), 0)
    return {"failure": kind, "failed_turn": turn}


def _success_share(outcomes: Sequence[Evaluated]) -> float:
    return fmean(one.success for one in outcomes)


def eval_row(evaluation: ShownEval) -> EvalRow:
    """Return the row of an evaluation in the list of evaluations."""
    folder = evaluation.folder
    row = EvalRow(
        id=evaluation.id,
        name=evaluation.name,
        path=str(folder.path),
        updated_at=latest_change(folder.results, folder.summary, folder.config),
    )
    try:
        config, lines = evaluation.config, list(evaluation.episode_lines.values())
        rate = rate_of(by_task(lines).values())
        with raise_as_damaged():
            lost = len(read_lines(folder.lost))
        n_tasks, samples = int(config.get("n_tasks", 0)), int(config["samples"])
        finished = evaluation.summary is not None
    except Damaged as error:
        return row.model_copy(update={"problem": str(error)})
    return row.model_copy(
        update={
            "source": str(config.get("source", "")),
            "policy": config["policy"],
            "model": str(config.get("model", "")),
            "benchmark": config["benchmark"],
            "split": config["split"],
            "n_tasks": n_tasks,
            "samples": samples,
            "done": len(lines),
            "total": n_tasks * samples,
            "lost": lost,
            "finished": finished,
            "running": not finished and is_in_use(folder.path),
            "success": rate.success,
            "low": rate.low,
            "high": rate.high,
        }
    )


def _tasks_and_stored_keys(
    evaluation: ShownEval,
) -> tuple[dict[str, EvaluatedTask], set[tuple[str, int]]]:
    """Return the evaluated tasks, keyed by id, and the keys of the stored episodes."""
    with raise_as_damaged():
        reader = evaluation.reader
        tasks = {task.id: task for task in reader.evaluated_tasks()}
        return tasks, reader.stored_eval_episodes(evaluation.config["policy"], 0)


def _grade_view(episode: EvalTrajectory, benchmark: str, split: str, withheld: str) -> GradeView:
    """Return an episode's grade. If the report is withheld, show only the partial scores."""
    report = dict(episode.report)
    shares = partial_scores(report)
    end = str(episode.end_reason)
    return GradeView(
        success=episode.success,
        score=episode.score,
        end_reason=end,
        why=why_failed(episode.success, end, shares if withheld else report, None),
        failure=failure_view(benchmark, episode),
        report=(shares or None) if withheld else thaw(report),
        withheld=withheld if shares.keys() != report.keys() else "",
        notice="" if withheld else notice_of(split),
    )


def _system_prompt(config: Mapping[str, Any], episode: EvalTrajectory, asked: str) -> str | None:
    """Return a language model's system prompt, assuming it used the benchmark's prompt file."""
    chat = (config.get("settings") or {}).get("chat")
    if chat is None and episode.transcript is None:
        return None
    try:
        policy = PolicySettings.model_validate({"kind": "openai", "chat": chat or {}})
    except ValueError:
        return None  # settings of another version
    return system_text(policy, config["benchmark"], config, episode, asked)


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
