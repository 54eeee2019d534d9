"""An agent that talks a language model through an env."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Protocol, runtime_checkable

from pydantic import Field, model_validator

from coevo_gym.agents.chat import history
from coevo_gym.core.errors import ConfigError, ModelError
from coevo_gym.core.seams import Act, Completion, Finish, Message, Policy, Prompt, Sampling
from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import EndReason, TokenDecision, View
from coevo_gym.prompts import AnswerStyle, PromptTemplate
from coevo_gym.prompts.answers import action_of, answer_of, without_thought_line


class ChatConfig(FrozenModel):
    """How a language model is talked to.

    Attributes:
        history: what of an episode it is shown: all (``causal``), all but earlier thoughts
            (``reasoning``), the last steps with the task and a list of older actions (``window``),
            the last steps alone (``recent``), or what it keeps (``self_managed``).
        window_turns: past steps that ``window`` and ``recent`` show as they were; None for as many
            as fit into 24,000 characters.
        managed_chars: characters of a prompt from which on ``self_managed`` asks to make room.
        thinking: whether it is to think before it answers. The prompt asks for it, and in a
            :class:`coevo_gym.config.RunConfig` a chat template with a switch is told so too.
        style: ``react`` asks for a line ``Thought: …`` before each action. Unlike what stands in
            ``<think>`` tags, such a line stays in the history. It needs ``thinking`` off, and a
            prompt file with the input ``style``.
        max_answer_tokens: most tokens of an answer, thoughts included.
        max_episode_tokens: most sampled tokens of an episode; None for no limit. Policies that
            give no token ids are not limited.
        temperature: what logits are divided by; 0 is greedy.
    """

    history: Literal["causal", "reasoning", "window", "recent", "self_managed"] = "causal"
    window_turns: int | None = Field(default=4, ge=0)
    managed_chars: int = Field(default=24_000, ge=1)
    thinking: bool = False
    style: AnswerStyle = "plain"
    max_answer_tokens: int = Field(default=512, ge=1)
    max_episode_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0)

    @model_validator(mode="after")
    def _one_place_for_thoughts(self) -> ChatConfig:
        if self.style == "react" and self.thinking:
            raise ValueError(
                "style = 'react' asks for thoughts in the answer, and thinking = true for thoughts "
                "in <think> tags. Set thinking = false, or style = 'plain'."
            )
        return self


@runtime_checkable
class Demonstrable(Protocol):
    """A policy that can say in tokens what it would have had to say."""

    def encode_demonstration(self, messages: Sequence[Message], text: str) -> TokenDecision | None:
        """The decision to answer ``messages`` with ``text`` and to stop; None if it has no room.

        Its log-probabilities are 0.
        """
        ...


class ChatAgent:
    """Turns views into chats for a policy, and its answers into acts.

    It keeps no state: what it said and sampled in earlier steps is in the view's history, where
    :class:`coevo_gym.episodes.Runner` puts it. An answer that was cut at its most tokens is
    read as far as it goes. A prompt that the model has no room for ends the episode with
    ``context_overflow``, a spent token budget with ``max_tokens``, the episode's own as well as one
    that forbids to send a prompt; an answer that is lost loses the episode.

    Of cues that are stripped, the policy is told, and is given the chat without them to train on.

    Args:
        policy: who answers.
        prompt: the words in which it is told about the env.
        config: what it is shown, and how it draws.

    Raises:
        ConfigError: if the prompt has no words for the style of answers.
    """

    def __init__(
        self, policy: Policy, prompt: PromptTemplate, config: ChatConfig | None = None
    ) -> None:
        self.policy = policy
        self.prompt = prompt
        self.config = config or ChatConfig()
        if self.config.style != "plain" and "style" not in prompt.header.inputs:
            raise ConfigError(
                f"The prompt {prompt.label} does not say how to answer in the style "
                f"{self.config.style!r}. Add the input 'style' to its file, or set "
                'policy.chat.style = "plain".'
            )

    def greedy(self) -> ChatAgent:
        """The same agent without randomness, for evaluation."""
        config = self.config.model_copy(update={"temperature": 0.0})
        return ChatAgent(self.policy, self.prompt, config)

    def act(self, views: Sequence[View]) -> list[Act]:
        """One act per view, from one batch of requests.

        Raises:
            ModelError: if the history is ``causal``, and the policy prompts with other tokens than
                it has sampled: a conversation was tokenised anew.
            ConfigError: if cues are to be stripped, and the policy does not say which tokens are
                left to be trained on.
        """
        left = [self._tokens_left(view) for view in views]
        live = [index for index, tokens in enumerate(left) if tokens > 0]
        acts = [Act("", end=EndReason.MAX_TOKENS)] * len(views)
        requests = [self._request(views[index], left[index]) for index in live]
        answers = self.policy.generate(requests) if requests else []
        for index, request, completion in zip(live, requests, answers, strict=True):
            self._check_stripped(request, completion)
            if self.config.history == "causal":
                _check_goes_on(views[index], completion)
            acts[index] = self._act(completion)
        return acts

    def messages(self, view: View) -> tuple[Message, ...]:
        """The chat that the policy is asked to go on with in a view."""
        config = self.config
        conversation = history.Conversation(view, self.prompt, config.thinking, config.style)
        match config.history:
            case "causal":
                return history.causal(conversation)
            case "reasoning":
                return history.reasoning(conversation)
            case "window":
                return history.window(conversation, config.window_turns)
            case "recent":
                return history.recent(conversation, config.window_turns)
            case "self_managed":
                return history.self_managed(conversation, config.managed_chars)

    def demonstrate(self, view: View, action: str) -> TokenDecision | None:
        """The decision to answer a view with an action, to be imitated; None if it has no room.

        Raises:
            ConfigError: if the policy has no tokens.
        """
        if not isinstance(self.policy, Demonstrable):
            raise ConfigError(
                f"{type(self.policy).__name__} cannot put an action into tokens, so it cannot be "
                "shown one to imitate. Use a policy that is trained here."
            )
        text = answer_of(action, self.prompt.header.answer)
        return self.policy.encode_demonstration(self._stripped(view) or self.messages(view), text)

    def _request(self, view: View, max_tokens: int) -> Prompt:
        sampling = Sampling(self.config.temperature, max_tokens)
        return Prompt(
            self.messages(view),
            sampling,
            trained=self._stripped(view),
            template=self.prompt.label,
        )

    def _stripped(self, view: View) -> tuple[Message, ...] | None:
        """The chat that is trained on; None if that is what the policy is asked to go on with."""
        kept = tuple(cue for cue in view.cues if not cue.strip)
        return None if kept == view.cues else self.messages(replace(view, cues=kept))

    def _check_stripped(self, request: Prompt, completion: Completion) -> None:
        """Make sure that nothing is trained on a cue that was to be stripped."""
        decision = completion.decision
        if request.trained is None or not isinstance(decision, TokenDecision):
            return
        if decision.trained_prompt_ids is None:
            raise ConfigError(
                f"Cues are to be stripped, but {type(self.policy).__name__} does not give the "
                "trained_prompt_ids of Prompt.trained. Use a policy that does, or cues with "
                "strip=False."
            )

    def _act(self, completion: Completion) -> Act:
        if completion.finish is Finish.OVERFLOW:
            return Act("", end=EndReason.CONTEXT_OVERFLOW)
        if completion.finish is Finish.UNSENT:
            return Act("", end=EndReason.MAX_TOKENS)
        if completion.finish is Finish.LOST:
            return Act("", said=completion.text, end=EndReason.MODEL_LOST)
        said = completion.text
        if self.config.history == "self_managed":
            said = history.without_marks(said)
        if self.config.style == "react":
            said = without_thought_line(said)
        action = action_of(said, self.prompt.header.answer)
        return Act(action, completion.decision, completion.text, usage=completion.usage)

    def _tokens_left(self, view: View) -> int:
        """Most tokens of the next answer; 0 or less if the episode's are spent."""
        config = self.config
        if config.max_episode_tokens is None:
            return config.max_answer_tokens
        spent = sum(len(turn.decision.ids) for turn in view.history if turn.decision is not None)
        return min(config.max_answer_tokens, config.max_episode_tokens - spent)


def _check_goes_on(view: View, completion: Completion) -> None:
    """Make sure that a prompt begins with the earlier prompt and what was sampled after it."""
    decisions = (turn.decision for turn in reversed(view.history) if turn.decision is not None)
    earlier = next(decisions, None)
    if earlier is None or not isinstance(completion.decision, TokenDecision):
        return
    so_far, prompt = earlier.prompt_ids + earlier.ids, completion.decision.prompt_ids
    if prompt[: len(so_far)] == so_far:
        return
    pairs = zip(so_far, prompt, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), len(prompt))
    raise ModelError(
        f"The prompt of step {len(view.history) + 1} differs from what was sampled before, from "
        f"token {place} on. A policy must put the ids of a message into a prompt as they are."
    )
