"""TRL's ``GRPOTrainer`` practises a curriculum: its ``environment_factory`` and a callback.

    plug = TRLPlug("CoEvolve-WebShop-v0", session, tokenizer=tokenizer)
    trainer = GRPOTrainer(
        model=…,
        processing_class=tokenizer,
        args=GRPOConfig(num_generations=session.group_size, …),
        train_dataset=Dataset.from_list(plug.rows(64)),
        eval_dataset=Dataset.from_list(plug.rows(16, split="val")),
        environment_factory=plug.environment,
        callbacks=[plug.callback()],
    )

The trainer samples, parses tool calls and learns, the curriculum says what is practised. Written
for TRL 1.16, whose ``environment_factory`` is experimental.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import Split, parse_split
from coevo_gym.curricula.session.face import SessionFace
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.prompts import PromptTemplate
from coevo_gym.provision import extra_advice
from coevo_gym.trainers.plug.chat_rollout import ChatRollout
from coevo_gym.trainers.plug.checkpoint import load_session, save_session

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise ImportError(f"TRL's trainer needs TRL. {extra_advice('trl')}.") from error

OVER = "The episode is over. Nothing you do changes it any more."
BY_TOOL = (
    "You have one tool, `act`. Give every answer, whole and in the form described above, as its "
    "argument `action`; what comes of it is what the tool returns."
)


class TRLPlug:
    """What of a curriculum a ``GRPOTrainer`` is given.

    TRL sends the K copies of a row to K environments, in whatever process they are; each row has a
    slot of its own, so that its copies get one task. The policy's version is the trainer's step.

    Args:
        env_id: the env, such as ``"CoEvolve-WebShop-v0"``.
        session: what is practised. Its ``group_size`` is the trainer's ``num_generations``; its
            ``groups_per_step`` should be ``generation_batch_size // num_generations``, the rows
            that the trainer samples answers to at once.
        tokenizer: the model's tokenizer or processor, to check that its chat template supports
            tools before anything else is loaded; None leaves that to the trainer.
        prompt: the words in which the model is told about the env; default: the benchmark's.
        arguments: further arguments of the env, such as ``max_steps``.

    Raises:
        ConfigError: if the tokenizer's chat template does not support tools.
    """

    def __init__(
        self,
        env_id: str,
        session: SessionFace,
        *,
        tokenizer: Any = None,
        prompt: PromptTemplate | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if tokenizer is not None:
            check_chat_template(tokenizer)
        self.session, self.version = session, 0
        self._env_id, self._prompt, self._arguments = env_id, prompt, arguments
        self._probe = self._rollout()

    def environment(self) -> Environment:
        """One more environment: the trainer's ``environment_factory``."""
        return Environment(self._rollout(), lambda: self.version)

    def callback(self) -> Callback:
        """What saves the curriculum with the trainer's checkpoints, and goes on from them."""
        return Callback(self)

    def rows(self, n: int, split: str = "train") -> list[dict[str, Any]]:
        """Rows for the trainer's data set.

        Args:
            n: how many. Rows of training are places only, which the curriculum fills; at least as
                many as the trainer samples answers to at once.
            split: ``"train"``; of another split each row is one of its native tasks, in order.
        """
        side = parse_split(split)
        empty = {"prompt": [{"role": "user", "content": ""}], "split": str(side)}
        if side is Split.TRAIN:
            return [{**empty, "slot": f"row {i}", "task": ""} for i in range(n)]
        tasks = self._probe.tasks(side)
        return [{**empty, "slot": "", "task": task.id} for task in islice(cycle(tasks), n)]

    def _rollout(self) -> ChatRollout:
        return ChatRollout(
            self._env_id, self.session, prompt=self._prompt, arguments=self._arguments
        )


def check_chat_template(tokenizer: Any) -> None:
    """Refuse a chat template with which ``GRPOTrainer`` cannot use tools.

    Args:
        tokenizer: a tokenizer or processor.

    Raises:
        ConfigError: if the template drops tool calls or tool results, or TRL does not know how to
            parse the tool calls of such a model.
    """
    from trl.chat_template_utils import add_response_schema, supports_tool_calling

    model = getattr(tokenizer, "name_or_path", "") or "the model"
    if not supports_tool_calling(tokenizer):
        raise ConfigError(
            f"The chat template of {model} does not support tools, and the model acts by calling "
            "one. Choose a model whose template does: Qwen3's does, SmolLM2's does not."
        )
    own = getattr(tokenizer, "tokenizer", tokenizer)  # a processor's, where TRL looks
    parsers = (getattr(own, name, None) for name in ("response_template", "response_schema"))
    if any(parser is not None for parser in parsers):
        return
    try:
        add_response_schema(deepcopy(tokenizer))
    except ValueError as error:
        raise ConfigError(
            f"TRL does not know the chat template of {model}, so it cannot parse tool calls. Use "
            "the template that came with the model, or set the tokenizer's response_template."
        ) from error


class Environment:
    """One rollout at a time, with the one tool ``act``.

    TRL makes a tool of every public function of this class, so all else has an underscore.
    """

    def __init__(self, rollout: ChatRollout, version: Callable[[], int]) -> None:
        self._rollout, self._version = rollout, version

    def reset(self, split: str = "train", slot: str = "", task: str = "", **row: Any) -> str:
        """Begin the episode of one copy of a row; returns what the model is told."""
        messages = self._rollout.begin(
            split=split, slot=slot or None, task=task or None, policy_version=self._version()
        )
        system = [message.content for message in messages if message.role == "system"]
        user = [message.content for message in messages if message.role != "system"]
        return "\n\n".join([*system, BY_TOOL, *user])

    def act(self, action: str) -> str:
        """Do something, and see what comes of it.

        Args:
            action: What you do or say, in the form that you were told.

        Returns:
            What you see next.
        """
        if self._rollout.over:
            return OVER
        # A fault must not reach the trainer, which would take it for the model's: it tells the
        # model of it, and scores what comes after. The rollout remembers it instead.
        seen = self._rollout.answer(str(action))
        return "\n\n".join(filter(None, [seen, OVER])) if self._rollout.over else seen

    def get_reward(self) -> float | None:
        """1.0 for success, else 0.0; None, which TRL leaves out, if a fault took the episode."""
        return self._rollout.end()


class Callback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Keeps the curriculum beside the trainer: its policy version, checkpoints and numbers.

    Its numbers go into ``trainer.state.log_history`` as ``curriculum/…``.
    """

    def __init__(self, plug: TRLPlug) -> None:
        self._plug, self._loaded = plug, False

    def load(self, checkpoint: Path | str) -> None:
        """Go on from the curriculum of a checkpoint that is not in the trainer's ``output_dir``."""
        load_session(self._plug.session, checkpoint)
        self._loaded = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check that both sides count alike; on resuming load the checkpoint's curriculum."""
        session, theirs = self._plug.session, args.num_generations
        if isinstance(session, CurriculumSession) and session.group_size != theirs:
            raise ConfigError(
                f"The session has groups of {session.group_size}, but the trainer sends each row "
                f"{theirs} times. Set num_generations={session.group_size}."
            )
        if args.world_size > 1 and isinstance(session, CurriculumSession):
            raise ConfigError(
                f"Each of the {args.world_size} processes would practise a curriculum of its own, "
                "and the copies of a row would not meet. Train in one process, or let all of them "
                "ask one server (`coevo serve`)."
            )
        if state.global_step and not self._loaded:
            self.load(_checkpoint(args, state))
        self._plug.version = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The policy has changed."""
        self._plug.version = state.global_step

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the curriculum with the checkpoint."""
        if state.is_world_process_zero:
            save_session(self._plug.session, _checkpoint(args, state))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Add the curriculum's numbers."""
        numbers = {f"curriculum/{k}": v for k, v in self._plug.session.metrics().items()}
        state.log_history[-1] |= numbers
        if logs is not None:
            logs |= numbers


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
