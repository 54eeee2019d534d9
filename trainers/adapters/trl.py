"""TRL adapter that trains on a curriculum with ``GRPOTrainer``.

    plug = TRLPlug("CoEvolve-WebShop-v0", curriculum="coevolve", group_size=8, tokenizer=tokenizer)
    trainer = GRPOTrainer(
        model=…,
        processing_class=tokenizer,
        args=GRPOConfig(num_generations=8, …),
        train_dataset=Dataset.from_list(plug.rows(64)),
        eval_dataset=Dataset.from_list(plug.rows(16, split="val")),
        environment_factory=plug.make_environment,
        callbacks=[plug.make_callback()],
    )

The tools of BFCL, AppWorld and a user's rows are methods of the environment, with types. In other
envs, the model has one tool, ``act``. With ``answers="text"`` and ``reward_funcs=plug.reward``, the
model's last message is its answer to a row, and no tool is needed.

The trainer samples, parses tool calls and learns; the curriculum selects the tasks. Written for TRL
1.16, whose ``environment_factory`` is experimental.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import gymnasium as gym

from coevo_gym.core.benchmark import Benchmark, asks_once, get_benchmark, tools_of
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Curriculum
from coevo_gym.core.task import Split, parse_split
from coevo_gym.core.tool_calls import Call, split_results, write_hermes
from coevo_gym.curricula.session.curriculum_session import CurriculumSession
from coevo_gym.curricula.session.session_calls import TaskSession
from coevo_gym.curricula.session.stream import DEFAULT_EVERY, require_train_env, resolve_session
from coevo_gym.prompts import PromptTemplate
from coevo_gym.provision import explain_missing
from coevo_gym.trainers.adapters.chat_rollout import ChatRollout
from coevo_gym.trainers.adapters.checkpoint import load_session, save_session
from coevo_gym.trainers.adapters.owner import Address, Owner, connect_to_owner, serve_owner
from coevo_gym.trainers.adapters.typed_tools import (
    ANSWER,
    make_tool_methods,
    parse_function_schemas,
)

with explain_missing("TRL's trainer needs TRL.", "trl"):
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list
    from transformers import TrainerCallback

Answers = Literal["tool", "text"]
"""The way a model answers: by calling a tool, or with its last message."""
BY_ANSWER = (
    "Act by calling tools. Say what you have to say with the tool `answer`: other text is not read."
)
OVER = "The episode is over. Nothing you do changes it any more."
BY_TOOL = (
    "You have one tool, `act`. Give every answer, whole and in the form described above, as its "
    "argument `action`; what comes of it is what the tool returns."
)


class TRLPlug:
    """An adapter that provides a ``GRPOTrainer`` with environments, dataset rows and a callback.

    TRL sends the K copies of a row to K environments, in any process. Each row has its own slot, so
    its copies receive the same task. The policy version is the trainer's step. If
    ``make_environment`` is sent to a child process, environments there use the session of this
    process. If several processes train, each has a plug of its own, and all plugs need the same
    served session (:class:`~coevo_gym.curricula.session.http_session.HTTPSession`).

    Attributes:
        benchmark: benchmark of the envs.
        n_environments: number of environments that the trainer has created.
        run: name of this training, which keeps its slots apart from those of an earlier training
            that was killed while it used the same session.

    Args:
        env_id: env id, such as ``"CoEvolve-WebShop-v0"``, or a benchmark, such as the result of
            ``from_rows``.
        session: session to train on, such as an ``HTTPSession``; None to create one from the next
            arguments.
        curriculum: as for :class:`~coevo_gym.EvolvingTaskSampler`.
        group_size: K, which must equal the trainer's ``num_generations``.
        groups_per_step: should be ``generation_batch_size // num_generations``, the number of rows
            that the trainer samples answers for at once.
        seed: seed of the stream of tasks.
        tokenizer: the model's tokenizer or processor, to check early that its chat template
            supports tools; None to leave the check to the trainer.
        prompt: prompt template that describes the env to the model; default: the benchmark's.
        arguments: further arguments for the env, such as ``max_steps``.
        answers: with ``"tool"``, the model answers by calling a tool. With ``"text"``, its last
            message is the answer, as in a chat; the trainer then needs
            ``reward_funcs=plug.reward``. For benchmarks with one request per episode only, such as
            rows without ``respond``.

    Raises:
        ConfigError: if the tokenizer's chat template does not support tools, or an argument is
            invalid or conflicts with the session.
    """

    def __init__(
        self,
        env_id: str | Benchmark,
        session: TaskSession | None = None,
        *,
        curriculum: Curriculum | str | None = None,
        group_size: int = 8,
        groups_per_step: int = 1,
        seed: int = 0,
        tokenizer: Any = None,
        prompt: PromptTemplate | None = None,
        arguments: Mapping[str, Any] | None = None,
        answers: Answers = "tool",
    ) -> None:
        if tokenizer is not None:
            check_chat_template(tokenizer)
        self._source = env_id
        self._env_id = env_id if isinstance(env_id, str) else env_id.env_id
        with closing(gym.make(self._env_id, **(arguments or {}))) as env:
            bare = require_train_env(env.unwrapped)
            self.benchmark = get_benchmark(bare.benchmark)
            self._kind = environment_class(self.benchmark, answers)
            self.session = resolve_session(
                bare,
                session,
                curriculum,
                group_size=group_size,
                groups_per_step=groups_per_step,
                evolve_every_groups=DEFAULT_EVERY,
                seed=seed,
                evolver=None,
            )
        self.n_environments = 0
        self.run = "" if isinstance(self.session, CurriculumSession) else uuid4().hex[:8]
        self._version: int | None = None
        self._owned: Callable[[], int] | None = None
        self._address: Address | None = None
        self._prompt, self._arguments, self._answers = prompt, arguments, answers
        self._probe = self._make_rollout()

    @property
    def version(self) -> int:
        """The policy version, which is the trainer's step.

        Raises:
            ConfigError: if training has begun without the callback.
        """
        if self._owned is not None:
            return self._owned()
        if self._version is None:
            raise ConfigError(
                "The trainer does not have the plug's callback, so the curriculum would never see "
                "a new policy and would not be saved. Pass callbacks=[plug.make_callback()]."
            )
        return self._version

    @version.setter
    def version(self, step: int) -> None:
        self._version = step

    def make_environment(self) -> RolloutEnvironment:
        """Create an environment for the trainer. Pass this method as ``environment_factory``."""
        self.n_environments += 1
        return self._kind(self._make_rollout(), self)

    def __reduce__(self) -> tuple[Any, ...]:
        # A trainer may sample in another process, whose environments use this session.
        self.n_environments += 1
        self._address = self._address or serve_owner(Owner(self.session, lambda: self.version))
        arguments = (self._prompt, self._arguments, self._answers)
        return _connect_plug, (self._source, self._address, self.run, *arguments)

    def reward(
        self,
        completions: Sequence[Sequence[Mapping[str, Any]]],
        environments: Sequence[TextEnvironment] = (),
        **_: Any,
    ) -> list[float | None]:
        """Judge the last message of each completion. Pass this method as ``reward_funcs``.

        The rewards have the same values as in :meth:`ToolEnvironment.get_reward`.

        Raises:
            ConfigError: if the model answers by calling a tool, which is judged already, or the
                trainer does not pass its environments, which is the case for TRL's
                ``AsyncGRPOTrainer``.
        """
        if not environments:
            raise ConfigError(
                "The trainer does not pass its environments to reward functions, so answers "
                "cannot be judged as text. Remove answers='text' and reward_funcs=plug.reward."
            )
        if self._answers == "tool":
            raise ConfigError(
                "Without answers='text', the environments judge the episodes themselves. Remove "
                "reward_funcs=plug.reward, or pass answers='text' to TRLPlug."
            )
        pairs = zip(environments, completions, strict=True)
        return [environment._judge_completion(completion) for environment, completion in pairs]

    def make_callback(self) -> Callback:
        """Create a callback that saves the curriculum in checkpoints and restores it from them."""
        return Callback(self)

    def rows(self, n: int, split: str = "train") -> list[dict[str, Any]]:
        """Return rows for the trainer's dataset.

        Args:
            n: number of rows. Training rows are placeholders that the curriculum fills. Use at
                least as many rows as the trainer samples answers for at once.
            split: ``"train"``, or another split, whose native tasks fill the rows in order.
        """
        side = parse_split(split)
        empty = {"prompt": [{"role": "user", "content": ""}], "split": str(side)}
        if side is Split.TRAIN:
            return [{**empty, "slot": f"row {i}", "task": ""} for i in range(n)]
        tasks = self._probe.tasks(side)
        return [{**empty, "slot": "", "task": task.id} for task in islice(cycle(tasks), n)]

    def _make_rollout(self) -> ChatRollout:
        return ChatRollout(
            self._env_id,
            self.session,
            prompt=self._prompt,
            style="openai" if self._kind._has_tools else "plain",
            arguments=self._arguments,
        )


def _connect_plug(
    env_id: str | Benchmark,
    address: Address,
    run: str,
    prompt: PromptTemplate | None,
    arguments: Mapping[str, Any] | None,
    answers: Answers,
) -> TRLPlug:
    """Return a plug whose session is in another process."""
    session, version = connect_to_owner(address)
    plug = TRLPlug(env_id, session, prompt=prompt, arguments=arguments, answers=answers)
    plug._owned, plug.run = version, run
    return plug


def check_chat_template(tokenizer: Any) -> None:
    """Check that ``GRPOTrainer`` can use tools with a tokenizer's or processor's chat template.

    Raises:
        ConfigError: if the template drops tool calls or tool results, or TRL cannot parse the
            model's tool calls.
    """
    from trl.chat_template_utils import add_response_schema, supports_tool_calling

    model = getattr(tokenizer, "name_or_path", "") or "the model"
    if not supports_tool_calling(tokenizer):
        raise ConfigError(
            f"The chat template of {model} does not support tools, but the model acts by calling "
            "a tool. Choose a model with tool support, such as Qwen3 (not SmolLM2)."
        )
    own = getattr(tokenizer, "tokenizer", tokenizer)  # for a processor, TRL checks its tokenizer
    parsers = (getattr(own, name, None) for name in ("response_template", "response_schema"))
    if any(parser is not None for parser in parsers):
        return
    try:
        add_response_schema(deepcopy(tokenizer))
    except ValueError as error:
        raise ConfigError(
            f"TRL does not recognise the chat template of {model}, so it cannot parse tool calls. "
            "Use the model's original template, or set the tokenizer's response_template."
        ) from error


class RolloutEnvironment:
    """An environment for TRL that runs one rollout at a time; subclasses add tools and rewards.

    TRL exposes every public method of a class as a tool, so helpers start with an underscore.
    """

    _has_tools = False
    """True if the tools of the env are methods of the class."""
    _by_tool = ""

    def __init__(self, rollout: ChatRollout, plug: TRLPlug) -> None:
        self._rollout, self._plug = rollout, plug

    def reset(self, split: str = "train", slot: str = "", task: str = "", **row: Any) -> str:
        """Start a rollout for a dataset row and return the messages for the model."""
        version = self._plug.version if parse_split(split) is Split.TRAIN else 0
        messages = self._rollout.begin(
            split=split,
            slot=f"{self._plug.run} {slot}".strip() if slot else None,
            task=task or None,
            policy_version=version,
        )
        system = [message.content for message in messages if message.role == "system"]
        user = [message.content for message in messages if message.role != "system"]
        return "\n\n".join(filter(None, [*system, self._by_tool, *user]))

    def _send_answer(self, answer: str) -> str:
        if self._rollout.over:
            return OVER
        # A fault must not reach the trainer: it would report the fault to the model and score
        # the rest of the episode. The rollout records the fault instead.
        (seen, *_), rest = split_results(self._rollout.send_answer(answer), 1)
        return "\n\n".join(filter(None, [seen, rest, OVER if self._rollout.over else ""]))


class TextEnvironment(RolloutEnvironment):
    """An environment in which the last message of the model is its answer.

    TRL does not pass this message to the environment, so the environment cannot return a reward.
    :meth:`TRLPlug.reward` judges the message instead.
    """

    def _judge_completion(self, completion: Sequence[Mapping[str, Any]]) -> float | None:
        last = completion[-1]
        if last["role"] == "assistant" and not last.get("tool_calls") and not self._rollout.over:
            self._rollout.send_answer(str(last.get("content") or ""))
        return self._rollout.end()


class ToolEnvironment(RolloutEnvironment):
    """An environment in which the model answers by calling a tool."""

    def get_reward(self) -> float | None:
        """Return 1.0 for success, 0.0 for failure, or None (ignored by TRL) for a lost episode."""
        return self._rollout.end()


class Environment(ToolEnvironment):
    """An environment with the single tool ``act``."""

    _by_tool = BY_TOOL

    def act(self, action: str) -> str:
        """Take an action in the environment, and return the next observation.

        Args:
            action: The action, in the form that the prompt describes.

        Returns:
            The next observation.
        """
        return self._send_answer(str(action))


def environment_class(benchmark: Benchmark, answers: Answers = "tool") -> type[RolloutEnvironment]:
    """Create the environment class for a benchmark, with the benchmark's tools as typed methods.

    Raises:
        ConfigError: if a tool has the name of another method, or the model cannot answer with text.
    """
    tools = parse_function_schemas(tools_of(benchmark))
    if answers == "text":
        if not asks_once(benchmark):
            raise ConfigError(
                f"Episodes of {benchmark.name} may consist of several requests, but with "
                "answers='text', an answer ends the episode. Remove answers='text'."
            )
    elif not tools:
        return Environment
    write: Callable[[Call], str] = getattr(
        benchmark, "action_of", lambda call: write_hermes([call])
    )
    if answers == "tool" and not hasattr(benchmark, "action_of"):
        tools.append(ANSWER)

    def call_tool(self: RolloutEnvironment, name: str, arguments: Mapping[str, Any]) -> str:
        if name == ANSWER["name"] and ANSWER in tools:
            return self._send_answer(str(arguments.get("text", "")))
        return self._send_answer(write(Call(name, arguments)))

    methods = make_tool_methods(tools, call_tool, ("reset", "get_reward"))
    by_tool = BY_ANSWER if ANSWER in tools else ""
    kind = TextEnvironment if answers == "text" else ToolEnvironment
    return type("Environment", (kind,), {**methods, "_by_tool": by_tool, "_has_tools": bool(tools)})


class Callback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """A callback that updates the policy version, saves the curriculum and logs its metrics.

    The curriculum's metrics go to ``trainer.state.log_history`` as ``curriculum/…``.
    """

    def __init__(self, plug: TRLPlug) -> None:
        self._plug, self._loaded = plug, False

    def load_curriculum(self, checkpoint: Path | str) -> None:
        """Load the curriculum from a checkpoint outside the trainer's ``output_dir``."""
        load_session(self._plug.session, checkpoint)
        self._loaded = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check that the session suits the trainer, and load the saved curriculum when resuming."""
        session, theirs, alone = self._plug.session, args.num_generations, args.world_size == 1
        size = getattr(session, "group_size", theirs)
        if size != theirs:
            raise ConfigError(
                f"The session's group size is {size}, but the trainer copies each row {theirs} "
                f"times. Set num_generations={size}."
            )
        if not alone and isinstance(session, CurriculumSession):
            raise ConfigError(
                f"Each of the {args.world_size} processes would train on its own curriculum, so "
                "the copies of a row would get different tasks. Serve one curriculum for all of "
                f"them, with `coevo serve {self._plug.benchmark.name} --group-size {size} "
                f"--groups-per-step {session.groups_per_step}`, and create each plug with "
                'TRLPlug(env_id, HTTPSession("http://127.0.0.1:8765")).'
            )
        if state.global_step and not self._loaded and (alone or state.is_world_process_zero):
            self.load_curriculum(_checkpoint_folder(args, state))
        if not alone:  # no process may sample before the curriculum is loaded
            self._plug.run = broadcast_object_list([self._plug.run])[0]
        self._plug.version = state.global_step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Run the round that is due, and check that the trainer has created environments.

        The environments may be in a child process. Each process waits until the round is over, so
        all of them sample from the same pool.
        """
        self._plug.session.close_spent_step()
        self._plug.session.evolve()
        if not self._plug.n_environments:
            raise ConfigError(
                "The trainer has no environments, so it would train on empty prompts. Pass "
                "environment_factory=plug.make_environment."
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Update the policy version after a step."""
        self._plug.version = state.global_step

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the curriculum with the checkpoint, before any process samples for the next step."""
        if state.is_world_process_zero:
            save_session(self._plug.session, _checkpoint_folder(args, state))
        if args.world_size > 1:
            PartialState().wait_for_everyone()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Add the curriculum's metrics to the log."""
        numbers = {f"curriculum/{k}": v for k, v in self._plug.session.metrics().items()}
        state.log_history[-1] |= numbers
        if logs is not None:
            logs |= numbers


def _checkpoint_folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
