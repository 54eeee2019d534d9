"""The whole training run: baselines, warm-up, initial tasks (D_0), then each arm.

Every phase saves its result and skips work that is already saved. An interrupted run is therefore
resumed by running it again, and finishes as if it had never stopped.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from coevo_gym.core.arithmetic import warn_if_other_arithmetic
from coevo_gym.core.errors import CoevoError
from coevo_gym.core.evolution import Round, RoundResult, Verdict
from coevo_gym.core.seams import Agent
from coevo_gym.core.spend import Cost
from coevo_gym.core.task import Task
from coevo_gym.core.text_tables import html_table
from coevo_gym.envs.diagnosis import stored_failure
from coevo_gym.episodes.evaluation import Evaluation, to_evaluated_task
from coevo_gym.episodes.live import make_full_gc_rare
from coevo_gym.runs.arm import Arm, ArmEvents
from coevo_gym.runs.assembly import Assembly, configure_torch, raise_restore_errors
from coevo_gym.runs.config import ArmConfig, Resolved, RunConfig, required_permissions
from coevo_gym.runs.evals.final import final_scores, save_final_score
from coevo_gym.runs.evolving.answers import count_answers, unusable_answer_warnings
from coevo_gym.runs.evolving.rounds import StoredEvolver, wrap_evolver
from coevo_gym.runs.manifest import (
    check_and_record_arithmetic,
    check_changes,
    comparison_caveat,
    forget_changed_identity,
    freeze_arithmetic_for,
    make_manifest,
    read_manifest,
    run_identity,
)
from coevo_gym.runs.planning.cost import Spending, estimate_costs, refuse_if_paid
from coevo_gym.runs.planning.memory import memory_warnings
from coevo_gym.runs.progress_reports import ProgressFile, ProgressSink, max_env_steps_of_episodes
from coevo_gym.runs.sinks import ArmSinks, check_sinks
from coevo_gym.runs.stop import Stopped, StopRequest
from coevo_gym.runs.table import (
    RANDOM,
    WARMUP,
    FinalScores,
    TableRow,
    mean_of_last,
    result_cells,
    table_row,
)
from coevo_gym.runs.warmup import imitate_references
from coevo_gym.store.approvals import approve, require_approval
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import (
    RunFolder,
    append_line,
    delete,
    raise_store_errors,
    read_json,
    rewrite_keeping_lines,
    write_json,
)
from coevo_gym.store.reader import Evaluated, RunReader
from coevo_gym.store.secrets import redact_secrets


@dataclass(frozen=True)
class RunSummary:
    """The results of a run.

    Attributes:
        name: name of the run.
        benchmark: name of the benchmark.
        split: the held-out split of the table.
        table: baselines first, then the arms in order.
        arms: summary of each arm: steps, env steps, rounds, pool size, hash of its weights, final
            metrics of its curriculum, results of each evaluation (the first is the warm-up's), and
            counts of model answers that were used, repaired or replaced by a rule, by purpose.
        samples: episodes per held-out task in each evaluation.
        final: scores of the warm-up and of each arm on the tasks of ``evaluation.final``.
    """

    name: str
    benchmark: str
    split: str
    table: tuple[TableRow, ...]
    arms: Mapping[str, Mapping[str, Any]]
    samples: int
    final: FinalScores

    def _repr_html_(self) -> str:
        heads, cells = result_cells(self.table, self.split, samples=self.samples, final=self.final)
        return html_table(heads, cells, title=f"{self.name}: {self.benchmark}")

    @classmethod
    def read(cls, folder: RunFolder) -> RunSummary:
        """Read the results of a finished run.

        Raises:
            StoreError: if the file is missing or damaged.
        """
        data = read_json(folder.summary)
        names = {one.name for one in fields(cls)}
        table = tuple(map(TableRow.from_json, data["table"]))
        return cls(**{name: data[name] for name in data if name in names} | {"table": table})


@dataclass(frozen=True)
class RunStart:
    """The policy state and baseline results that all arms of a run start from.

    Attributes:
        policy: state of the warmed-up policy.
        random: results of the random agent on the held-out tasks.
        warmup: results of the warmed-up policy on the held-out tasks.
        env_steps: env steps used for the demonstrations.
        outcomes: outcomes of both policies' episodes, by name.
    """

    policy: Mapping[str, Any]
    random: Mapping[str, float]
    warmup: Mapping[str, float]
    env_steps: int
    outcomes: Mapping[str, Sequence[Sequence[Any]]]


class RunIdentity(NamedTuple):
    """Everything that the result of a run depends on.

    Attributes:
        manifest: the manifest that the run would get.
        hashes: hashes of source code, data and files, which the manifest lacks.
    """

    manifest: Mapping[str, Any]
    hashes: Mapping[str, str]


def identify_new_run(resolved: Resolved) -> RunIdentity:
    """Return the identity of a run with these settings, without starting it."""
    task_sets = Assembly(resolved.config).task_sets
    with configure_torch(resolved.config):
        manifest = make_manifest(resolved, task_sets=task_sets)
    return RunIdentity(manifest, run_identity(resolved.config, task_sets))


def train(
    folder: RunFolder,
    resolved: Resolved,
    progress: ProgressSink,
    stop: StopRequest,
    *,
    overwrite: bool = False,
    agreed: bool = False,
    prepare: Callable[[RunFolder], object] | None = None,
) -> RunSummary:
    """Train all arms of a new run.

    Args:
        folder: folder of the run; it must not contain a run yet.
        resolved: the settings and their origins.
        progress: progress display.
        stop: called at every step boundary; returns True to stop.
        overwrite: delete an earlier run in the folder.
        agreed: True if the user has accepted the cost of models.
        prepare: called once folder and manifest exist; may add results from a matching run.

    Raises:
        Stopped: if ``stop`` returned True; finished work is saved.
        ConfigError: if the folder is taken, the run may cost money and ``agreed`` is False, or the
            user has not approved the code and API keys in the settings.
        StoreError: if a file cannot be written.
    """
    folder.require_free_folder(overwrite=overwrite)
    _require_and_store_approval(resolved.config, progress)
    if not agreed:
        refuse_if_paid(estimate_costs(resolved.config))
    assembly = Assembly(resolved.config, database=folder.database)
    assembly.check_settings()  # fail before the folder and the policy are created
    check_sinks(resolved.config.sinks)
    with configure_torch(resolved.config):
        warn_if_other_arithmetic(resolved.config.arithmetic, freeze_arithmetic_for(resolved.config))
        manifest = make_manifest(resolved, task_sets=assembly.task_sets)
        for warning in (*resolved.config.warnings(), *memory_warnings(resolved.config)):
            progress.say(f"warning: {warning}")
        _ = assembly.policy
    with folder.lock(), configure_torch(resolved.config):
        folder.create(overwrite=overwrite)
        write_json(folder.manifest, manifest)
        for name, panel in assembly.panels.items():
            folder.write_panel(name, panel)
        if prepare is not None:
            prepare(folder)
        return _run_phases(folder, assembly, progress, stop)


def resume(
    folder: RunFolder,
    progress: ProgressSink,
    stop: StopRequest,
    *,
    ignore_arithmetic: bool = False,
) -> RunSummary:
    """Resume an interrupted run; see :func:`train`.

    Args:
        folder: folder of the run.
        progress: progress display.
        stop: called at every step boundary; returns True to stop.
        ignore_arithmetic: resume even if this process rounds differently from the earlier ones.

    Raises:
        Stopped: if ``stop`` returned True; finished work is saved.
        ConfigError: if this process rounds differently and ``ignore_arithmetic`` is False, or the
            user has not approved the code and API keys in the settings.
        StoreError: if its files are damaged, except for checkpoints that an earlier one can
            replace, or its tasks have changed.
    """
    with folder.lock():
        manifest, config = read_manifest(folder)
        _require_and_store_approval(config, progress)
        if any((folder.checkpoints / arm).is_dir() for arm in config.arms):
            # The report needs complete records of the arms.
            RunReader(folder.database).check_integrity()
        assembly = Assembly(config, database=folder.database, run_folder=folder)
        assembly.check_settings()  # a missing requirement fails here, before the run continues
        changes = check_changes(manifest, config, assembly.task_sets)
        forget_changed_identity(folder, config, assembly.task_sets)
        with configure_torch(config):
            here = freeze_arithmetic_for(config)
            warn_if_other_arithmetic(config.arithmetic, here)
            changes += check_and_record_arithmetic(folder, manifest, here, ignore=ignore_arithmetic)
            for change in changes:
                progress.say(change)
            return _run_phases(folder, assembly, progress, stop)


def follow(config: RunConfig) -> None:
    """Follow a run in one of the other processes that share its updates, until it ends.

    Raises:
        RankLost: if the process that executes the run has ended without notice.
    """
    with configure_torch(config):
        worker = Assembly(config).rank_worker
        assert worker is not None
        worker.follow()


def _require_and_store_approval(config: RunConfig, progress: ProgressSink) -> None:
    """Check that the user has approved the permissions that the settings need, and print them.

    The approval is stored, so that the run can be resumed.
    """
    require_approval(*(asked := required_permissions(config)))
    approve(*asked, keep=True)
    for permission in asked:
        progress.say(f"Permitted: {permission}.")


def _run_phases(
    folder: RunFolder, assembly: Assembly, progress: ProgressSink, stop: StopRequest
) -> RunSummary:
    """Run all remaining phases, and record the progress in the run's folder."""
    progress_file = ProgressFile(progress, folder.path, "train", assembly.config.name)
    with make_full_gc_rare(), closing(assembly), progress_file as reporter:
        return _Run(folder, assembly, reporter, stop).run_phases()


class _Run:
    """A run in progress."""

    def __init__(
        self, folder: RunFolder, assembly: Assembly, progress: ProgressSink, stop: StopRequest
    ) -> None:
        self.folder, self.assembly, self.config = folder, assembly, assembly.config
        self.progress, self.stop = progress, stop
        self._found: int | None = None  # initial tasks so far, while a round finds them
        self._spending = Spending(progress)

    def run_phases(self) -> RunSummary:
        arms: dict[str, dict[str, Any]] = {}
        with (
            closing(RunStore(self.folder.database, record=self.config.store.record)) as store,
            closing(self.assembly.models),
        ):
            store.spell = getattr(self.assembly.policy, "decode_ids", None)
            store.diagnose = stored_failure
            store.add_tasks(self.assembly.warmup_tasks())
            store.add_evaluated_tasks(map(to_evaluated_task, self.assembly.held_out_tasks))
            start = self._load_start_or_warm_up(store)
            self._spending.set_cost(WARMUP, Cost(env_steps=start.env_steps))
            table = [
                table_row(RANDOM, start.random, 0),
                table_row(WARMUP, start.warmup, start.env_steps),
            ]
            self.assembly.policy.load_state_dict(start.policy)  # the policy may take part in rounds
            self._find_first_tasks(store)
            for name, settings in self.assembly.arms.items():
                row, arms[name] = self._train_arm(settings, start, store)
                self.assembly.models.carry_over_spending(name)
                gc.collect()  # breaks a reference cycle, so that the next arm can use the memory
                table.append(row)
            if self.assembly.final_tasks:
                self.assembly.policy.load_state_dict(start.policy)
                self._score_final_tasks(
                    WARMUP, 0, self.assembly.evaluation_agent(self.assembly.policy), store
                )
        summary = RunSummary(
            name=self.config.name,
            benchmark=self.config.benchmark.name,
            split=self.config.evaluation.split,
            table=tuple(table),
            arms=arms,
            samples=self.config.evaluation.samples,
            final=final_scores(self.folder),
        )
        write_json(self.folder.summary, asdict(summary))
        return summary

    # Baselines, warm-up, D_0.

    def _load_start_or_warm_up(self, store: RunStore) -> RunStart:
        checkpoints = Checkpoints(self.folder.checkpoints / WARMUP, keep=1)
        epochs = checkpoints.folder / "epochs"
        saved = checkpoints.load_latest()
        if saved is None:
            start = self._warm_up(epochs, store)
            checkpoints.save(0, asdict(start))
        else:
            with raise_restore_errors(saved, self.assembly.policy):
                start = RunStart(**saved.state)
                self.assembly.policy.load_state_dict(start.policy)
        for name, outcomes in start.outcomes.items():
            if not store.evaluation_steps(name):  # another run of the table has done the warm-up
                store.add_evaluation(name, 0, [Evaluated(*outcome) for outcome in outcomes])
        if epochs.exists():
            with raise_store_errors(epochs):
                delete(epochs)
        return start

    def _warm_up(self, epochs: Path, store: RunStore) -> RunStart:
        """Evaluate the random agent, imitate solutions, then evaluate the warmed-up policy.

        ``epochs`` is the folder for the imitation's state between epochs.
        """
        assembly = self.assembly
        floor = self._evaluate("evaluate random", assembly.random_agent())
        random = floor.metrics()
        self._raise_if_stopped()
        imitation = imitate_references(assembly, epochs, self.progress, self.stop)
        losses, env_steps = (imitation.losses, imitation.env_steps) if imitation else ((), 0)
        policy = assembly.policy
        start = self._evaluate("evaluate warm-up", assembly.evaluation_agent(policy))
        warmup = start.metrics()
        metrics = self.folder.metrics
        if metrics.exists():
            rewrite_keeping_lines(metrics, lambda line: line.get("event") != WARMUP)
        append_line(metrics, {"event": WARMUP, "losses": list(losses), "env_steps": env_steps})
        outcomes = {}
        for name, evaluation in ((RANDOM, floor), (WARMUP, start)):
            ended = [line.database_row for line in evaluation.lines]
            store.add_evaluation(name, 0, ended, evaluation.episodes)
            outcomes[name] = [list(outcome) for outcome in ended]
        return RunStart(policy.state_dict(), random, warmup, env_steps, outcomes)

    def _evaluate(
        self, phase: str, agent: Agent, tasks: Sequence[Task] | None = None
    ) -> Evaluation:
        """Evaluate an agent on the held-out tasks or the given tasks, as a separate phase."""
        tasks = self.assembly.held_out_tasks if tasks is None else tasks
        n = len(tasks) * self.config.evaluation.samples
        self.progress.begin_phase(phase, total=n)
        self.progress.expect_steps(
            *max_env_steps_of_episodes(n, self.assembly.max_steps), whole=True
        )

        def report(done: int) -> None:
            # With the tiny policy a phase is short, so its last line, with the result, is enough.
            if done < n and self.config.policy.kind != "tiny":
                self.progress.update(done)

        evaluation = self.assembly.evaluate(agent, tasks, report)
        self.progress.update(n, success=f"{evaluation.success_rate:.1%}")
        return evaluation

    def _score_final_tasks(self, policy: str, step: int, agent: Agent, store: RunStore) -> None:
        """Score a policy on the tasks of ``evaluation.final`` unless the score is already saved."""
        known = final_scores(self.folder).get(policy, {})
        for name, tasks in self.assembly.final_tasks.items():
            if name not in known:
                self._raise_if_stopped()
                evaluation = self._evaluate(f"score {policy} on {name}", agent, tasks)
                save_final_score(self.folder, store, policy, step, name, evaluation)

    def _find_first_tasks(self, store: RunStore) -> None:
        """Run the rounds that find the arms' initial tasks, and store the parents of these tasks.

        All of these rounds explore with the run's settings, not with those of an arm.
        """
        assembly, config = self.assembly, self.config
        kit, asked = assembly.kit(None, self._on_verdict), assembly.explorer_model(None)
        evolver = wrap_evolver(
            kit.evolver(kit.explorer()),
            store,
            config,
            None,
            policy=assembly.policy,
            native=assembly.train_tasks,
        )
        methods = [assembly.method(settings) for settings in assembly.arms.values()]
        rounds: list[Round] = []
        for round in (method.first_round for method in methods):
            if round is None or round in rounds:
                continue
            rounds.append(round)
            result = self._run_first_round(round.n_wanted, round, evolver, store)
            self._spending.add_first_round_cost(round, result)
            if asked is not None:
                asked.meter.count_round_once(round.id, result.usage)
        assembly.models.carry_over_spending("")

    def _run_first_round(
        self, wanted: int, round: Round, evolver: StoredEvolver, store: RunStore
    ) -> RoundResult:
        self.progress.begin_phase("first task set", total=wanted)
        self._found = 0
        result = evolver.run(round)
        self._found = None
        for warning in unusable_answer_warnings({"first task set": count_answers(result.usage)}):
            self.progress.say(f"warning: {warning}")
        if not result.accepted:
            if result.held:
                raise CoevoError(
                    f"All {len(result.held)} initial tasks are held for review, so there are no "
                    "tasks to train on. Loosen the rules in gates.hold, or set them only for "
                    "certain arms (arm.NAME.set), and start over with --overwrite."
                )
            raise CoevoError(
                f"The explorer did not find any initial tasks: {_describe_verdicts(result)}. "
                "Increase explorer.walks or explorer.max_steps to explore for longer."
            )
        if len(result.accepted) < wanted:
            self.progress.say(
                f"The explorer found {len(result.accepted)} of {wanted} initial tasks: "
                f"{_describe_verdicts(result)}."
            )
        parents = {id for task in result.accepted for id in task.parents}
        store.add_tasks(task for task in self.assembly.train_tasks if task.id in parents)
        self.progress.update(
            wanted, tasks=str(len(result.accepted)), env_steps=f"{result.env_steps:,}"
        )
        return result

    def _on_verdict(self, verdict: Verdict) -> None:
        if self._found is None:
            return  # a round within an arm; the step that started the round is finished first
        self._raise_if_stopped()
        self._found += verdict.accepted
        if (asked := self.assembly.explorer_model(None)) is not None:
            self._spending.report_search_cost(asked.meter)
        self.progress.update(self._found)

    def _raise_if_stopped(self) -> None:
        if self.stop():
            raise Stopped

    # Arms.

    def _train_arm(
        self, settings: ArmConfig, start: RunStart, store: RunStore
    ) -> tuple[TableRow, dict[str, Any]]:
        """Train one arm to completion, from scratch or from its last checkpoint."""
        self._raise_if_stopped()
        self.assembly.policy.load_state_dict(start.policy)
        spending = self._spending
        with (
            closing(self.assembly.make_env_pool()) as envs,
            closing(Arm(settings, self.assembly, envs, store, self._on_verdict)) as arm,
            ArmSinks(
                self.config.sinks,
                self.folder,
                run=self.config.name,
                arm=arm.name,
                config=redact_secrets(
                    {**self.config.to_json(), **settings.model_dump(mode="json")}
                ),
            ) as sinks,
        ):
            checkpoints = Checkpoints(
                self.folder.checkpoints / arm.name, keep=self.config.store.keep_checkpoints
            )
            events = arm.events = ArmEvents(
                arm=arm,
                folder=self.folder,
                store=store,
                progress=self.progress,
                stop=self.stop,
                checkpoints=checkpoints,
                send=sinks.send,
                on_cost=lambda: spending.set_arm_cost(arm.name, arm.first_round, arm.loop.state),
            )
            arm.loop.events = events
            self._restore_or_initialise(arm, checkpoints, start)
            outcome = self._run_loop(arm, checkpoints)
            with arm.use_averaged_weights():
                self._score_final_tasks(arm.name, arm.loop.state.step, arm.evaluated, store)
            return outcome

    def _restore_or_initialise(self, arm: Arm, checkpoints: Checkpoints, start: RunStart) -> None:
        """Restore an arm from its last checkpoint, or initialise an arm that has no checkpoint."""
        saved, events = checkpoints.load_latest(), arm.events
        if saved:
            events.delete_records_after(saved.step, saved.state["lines"])
            arm.load(saved)
            return
        events.delete_records_after(-1)
        if arm.first_round:
            arm.loop.run_round(arm.first_round)
        arm.loop.state.evaluated = 0  # the warm-up's evaluation is the first one of this arm
        events.record_evaluation({**start.warmup, **arm.evaluate_trained_tasks()})

    def _run_loop(self, arm: Arm, checkpoints: Checkpoints) -> tuple[TableRow, dict[str, Any]]:
        loop, config = arm.loop, self.config.loop
        by_steps = config.max_steps is not None
        total = config.max_steps if by_steps else config.max_env_steps
        done = loop.state.step if by_steps else loop.state.env_steps
        later = len(self.assembly.arms) - list(self.assembly.arms).index(arm.name) - 1
        self.progress.begin_phase(f"train {arm.name}", total or 0, done, similar=later)
        self.progress.expect_steps(*arm.max_env_steps_left())
        arm.events.on_cost()
        most = config.max_env_steps
        if most is not None and loop.state.env_steps >= most and not loop.state.step:
            self.progress.say(
                f"warning: {arm.name} will not be trained: its first task set took "
                f"{loop.state.env_steps:,} env steps, but loop.max_env_steps is {most:,}. Raise "
                "loop.max_env_steps, or lower curriculum.initial_size."
            )
        self.stop.waits_for = arm.events.describe_current_step
        try:
            loop.run()
        finally:
            self.stop.waits_for = lambda: ""
        arm.save(checkpoints)
        if not loop.is_over or loop.session.is_evolving:
            raise Stopped
        outcome, evaluations = arm.summarise(), arm.events.evaluations()
        row = table_row(
            arm.name,
            mean_of_last(evaluations, self.config.evaluation.last),
            loop.state.env_steps,
            usage=loop.state.total_usage,
            curriculum=outcome["curriculum"],
            rollout_tokens=loop.state.rollout_tokens,
            gradient_tokens=loop.state.gradient_tokens,
            mark=comparison_caveat(self.config, self.assembly.arms[arm.name]),
        )
        return row, outcome


def _describe_verdicts(result: RoundResult) -> str:
    """Return the number of drafts that a round judged and the number rejected by each gate."""
    gates = Counter(verdict.gate for verdict in result.verdicts if not verdict.accepted)
    rejected = ", ".join(f"{gate} {n}" for gate, n in gates.most_common()) or "none"
    return f"{len(result.draft_verdicts)} drafts, rejected by: {rejected}"
