"""An agent loop that lets verl's own trainer train on a curriculum.

Select it in the YAML file that verl reads (``rollout.agent.agent_loop_config_path``)::

    - name: coevo
      _target_: coevo_gym.trainers.adapters.verl.agent_loop.CurriculumAgentLoop
      env_id: CoEvolve-WebShop-v0
      session: coevo-session            # name of a Ray actor, or http://… for `coevo serve`

Training rows of verl's dataset are placeholders: ``{"prompt": [{"role": "user", "content": ""}],
"agent_name": "coevo"}``. The ``rollout.n`` copies of a row share a ``uid``, which is their slot in
the session. A row with a ``split`` other than ``"train"``, and optionally the id of a ``task``, is
an evaluation row. verl does not pass the policy version to its loops, because its trainer updates
the policy only between batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from coevo_gym.core.errors import ConfigError, EnvBackendError
from coevo_gym.core.thoughts import thought_opening
from coevo_gym.core.trajectory import EndReason
from coevo_gym.curricula.session.session_calls import TaskSession
from coevo_gym.prompts import load_prompt
from coevo_gym.serve.ray_actor import connect_session
from coevo_gym.trainers.adapters.chat_rollout import ChatRollout, message_dicts

MAX_TRIES = 3
"""Maximum number of attempts at an episode lost to a fault; verl cannot leave a rollout out."""
_PROMPT_END = 16
"""Number of tokens at the end of a prompt in which to look for the start of a thought."""

_here: dict[str, TaskSession] = {}
_idle: dict[tuple[str, str], list[ChatRollout]] = {}  # rollouts to reuse, to avoid creating envs


def register_session(session: TaskSession, name: str) -> None:
    """Make a session available by name to the agent loops in this process."""
    _here[name] = session


class CurriculumAgentLoop(AgentLoopBase):  # type: ignore[misc, unused-ignore]
    """An agent loop that runs one episode. There is one loop per rollout.

    Args:
        arguments: verl's positional arguments.
        env_id: env id, such as ``"CoEvolve-WebShop-v0"``.
        session: name of a session in this process (:func:`register_session`) or of a Ray actor, or
            address of a `coevo serve` server.
        prompt: name or file of the prompt template that describes the env; default: the
            benchmark's.
        env_arguments: further arguments for the env, such as ``max_steps``.
        keywords: verl's keyword arguments.
    """

    def __init__(
        self,
        *arguments: Any,
        env_id: str,
        session: str,
        prompt: str | None = None,
        env_arguments: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        super().__init__(*arguments, **keywords)
        self._idle = _idle.setdefault((env_id, session), [])
        if self._idle:
            self._rollout = self._idle.pop()
        else:
            prompt_file = load_prompt(prompt) if prompt else None
            self._rollout = ChatRollout(
                env_id, _find_session(session), prompt=prompt_file, arguments=env_arguments
            )

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Run one rollout for a row of verl's dataset.

        Raises:
            EnvBackendError: if engine faults end every attempt.
            ConfigError: if a training row has no ``uid``, which its copies need to share a task.
        """
        split = str(row.get("split", "train"))
        if split == "train" and "uid" not in row:
            raise ConfigError(
                "A training row has no uid, so its repeated rollouts cannot get the same task. "
                "Use one of verl's trainers, which set the uid."
            )
        try:
            await asyncio.to_thread(
                self._rollout.begin,
                split=split,
                task=row.get("task") or None,
                slot=str(row["uid"]) if "uid" in row else None,
            )
            for _ in range(MAX_TRIES):
                output = (
                    None if self._rollout.lost else await self._run_episode(sampling_params, row)
                )
                if output is not None:
                    self._idle.append(self._rollout)
                    return output
                await asyncio.to_thread(self._rollout.restart)
            raise EnvBackendError(
                f"An episode failed {MAX_TRIES} times due to infrastructure errors. Training "
                "cannot continue: verl cannot drop a rollout, and a lost rollout must not count as "
                "a failure."
            )
        except BaseException:
            await asyncio.to_thread(self._rollout.close)
            raise

    async def _run_episode(
        self, sampling_params: dict[str, Any], row: Mapping[str, Any]
    ) -> AgentLoopOutput | None:
        """Run an episode from start to finish; return None if it was lost to a fault."""
        rollout, room = self._rollout, self.rollout_config.response_length
        messages = [*row.get("raw_prompt", []), *message_dicts(rollout.opening)]
        ids = await self.ct_build_initial_tokens(messages)
        start, mask, turns = len(ids), list[int](), 0
        logprobs: list[float] | None = [] if sampling_params.get("logprobs") else None
        request, reason = uuid4().hex, EndReason.AGENT_DONE
        while not rollout.over:
            if len(mask) >= room:
                reason = EndReason.MAX_TOKENS
                break
            sampled = await self.server_manager.generate(
                request_id=request, prompt_ids=ids, sampling_params=sampling_params
            )
            opened = thought_opening(self.tokenizer.decode(ids[-_PROMPT_END:]))
            merged, mask, logprobs = await self.ct_merge_assistant_token(
                ids, sampled.token_ids, mask, logprobs, sampled.log_probs
            )
            ids, turns = merged.token_ids, turns + 1
            text = self.tokenizer.decode(sampled.token_ids, skip_special_tokens=True)
            page = await asyncio.to_thread(rollout.send_answer, opened + text)
            if not rollout.over:
                before = [*messages, {"role": "assistant", "content": text}]
                messages = [*before, {"role": "user", "content": page}]
                merged, mask, logprobs = await self.ct_merge_context_msg(
                    before, messages, ids, mask, logprobs
                )
                ids = merged.token_ids
        outcome = await asyncio.to_thread(rollout.end, reason)
        if outcome is None:
            return None
        return AgentLoopOutput(
            prompt_ids=ids[:start],
            response_ids=ids[start:][:room],
            response_mask=mask[:room],
            response_logprobs=None if logprobs is None else logprobs[:room],
            reward_score=outcome,
            num_turns=2 * turns,
            metrics=AgentLoopMetrics(),
            extra_fields={"task_id": rollout.info["task_id"]},
        )


def _find_session(name: str) -> TaskSession:
    return _here[name] if name in _here else connect_session(name)
