"""Evaluation of trained policies and untrained models."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

from coevo_gym import __version__
from coevo_gym.core.errors import ConfigError, TaskError
from coevo_gym.core.evolution import digest
from coevo_gym.core.panel import CITED_DIGITS, Citation, EvalProtocol, Panel
from coevo_gym.core.setting_sections import flatten
from coevo_gym.core.stats import Rate
from coevo_gym.core.task import Task, thaw
from coevo_gym.core.trajectory import EvalTrajectory
from coevo_gym.episodes.episode import Lost
from coevo_gym.episodes.evaluation import Evaluation, FinishedEpisodes, evaluate, to_evaluated_task
from coevo_gym.episodes.live import make_full_gc_rare
from coevo_gym.runs.assembly import configure_torch
from coevo_gym.runs.evals.job import EvalJob
from coevo_gym.runs.evals.protocol import behaviour_settings
from coevo_gym.runs.manifest import (
    benchmark_hashes,
    freeze_arithmetic_for,
    git_commit,
    package_versions,
    prompt_id,
    task_set_hash,
)
from coevo_gym.runs.planning.cost import refuse_if_paid
from coevo_gym.runs.planning.plan import max_steps_per_episode
from coevo_gym.runs.progress_reports import (
    SILENT,
    ProgressFile,
    ProgressSink,
    max_env_steps_of_episodes,
)
from coevo_gym.runs.stop import StopRequest
from coevo_gym.store.database import RunStore
from coevo_gym.store.eval_folder import EvalFolder, EvalLine, Key
from coevo_gym.store.folder import append_line, write_json
from coevo_gym.store.reader import RunReader
from coevo_gym.store.secrets import redact_secrets


class KeptInFolder(FinishedEpisodes):
    """The finished episodes of an evaluation, each saved to a folder as soon as it ends."""

    def __init__(self, folder: EvalFolder, policy: str, database: RunStore) -> None:
        super().__init__()
        self.lines = folder.read_results()
        self._folder, self._policy, self._database = folder, policy, database

    def add(self, line: EvalLine, trajectory: EvalTrajectory) -> None:
        """Store a finished episode."""
        # The line is written last: an episode without a line is run again.
        self._database.add_eval_episode(self._policy, 0, line.database_row, trajectory)
        append_line(self._folder.results, line.model_dump(mode="json"))
        self.lines[line.key] = line

    def find_trajectory(self, key: Key) -> EvalTrajectory | None:
        """Return the trajectory of a finished episode, or None if it was not stored."""
        return RunReader(self._database.path).eval_trajectory(self._policy, 0, *key)

    def add_lost(self, task: Task, sample: int, lost: Lost) -> None:
        """Record a lost episode, with the reason and the error."""
        place = {"id": task.id, "sample": sample, "name": task.name}
        why = {"end_reason": str(lost.reason), "error": str(lost.error), "steps": lost.env_steps}
        append_line(self._folder.lost, {**place, **why})


def evaluate_job(
    job: EvalJob,
    progress: ProgressSink = SILENT,
    *,
    folder: EvalFolder | None = None,
    overwrite: bool = False,
    agreed: bool = False,
    begun: Callable[[int, int], None] = lambda done, total: None,
    stop: StopRequest | None = None,
) -> Evaluation:
    """Run an evaluation or, if a folder contains an interrupted one, resume it.

    Finished episodes are saved even after a crash. Call the function again to resume, and to retry
    episodes that were lost to a fault.

    Args:
        job: the evaluation.
        progress: progress display.
        folder: the folder, created if it is missing; None to save nothing.
        overwrite: delete an earlier evaluation in the folder first.
        agreed: True if the user has accepted the cost of the policy's endpoint.
        begun: called with the number of finished episodes and the total.
        stop: request to stop, after which the open episodes of an endpoint are finished; None if
            there are no such requests.

    Raises:
        KeyboardInterrupt: if a stop was requested.
        BudgetSpent: if a cap on the endpoint leaves no room for more episodes.
        ConfigError: if the folder contains a different evaluation, the evaluation may cost money
            and ``agreed`` is False, there are no tasks, or the policy cannot play this benchmark.
        StoreError: if the folder is in use, damaged, or cannot be written.
        EnvBackendError: if no episode finished, and the first was lost to an engine fault.
        ModelError: if no episode finished, and the first was lost to a model fault; or if an
            endpoint is down.
    """
    if not agreed:
        done = 0 if folder is None or overwrite else len(folder.read_results())
        refuse_if_paid(job.estimate_costs(done))
    results = FinishedEpisodes()
    with ExitStack() as stack:
        if folder is not None:
            results = stack.enter_context(
                open_eval_folder(folder, job, progress, overwrite=overwrite)
            )
            file = ProgressFile(progress, folder.path, "eval", folder.path.name)
            progress = stack.enter_context(file)
        begun(len(results.lines), len(job.tasks) * job.samples)
        try:
            evaluation = _play_missing_episodes(job, results, progress, stop)
        finally:
            job.close()
        if folder is not None:
            write_json(folder.summary, to_json(job, evaluation))
            if not evaluation.n_lost:
                folder.answers.unlink(missing_ok=True)
    return evaluation


def _play_missing_episodes(
    job: EvalJob, results: FinishedEpisodes, progress: ProgressSink, stop: StopRequest | None = None
) -> Evaluation:
    """Play the episodes that have not been saved yet."""
    total, done = len(job.tasks) * job.samples, len(results.lines)
    if not job.tasks:
        raise ConfigError(f"{job.source} has no {job.split} tasks to evaluate {job.policy} on.")
    progress.begin_phase(job.policy, total=total, done=done)
    if done == total:
        return results.make_evaluation(job.tasks, job.samples)
    progress.set_cost(job.cost(results.lines.values()))
    progress.expect_steps(
        *max_env_steps_of_episodes(total - done, job.assembly.max_steps), whole=True
    )
    if remark := answer_limit_warning(job):
        progress.say(remark)

    def on_done(over: int) -> None:
        progress.set_cost(job.cost(results.lines.values()))
        progress.update(over)

    scope = configure_torch(job.assembly.config) if job.model else nullcontext()
    with scope, make_full_gc_rare(), closing(job.assembly.make_env_pool(job.split)) as envs:
        try:
            evaluation = evaluate(
                job.players,
                job.tasks,
                envs,
                seed=job.assembly.config.seed,
                samples=job.samples,
                results=results,
                on_done=on_done,
                admission=job.make_admission(results.lines.values(), stop),
            )
        except TaskError as error:
            if not job.elsewhere:
                raise
            raise ConfigError(
                f"{job.policy} of {job.source} cannot be evaluated on "
                f"{job.assembly.config.benchmark.name}: {error}"
            ) from error
        finally:
            progress.set_cost(job.cost(results.lines.values()))
    if evaluation.n_lost:
        progress.say(
            f"{evaluation.n_lost} episodes failed on infrastructure errors and are excluded from "
            "all statistics."
        )
    if remark := answers_warning(job, evaluation):
        progress.say(remark)
    return evaluation


_THINKING_TOKENS = 2_048
"""Length of an answer, in tokens, below which many models do not finish a thought."""
_NOTABLE = 0.1
"""Minimum share of empty or truncated answers for a warning."""


def answer_limit_warning(job: EvalJob) -> str:
    """Return a warning if a model that thinks has few tokens for its answers, else ""."""
    chat = job.assembly.config.policy.chat
    if not (
        _has_language_model(job) and chat.thinking and chat.max_answer_tokens < _THINKING_TOKENS
    ):
        return ""
    return (
        f"policy.chat.thinking is on, but an answer, including its thoughts, has at most "
        f"{chat.max_answer_tokens} tokens. Many models need more to finish a thought: raise "
        f"policy.chat.max_answer_tokens, for example to {_THINKING_TOKENS}."
    )


def answers_warning(job: EvalJob, evaluation: Evaluation) -> str:
    """Return a warning if many of a model's answers had no action or were cut off, else ""."""
    total, empty, cut, _ = evaluation.answer_counts
    if not _has_language_model(job) or max(empty, cut) < max(1, _NOTABLE * total):
        return ""
    most = job.assembly.config.policy.chat.max_answer_tokens
    problem = f"{empty} of {total} answers were empty ({cut} cut at {most} tokens)"
    if cut:
        return f"{problem}: raise policy.chat.max_answer_tokens."
    return f"{problem}: look at the model's answers, which may be refusals or native tool calls."


def _has_language_model(job: EvalJob) -> bool:
    """Return True if a language model answers."""
    return bool(job.model) and job.assembly.config.policy.kind != "tiny"


def to_json(job: EvalJob, evaluation: Evaluation) -> dict[str, Any]:
    """Return the results of an evaluation as JSON. The values of its table row come first."""
    return {
        **asdict(job.row(evaluation)),
        "split": job.split,
        "samples": job.samples,
        "episodes": len(evaluation.lines),
        "lost": evaluation.n_lost,
        "scenario_success": evaluation.scenario_success_rate,
        "steps": evaluation.mean_steps,
        "end_reasons": evaluation.end_reasons,
        "answers": {"total": evaluation.answer_counts.total, **evaluation.answer_counts.shares},
        "types": {
            kind: {value: asdict(rate) for value, rate in rates.items()}
            for kind, rates in evaluation.rates_by_type.items()
        },
        "panel": {
            "name": job.played_panel.name,
            "hash": job.played_panel.hash,
            "declared": job.panel is not None,
        },
        "protocol": {"hash": job.protocol.hash, "parts": thaw(job.protocol.parts)},
        "cite": str(citation(job, evaluation)),
        "pass_at": {str(k): value for k, value in evaluation.pass_at.items()},
        "evaluation": {
            "prompt_tokens": sum(line.prompt_tokens for line in evaluation.lines),
            "completion_tokens": sum(line.completion_tokens for line in evaluation.lines),
            "usd": math.fsum(line.usd for line in evaluation.lines),
        },
    }


def citation(job: EvalJob, evaluation: Evaluation) -> Citation:
    """Return the line to cite for a finished evaluation."""
    weights = f", weights {job.weights[:CITED_DIGITS]}" if job.weights else ""
    return make_citation(
        job.played_panel,
        job.protocol,
        evaluation.rate,
        samples=job.samples,
        policy=f"{job.source} {job.policy}{weights}",
    )


def make_citation(
    panel: Panel, protocol: EvalProtocol, rate: Rate, *, samples: int, policy: str
) -> Citation:
    """Return the line to cite for a result on a panel."""
    return Citation(
        panel=panel.name,
        panel_hash=panel.hash[:CITED_DIGITS],
        success=round(100 * rate.success, 1),
        low=round(100 * rate.low, 1),
        high=round(100 * rate.high, 1),
        tasks=rate.tasks,
        samples=samples,
        protocol=protocol.hash[:CITED_DIGITS],
        policy=policy,
        version=__version__,
    )


@contextmanager
def open_eval_folder(
    folder: EvalFolder, job: EvalJob, progress: ProgressSink = SILENT, *, overwrite: bool = False
) -> Iterator[KeptInFolder]:
    """Lock an evaluation's folder for writing during a ``with`` block.

    An existing evaluation in the folder must have the same settings unless ``overwrite`` is True.
    See :func:`evaluate_job` for the arguments.

    Raises:
        ConfigError: if the folder contains a different evaluation.
        StoreError: if the folder is in use, damaged, or cannot be written.
    """
    wanted = identity(job)
    if overwrite or not folder.config.is_file():
        folder.deletable_contents()  # refuses foreign folders before it creates a lock file
    with folder.lock():
        if overwrite or not folder.config.is_file():
            folder.delete_contents()
            write_json(folder.config, wanted)
        else:
            _check_same_settings(folder, wanted, progress)
        with closing(RunStore(folder.database)) as database:
            database.add_evaluated_tasks(map(to_evaluated_task, job.tasks))
            database.check_integrity()
            folder.write_panel(job.played_panel)
            job.set_folder(folder)
            yield KeptInFolder(folder, job.policy, database)


def _check_same_settings(
    folder: EvalFolder, wanted: dict[str, object], progress: ProgressSink
) -> None:
    there = folder.read_config()
    changes = list_differences(there, wanted)
    if changes:
        raise ConfigError(
            f"{folder.path} contains a different evaluation. {join_differences(changes)}. Choose "
            "another --name, or pass --overwrite to delete it."
        )
    for warning in list_origin_warnings(there, wanted):
        progress.say(f"{folder.path} was {warning}")


def list_origin_warnings(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return warnings if an evaluation was started with other code, or on another processor.

    Args:
        there: the settings with which it was started.
        now: the settings with which it would be continued.

    Returns:
        Sentences without a subject, such as "started with other code …".
    """
    warnings = []
    if there.get("software") != now["software"]:
        warnings.append(
            f"started with other code ({there.get('git_commit') or 'a release'}) than you are "
            f"running ({now['git_commit'] or 'a release'}). Use --overwrite to start over."
        )
    first, here = (config.get("processor", "") for config in (there, now))
    if now.get("arithmetic") == "native" and first and first != here:
        warnings.append(
            f"started on {first}, but this machine has {here}, which rounds differently."
        )
    return warnings


SCHEMA = 1
_ASIDE = ("source", "git_commit", "processor")
_SECTIONS_ASIDE = ("protocol.", "software.")
"""Values that are stored but not compared. A run may be renamed, its code and processor may change
if the results stay the same, and the protocol, whose settings are all stored elsewhere, too."""
_MAX_LISTED = 5


def identity(job: EvalJob) -> dict[str, Any]:
    """Return the settings that an evaluation's results depend on."""
    assembly, panel = job.assembly, job.panel
    config = assembly.config
    settings = {
        "schema": SCHEMA,
        "source": job.source,
        "policy": job.policy,
        "model": job.model,
        "weights": job.weights,
        "benchmark": config.benchmark.name,
        "subset": config.benchmark.subset,
        "hold_out": config.benchmark.hold_out,
        "max_steps": max_steps_per_episode(config),
        "env": thaw(assembly.env_arguments),
        "split": job.split,
        "n_tasks": len(job.tasks),
        "tasks": task_set_hash(job.tasks),
        **({} if panel is None else {"panel": {"name": panel.name, "hash": panel.hash}}),
        "samples": job.samples,
        "temperature": job.temperature,
        **({} if job.trials is None else {"trials": job.trials._asdict()}),
        "seed": config.seed,
        "protocol": thaw(job.protocol.parts),
        "prompt": prompt_id(config) if job.model else {},
        "settings": behaviour_settings(config) if job.model else {},
        **_freeze_arithmetic(job),
        "versions": package_versions(config),
        "git_commit": git_commit(),
        "software": benchmark_hashes(config, job.tasks),
    }
    safe: dict[str, Any] = redact_secrets(settings)
    return safe


def _freeze_arithmetic(job: EvalJob) -> dict[str, str]:
    """Fix how this process rounds numbers, and return that with the processor's name."""
    config = job.assembly.config
    if not job.model or config.policy.kind == "openai":
        return {}
    with configure_torch(config):
        kind, processor, _ = freeze_arithmetic_for(config)
    return {"arithmetic": kind, "processor": processor}


def default_name(job: EvalJob, of: Mapping[str, Any]) -> str:
    """Return a default evaluation name, ending in a hash of the evaluation's settings."""
    benchmark = job.assembly.config.benchmark.name
    parts = [job.source, job.policy, *([benchmark] if job.elsewhere else []), job.split]
    parts += [f"x{job.samples}"] if job.samples > 1 else []
    parts += [] if job.trials is None else [f"{job.trials.n}-trials"]
    words = (re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.") for part in parts)
    settings = {key: value for key, value in of.items() if key not in ("processor", "software")}
    return "-".join([*(word for word in words if word), digest(settings)[:8]])


def list_differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return one line per difference between two evaluations, with the old and the new value."""
    before, after = dict(flatten(there)), dict(flatten(now))
    keys = [
        key
        for key in dict.fromkeys([*after, *before])
        if key not in _ASIDE and not key.startswith(_SECTIONS_ASIDE)
    ]
    return [
        f"{key}: {_shorten(before.get(key))} there, {_shorten(after.get(key))} now"
        for key in keys
        if before.get(key) != after.get(key)
    ]


def join_differences(changes: list[str]) -> str:
    """Join differences into one string, listing only the first few."""
    more = f"; and {len(changes) - _MAX_LISTED} more" if len(changes) > _MAX_LISTED else ""
    return "; ".join(changes[:_MAX_LISTED]) + more


def _shorten(value: Any) -> str:
    text = "none" if value is None or value == "" else str(value)
    if re.fullmatch(r"[0-9a-f]{32,}", text):  # a hash
        return text[:12]
    return text if len(text) <= 60 else f"{text[:59]}…"
