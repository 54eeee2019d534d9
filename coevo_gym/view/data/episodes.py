"""The stored episodes of runs and evaluations, as JSON, filtered and in the order of storage.

Episodes of training tasks are read by default; those of other splits only if their split is named.
The grader's report and the benchmark's own JSON about the steps are left out for held-out tasks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evaluation_mark import notice_of
from coevo_gym.core.registry import did_you_mean
from coevo_gym.core.task import Split
from coevo_gym.runs.manifest import model_id
from coevo_gym.store.folder import raise_decode_errors
from coevo_gym.store.reader import restore_texts, text_hashes
from coevo_gym.store.rows import split_names
from coevo_gym.store.sampled import SAMPLED, Sampled, sampled_from_json
from coevo_gym.view.collection import RunCollection, ShownEval, ShownRun
from coevo_gym.view.reader import ViewReader
from coevo_gym.view.safe import partial_scores

TRAINING, EVALUATION = "training", "evaluation"
_AT_ONCE = 256
_MAX_CACHED = 50_000
_MAX_LISTED = 12


class EpisodeFilter(NamedTuple):
    """The episodes to read. By default, all stored episodes of training tasks.

    Attributes:
        success: True for solved episodes only, False for unsolved ones only.
        tasks: names or ids of tasks; () for all.
        arms: names of arms, or of evaluated policies; () for all.
        splits: splits of the tasks.
    """

    success: bool | None = None
    tasks: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    splits: tuple[str, ...] = (Split.TRAIN,)

    def selects(self, about: Mapping[str, Any]) -> bool:
        """Return True if the filter selects the episode with these facts."""
        return (
            about["split"] in self.splits
            and (self.success is None or about["success"] == self.success)
            and (not self.arms or about["arm"] in self.arms)
            and (not self.tasks or not {about["task"], about["task_name"]}.isdisjoint(self.tasks))
        )


ALL_TRAINING = EpisodeFilter()


@dataclass(frozen=True)
class StoredEpisode:
    """A stored episode as JSON.

    Attributes:
        about: facts about the episode, see :data:`~coevo_gym.view.data.columns.ABOUT`.
        body: the episode's record, with its ``steps`` and its ``transcript``, if it has one.
        sampled: the policy's decision at each step; None if they are not stored.
        advantages: the advantage, or one per step; None if it is not stored.
        calls_tools: True if the policy's endpoint got tool calls as JSON, not as text.
    """

    about: dict[str, Any]
    body: dict[str, Any]
    sampled: Sequence[Sampled | None] | None
    advantages: float | Sequence[float] | None
    calls_tools: bool


@dataclass
class StoredCounts:
    """The stored episodes that a filter was compared with, for the message if none match.

    Attributes:
        splits: number of stored episodes by split.
        arms: number of stored episodes by arm.
        tasks: id of each task, by name.
    """

    splits: Counter[str] = field(default_factory=Counter)
    arms: Counter[str] = field(default_factory=Counter)
    tasks: dict[str, str] = field(default_factory=dict)

    def add(self, about: Mapping[str, Any]) -> None:
        """Count a stored episode."""
        self.splits[about["split"]] += 1
        self.arms[about["arm"]] += 1
        self.tasks[about["task_name"] or about["task"]] = about["task"]


def read_episodes(
    collection: RunCollection, wanted: EpisodeFilter, counts: StoredCounts | None = None
) -> Iterator[StoredEpisode]:
    """Yield the stored episodes of all runs and evaluations of a collection that match a filter.

    Args:
        collection: the runs and evaluations.
        wanted: the filter.
        counts: counts all stored episodes, whether they match or not.

    Raises:
        Damaged: if a run or an evaluation cannot be read.
        StoreError: if an episode is damaged.
    """
    counts = StoredCounts() if counts is None else counts
    for run in collection.runs():
        with run.reuse_reader():
            yield from _training_episodes(run, wanted, counts)
            yield from _run_evaluations(run, wanted, counts)
    for evaluation in collection.evals():
        yield from _eval_episodes(evaluation, wanted, counts)


def check_filter(name: str, wanted: EpisodeFilter, counts: StoredCounts, n: int) -> None:
    """Check that a filter names arms and tasks that exist, and selects any episode.

    Args:
        name: the run, evaluation or table.
        wanted: the filter.
        counts: the stored episodes.
        n: number of episodes that the filter selects.

    Raises:
        ConfigError: if it does not.
    """
    if not counts.splits:
        raise ConfigError(
            f"{name} stores no episodes. Runs store those selected by store.record: train with "
            "--set store.record=all, or store.record=signals for groups with a signal."
        )
    tasks = [*counts.tasks, *counts.tasks.values()]  # names before ids
    for what, names, known in (("arm", wanted.arms, [*counts.arms]), ("task", wanted.tasks, tasks)):
        for one in names:
            if one not in known:
                raise ConfigError(
                    f"{name} has no episodes of the {what} {one!r}. {did_you_mean(one, known)}"
                    f"Stored: {', '.join(known[:_MAX_LISTED])}"
                    f"{', …' if len(known) > _MAX_LISTED else '.'}"
                )
    totals = ", ".join(f"{n:,} {split}" for split, n in sorted(counts.splits.items()))
    if not set(wanted.splits) & counts.splits.keys():
        options = " ".join(f"--split {split}" for split in sorted(counts.splits))
        raise ConfigError(
            f"{name} has no episodes of {' or '.join(wanted.splits)} tasks, but {totals}. Pass "
            f"{options} to export those. Episodes of held-out tasks are marked "
            "in each row, and cannot be used for training."
        )
    if not n:
        raise ConfigError(f"No episode of {name} matches all filters. There are {totals} episodes.")


class _Texts:
    """Long texts of a database, read in batches and cached."""

    def __init__(self, reader: ViewReader) -> None:
        self._reader = reader
        self._known: dict[str, str] = {}

    def restore(self, bodies: Sequence[dict[str, Any]]) -> None:
        """Replace the references of trajectories to long texts by the texts, in place."""
        self.fetch(hash for body in bodies for hash in text_hashes(body))
        for body in bodies:
            restore_texts(body, self._known)

    def fetch(self, hashes: Iterator[str]) -> None:
        """Read the texts that are not cached."""
        if len(self._known) > _MAX_CACHED:
            self._known.clear()
        new = {hash for hash in hashes if hash not in self._known}
        self._known |= self._reader.texts(sorted(new))

    def resolve(self, value: Any) -> str:
        """Return the text that a JSON value contains or refers to."""
        return self._known[value["text"]] if isinstance(value, Mapping) else str(value)


_TRAINING = (
    "SELECT t.rowid, t.arm, t.group_id, t.position, t.step, t.task_id, k.name, k.instruction, "
    "k.split, t.policy_version, t.success, t.score, t.end_reason, t.failure, t.failed_turn, "
    "t.steps, t.kinds, a.mean, a.body, t.body, s.body FROM trajectories AS t "
    "LEFT JOIN tasks AS k ON k.id = t.task_id "
    "LEFT JOIN advantages AS a USING (arm, group_id, position) "
    "LEFT JOIN sampled AS s USING (arm, group_id, position) "
    "WHERE t.rowid > ? ORDER BY t.rowid LIMIT ?"
)
_EVALUATED = (
    "SELECT e.rowid, e.arm, e.step, e.task_id, e.sample, k.name, k.instruction, k.split, "
    "e.success, e.score, e.end_reason, e.failure, e.failed_turn, e.steps, e.body "
    "FROM evaluations AS e "
    "LEFT JOIN evaluated_tasks AS k ON k.id = e.task_id "
    "WHERE e.rowid > ? AND e.body IS NOT NULL ORDER BY e.rowid LIMIT ?"
)


def _in_batches(reader: ViewReader, query: str) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a query in batches; its first column is the place to go on from."""
    last = -1
    while rows := reader.query_rows(query, last, _AT_ONCE):
        last = rows[-1][0]
        yield rows


def _training_episodes(
    run: ShownRun, wanted: EpisodeFilter, counts: StoredCounts
) -> Iterator[StoredEpisode]:
    config = run.config
    of = {"run": run.id, "benchmark": config.benchmark.name, "model": model_id(config)}
    reader, texts = run.reader, _Texts(run.reader)
    for rows in _in_batches(reader, _TRAINING):
        chosen = []
        for row in rows:
            about = _about_training(row, of)
            counts.add(about)
            if wanted.selects(about):
                chosen.append((about, row))
        with raise_decode_errors(reader.path):
            bodies = [reader.unpack(row[-2]) for _, row in chosen]
            texts.restore(bodies)
            sampled = [row[-1] and reader.unpack(row[-1]) for _, row in chosen]
            texts.fetch(_sampled_hashes(sampled))
            for (about, row), body, steps in zip(chosen, bodies, sampled, strict=True):
                decisions = steps and sampled_from_json(steps, texts.resolve)
                advantages = None if row[-3] is None else json.loads(row[-3])
                about["cues"] = list(body.get("cue_ids", ()))
                kind = config.policy.kind
                yield StoredEpisode(about, body, decisions, advantages, kind == "openai")


def _about_training(row: tuple[Any, ...], of: Mapping[str, str]) -> dict[str, Any]:
    (_, arm, group, position, step, task, name, asked, split, version, success, score, end, failure,
     turn, steps, kinds, advantage, *_) = row  # fmt: skip
    return _about(
        of, TRAINING, f"{arm}.{group}.{position}", split or str(Split.TRAIN),
        arm=arm, step=step, group=group, position=position, task=task, task_name=name or "",
        instruction=asked or "", success=bool(success), score=score, end_reason=end,
        failure=failure, failed_turn=turn, env_steps=steps, policy_version=version,
        signals=list(split_names(kinds)), advantage=advantage,
    )  # fmt: skip


def _about(of: Mapping[str, str], kind: str, id: str, split: str, **facts: Any) -> dict[str, Any]:
    """Return the facts about an episode, with the mark of held-out tasks."""
    notice = notice_of(split)
    return {
        "id": id, **of, "of": kind, "split": split, "held_out": bool(notice), "notice": notice,
        **facts, "cues": [],
    }  # fmt: skip


def _run_evaluations(
    run: ShownRun, wanted: EpisodeFilter, counts: StoredCounts
) -> Iterator[StoredEpisode]:
    config = run.config
    of = {"run": run.id, "benchmark": config.benchmark.name, "model": model_id(config)}

    def identify(arm: str, step: int, task: str, sample: int) -> str:
        return f"{arm}.{step}.{task}.{sample}"

    yield from _evaluated(
        run.reader, of, config.evaluation.split, identify, config.policy.kind == "openai",
        wanted, counts,
    )  # fmt: skip


def _eval_episodes(
    evaluation: ShownEval, wanted: EpisodeFilter, counts: StoredCounts
) -> Iterator[StoredEpisode]:
    config, lines = evaluation.config, evaluation.episode_lines
    of = {"run": evaluation.id, "benchmark": config["benchmark"], "model": config.get("model", "")}

    def identify(arm: str, step: int, task: str, sample: int) -> str:
        return f"{task}.{sample}" if (task, sample) in lines else ""

    calls_tools = "endpoint" in (config.get("settings") or {})
    yield from _evaluated(
        evaluation.reader, of, config["split"], identify, calls_tools, wanted, counts
    )


def _evaluated(
    reader: ViewReader,
    of: Mapping[str, str],
    split: str,
    identify: Callable[[str, int, str, int], str],
    calls_tools: bool,
    wanted: EpisodeFilter,
    counts: StoredCounts,
) -> Iterator[StoredEpisode]:
    texts = _Texts(reader)
    for rows in _in_batches(reader, _EVALUATED):
        chosen = []
        for row in rows:
            (_, arm, step, task, sample, name, asked, of_task, success, score, end, failure, turn,
             steps, _) = row  # fmt: skip
            if not (id := identify(arm, step, task, sample)):
                continue  # an episode without a line of results is run again
            about = _about(
                of, EVALUATION, id, of_task or split,
                arm=arm, step=step, group="", position=sample, task=task, task_name=name or "",
                instruction=asked or "", success=bool(success), score=score, end_reason=end,
                failure=failure, failed_turn=turn, env_steps=steps, policy_version=-1, signals=[],
                advantage=None,
            )  # fmt: skip
            counts.add(about)
            if wanted.selects(about):
                chosen.append((about, row[-1]))
        with raise_decode_errors(reader.path):
            bodies = [reader.unpack(body) for _, body in chosen]
            texts.restore(bodies)
            texts.fetch(_sampled_hashes([body.get(SAMPLED) for body in bodies]))
            for (about, _), body in zip(chosen, bodies, strict=True):
                steps = body.pop(SAMPLED, None)
                decisions = steps and sampled_from_json(steps, texts.resolve)
                if about["held_out"]:
                    _withhold(body)
                yield StoredEpisode(about, body, decisions, None, calls_tools)


def _withhold(body: dict[str, Any]) -> None:
    """Remove what tells how a held-out task is judged, in place."""
    body["report"] = partial_scores(body.get("report") or {})
    for step in body["steps"]:
        step["extras"] = {}


def _sampled_hashes(episodes: Sequence[Any]) -> Iterator[str]:
    for steps in episodes:
        for step in steps or ():
            for key in ("choices", "told"):
                if step and isinstance(value := step.get(key), Mapping):
                    yield value["text"]
