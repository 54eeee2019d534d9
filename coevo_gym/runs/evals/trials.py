"""Trials of a policy that reflects on its failures (Reflexion). They are saved in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from coevo_gym.agents.advice.advisor import Budgeted, ModelAdvisor
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.inquiry import Inquiry
from coevo_gym.core.seams import Sampling, Ticket
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.spend import Meter, Usage
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Cue
from coevo_gym.curricula.explore.summarise import rollout_inputs
from coevo_gym.curricula.growth.evidence import EVIDENCE_CHARS
from coevo_gym.curricula.guiding import Guiding
from coevo_gym.episodes.live import make_full_gc_rare
from coevo_gym.episodes.trials import FailedTrial, KeptTrials, Told, TrialLesson, Trials, run_trials
from coevo_gym.runs.assembly import Assembly, configure_torch
from coevo_gym.runs.evals.evaluation import KeptInFolder, open_eval_folder
from coevo_gym.runs.evals.job import EvalJob, TrialRules
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.runs.planning.cost import refuse_if_paid
from coevo_gym.runs.progress_reports import ProgressFile, ProgressSink, max_env_steps_of_episodes
from coevo_gym.runs.stop import StopRequest
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.eval_folder import EvalFolder, Key
from coevo_gym.store.folder import RunFolder, append_line, read_lines, write_json

PROMPT = "reflexion/reflect"
_USED = ("prompt_tokens", "completion_tokens", "usd")
_MAX_CHARS = 2_000
"""Maximum number of characters in a reflection."""


class Reflection(BaseModel):
    """A model's reflection on its failed attempt.

    Attributes:
        mistake: a description of the mistake.
        plan: the model's plan for the next attempt.
    """

    mistake: str
    plan: str = ""


def _reflection_text(reflection: Reflection) -> str:
    return clean_text(f"{reflection.mistake.strip()} {reflection.plan.strip()}".strip(), _MAX_CHARS)


def inquiry_about(failure: FailedTrial, sampling: Sampling) -> Inquiry[Reflection]:
    """Return the question to ask the policy about one of its failed trials."""
    return Inquiry(
        prompt=PROMPT,
        schema=Reflection,
        inputs=_prompt_inputs(failure, EVIDENCE_CHARS),
        sampling=sampling,
        shorten=partial(_prompt_inputs, failure, EVIDENCE_CHARS // 2),
    )


def _prompt_inputs(failure: FailedTrial, cap: int) -> Mapping[str, Any]:
    return {
        "instruction": failure.task.instruction,
        **rollout_inputs(failure.trajectory, cap),
        "earlier": list(failure.earlier),
    }


@dataclass(frozen=True)
class TrialFolder(EvalFolder):
    """A folder in which trials are saved. Unlike evaluations, trials cannot be compared."""

    @property
    def config(self) -> Path:
        """The path to the file with the settings that the results depend on."""
        return self.path / "trials.json"

    @property
    def results(self) -> Path:
        """The path to the results file. Each trial adds a line when its episode ends."""
        return self.path / "trials.jsonl"

    @property
    def reflections(self) -> Path:
        """The path to the reflections file, with one line per failed trial with a reflection."""
        return self.path / "reflections.jsonl"


class TrialsInFolder(KeptTrials):
    """Trial results that are written to disk immediately."""

    def __init__(self, folder: TrialFolder, episodes: KeptInFolder) -> None:
        super().__init__(episodes)
        self._path = folder.reflections
        for line in read_lines(self._path):
            try:
                key = str(line["id"]), int(line["trial"])
                usage = Usage(**{name: line[name] for name in _USED if name in line})
                self.lessons[key] = TrialLesson(str(line["text"]), usage)
            except (KeyError, TypeError, ValueError) as error:
                raise StoreError(
                    f"{self._path} contains a line that is not a reflection: {str(line)[:200]}. "
                    "Delete that line to run its trial again."
                ) from error

    def add_lesson(self, key: Key, lesson: TrialLesson) -> None:
        """Store the reflection on a failed trial."""
        line = {"id": key[0], "trial": key[1], "text": lesson.text, **_usage_to_json(lesson.usage)}
        append_line(self._path, line)
        super().add_lesson(key, lesson)


def run_trials_in(
    folder: TrialFolder,
    job: EvalJob,
    progress: ProgressSink,
    *,
    overwrite: bool = False,
    agreed: bool = False,
    cues: Told | None = None,
    stop: StopRequest | None = None,
) -> Trials:
    """Run trials and save them in a folder, or resume trials from their folder.

    ``cues`` returns the hints about a task that the policy's prompt contains in each trial. With
    it, there are no reflections, and each task is played in full as often as in an evaluation
    (:attr:`EvalJob.samples`). For the other arguments, see
    :func:`~coevo_gym.runs.evals.evaluation.evaluate_job`.

    Raises:
        ConfigError: if the folder has other trials, the policy cannot reflect, or the trials may
            cost money and ``agreed`` is False.
        StoreError: if the folder is in use, damaged, or cannot be written.
        EnvBackendError: if no episode finished, and the first was lost to an engine fault.
        ModelError: if no episode finished, and the first was lost to a model fault; or if an
            endpoint is down.
    """
    rules = job.trials or TrialRules()
    n_trials = rules.n if cues is None else job.samples
    if job.asked is None:
        raise ConfigError(
            f"{job.policy} cannot reflect on its failures: trials need a language model. "
            "Pass one, for example --policy transformers:smollm2."
        )
    if not agreed:
        refuse_if_paid(job.estimate_costs())
    with (
        open_eval_folder(folder, job, progress, overwrite=overwrite) as results,
        ProgressFile(progress, folder.path, "eval", folder.path.name) as reporter,
        closing(job.assembly.make_env_pool(job.split)) as envs,
        configure_torch(job.assembly.config) if job.model else nullcontext(),
        make_full_gc_rare(),
    ):
        n = len(job.tasks) * n_trials
        reporter.begin_phase(
            f"{job.policy}, up to {n_trials} trials", total=n, done=len(results.lines)
        )
        reporter.expect_steps(
            *max_env_steps_of_episodes(n - len(results.lines), job.assembly.max_steps)
        )
        so_far = TrialsInFolder(folder, results)

        def on_done(over: int) -> None:
            reporter.set_cost(job.cost(results.lines.values()))
            reporter.update(over)

        def reflect(failures: Sequence[FailedTrial]) -> Sequence[TrialLesson | None]:
            if cues is not None:
                return [TrialLesson()] * len(failures)
            return _reflect(job, so_far, failures)

        try:
            trials = run_trials(
                job.players,
                reflect,
                job.tasks,
                envs,
                n=n_trials,
                keep=rules.keep,
                cut=rules.cut and cues is None,
                cues=cues or (lambda task: ()),
                until_solved=cues is None,
                seed=job.assembly.config.seed,
                results=so_far,
                on_done=on_done,
                admission=job.make_admission(results.lines.values(), stop),
            )
        finally:
            reporter.set_cost(job.cost(results.lines.values()))
            job.close()
        write_json(folder.summary, to_json(job, trials))
        if not trials.n_lost:
            folder.answers.unlink(missing_ok=True)
    return trials


def _reflect(
    job: EvalJob, so_far: KeptTrials, failures: Sequence[FailedTrial]
) -> list[TrialLesson | None]:
    """Prompt the policy to name its mistake in each failed trial, and to plan the next trial.

    The model sees its actions, the env's observations, and that it failed, but neither score nor
    reference. The text is "" if the answer is unusable; a lesson is None if a cap on the endpoint
    leaves no room for its request.
    """
    assert job.asked is not None
    settings, model = job.assembly.config.policy, job.asked()
    rules = job.trials or TrialRules()
    sampling = Sampling(rules.reflection_temperature, settings.chat.max_answer_tokens)
    inquiries = [inquiry_about(failure, sampling) for failure in failures]
    if job.endpoint is None:
        advisor = ModelAdvisor(model, at_once=None)
    else:
        advisor = ModelAdvisor(Budgeted(model, Meter()))
    # Episodes are seeded with the number of their trial, which is never negative.
    with job.assembly.seed_sampling(model, -1, len(so_far.lessons)):
        answers = advisor.ask(inquiries)
    return [
        None
        if answer.problem == "budget"
        else TrialLesson(_reflection_text(answer.value) if answer.value else "", answer.usage)
        for answer in answers
    ]


def to_json(job: EvalJob, trials: Trials) -> dict[str, Any]:
    """Return the results of trials as a JSON object.

    The usage covers episodes and reflections; ``reflecting`` covers only reflections.
    """
    return {
        "policy": job.policy,
        "split": job.split,
        "tasks": len(trials.tasks),
        **(job.trials or TrialRules())._asdict(),
        "success_after_trial": list(trials.rates_by_trial),
        "episodes": len(trials.lines),
        "lost": trials.n_lost,
        "reflections": len(trials.reflections),
        "env_steps": trials.env_steps,
        "evaluation": {
            **_usage_to_json(trials.usage),
            "reflecting": _usage_to_json(trials.reflecting),
        },
    }


def _usage_to_json(usage: Usage) -> dict[str, int | float]:
    return {name: getattr(usage, name) for name in _USED}


def make_cue_function(folder: RunFolder, arm: str) -> Told:
    """Return a function that creates hints for a task in the same way as a finished arm's coach.

    Returns:
        A function that returns the cues of the first episode in a group that gets any, or ().

    Raises:
        ConfigError: if the arm has no coach, or no checkpoint.
    """
    _, config = read_manifest(folder)
    assembly = Assembly(config)
    method = assembly.method(assembly.arms[arm])
    saved = Checkpoints(folder.checkpoints / arm).load_latest()
    if method.coach is None or saved is None:
        lacks = "coach" if method.coach is None else "checkpoint"
        raise ConfigError(
            f"The arm {arm!r} of {config.name} has no {lacks}, so it cannot guide a policy. Choose "
            "a trained arm whose method guides episodes."
        )
    coach, group_size = method.coach, config.rollout.group_size
    guiding = Guiding(coach, method.studies, method.memories)
    guiding.load_state_dict(json.loads(saved.state["loop"]))

    def cues(task: Task) -> tuple[Cue, ...]:
        tickets = [Ticket(f"{task.id}-{n}", task, task.id, n) for n in range(group_size)]
        first = next((one.cues for one in coach.guide(tickets) if one.cues), ())
        # Cues are stripped only from training sequences.
        return tuple(cue._replace(strip=False) for cue in first)

    return cues
