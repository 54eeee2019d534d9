"""An agent that lets a language model act in an env through a chat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Literal, Protocol, runtime_checkable

from pydantic import Field, model_validator

from coevo_gym.agents.chat import history
from coevo_gym.core.errors import BudgetSpent, ConfigError, ModelError
from coevo_gym.core.notations import NOTATIONS
from coevo_gym.core.seams import (
    Act,
    ActStream,
    AnswerStream,
    Completion,
    Finish,
    Message,
    Policy,
    Prompt,
    Sampling,
    StreamingPolicy,
)
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.spend import NO_USAGE
from coevo_gym.core.task import FrozenModel
from coevo_gym.core.thoughts import text_without_thoughts
from coevo_gym.core.trajectory import EndReason, TokenDecision, View
from coevo_gym.core.transcript import ModelCall
from coevo_gym.prompts import AnswerStyle, PromptTemplate
from coevo_gym.prompts.answers import action_of, answer_of, translate_calls, without_thought_line
from coevo_gym.prompts.loader import FORMS

_MEMORY_CHARS = 4_000
"""Maximum length, in characters, of the model's text about earlier steps."""


class ChatConfig(FrozenModel):
    """Settings for chatting with a language model."""

    history: Literal["causal", "reasoning", "window", "recent", "self_managed", "prompt"] = "causal"
    """Part of the episode that the model sees: everything (``causal``), everything except earlier
    thoughts (``reasoning``), the task, a list of older actions and the most recent steps
    (``window``), only the most recent steps (``recent``), or the steps that the model chooses to
    keep (``self_managed``). With ``prompt``, each step is a single message without a chat before
    it, and the prompt file shows the most recent steps in its text; it must declare the input
    ``past``."""
    window_turns: int | None = Field(default=4, ge=0)
    """Number of past steps shown in full if ``history`` is ``window``, ``recent`` or ``prompt``;
    None for as many as fit into 24,000 characters."""
    managed_chars: int = Field(default=24_000, ge=1)
    """Prompt length in characters above which ``self_managed`` asks the model to shorten the
    history."""
    memory: Literal["rule", "model"] = "rule"
    """Method for shortening the history if ``history`` is ``window`` or ``self_managed``. With
    ``rule``, ``window`` lists older actions, and ``self_managed`` follows commands in the model's
    answers. With ``model``, the model is asked for notes (``window``) or for steps to drop or
    replace (``self_managed``). These extra requests are sampled greedily, are not used for
    training, and do not count towards ``max_episode_tokens``."""
    thinking: bool = False
    """True to let the model think before it answers. The prompt then tells it to think first. In a
    run, this setting also enables thinking in the model's chat template."""
    style: AnswerStyle = "plain"
    """Answer style. With ``react``, the prompt asks for a ``Thought: …`` line before each action.
    Unlike text in ``<think>`` tags, this line stays in the history. ``react`` requires
    ``thinking = false`` and a prompt file that declares the ``style`` input. The other styles are
    for envs with tools: the model's own chat template describes the tools, and the model calls
    them in ``hermes`` (Qwen2.5, Qwen3, Hermes), ``qwen3_coder``, ``llama3`` (3.1) or ``pythonic``
    (Llama 3.2 and 4) notation. For an endpoint, ``openai`` sends the tools with each request.
    They need ``history = "causal"`` or ``"reasoning"``."""
    max_answer_tokens: int = Field(default=512, ge=1)
    """Maximum number of tokens per answer, including thinking tokens."""
    max_episode_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of sampled tokens per episode; None for no limit. The limit has no effect on
    policies that do not return token ids."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 is greedy."""

    @model_validator(mode="after")
    def _check_thinking_fits_style(self) -> ChatConfig:
        if self.style == "react" and self.thinking:
            raise ValueError(
                "style = 'react' puts the model's thoughts in its answer, but thinking = true puts "
                "them in <think> tags. Set thinking = false, or style = 'plain'."
            )
        return self

    @model_validator(mode="after")
    def _check_history_fits_style(self) -> ChatConfig:
        if self.style in NOTATIONS and self.history not in ("causal", "reasoning"):
            raise ValueError(
                f"With style = {self.style!r}, a tool result must follow its call, but history = "
                f"{self.history!r} drops steps. Set history = 'causal' or 'reasoning'."
            )
        return self

    @model_validator(mode="after")
    def _check_memory_fits_history(self) -> ChatConfig:
        if self.memory == "model" and self.history not in ("window", "self_managed"):
            raise ValueError(
                f"memory = 'model' has no effect with history = {self.history!r}. Set history = "
                "'window' or 'self_managed', or memory = 'rule'."
            )
        return self


@runtime_checkable
class Demonstrable(Protocol):
    """A policy that can convert a given answer to a decision to train on."""

    def encode_demonstration(
        self, messages: Sequence[Message], text: str, tools: str = ""
    ) -> TokenDecision | None:
        """Return a decision that answers ``messages`` with ``text``; None if the chat is too long.

        Its log-probabilities are 0. ``tools`` has the same form as in :class:`Prompt`.
        """
        ...


class ChatAgent:
    """An agent that turns views into chats for a policy, and the policy's answers into actions.

    The agent keeps no state: earlier answers and their tokens are in the view's history, where
    :class:`coevo_gym.episodes.Runner` puts them. If an answer is cut off at the token limit, only
    complete actions after its thoughts count; otherwise, the action is "". A prompt that exceeds
    the model's context ends the episode with ``context_overflow``, and a prompt that a content
    filter rejects with ``refused``. Using up the token budget of the episode or of the requests
    ends the episode with ``max_tokens``. If an answer is lost, the episode is lost.

    The policy sees stripped cues, but is trained on the chat without them.

    Args:
        policy: the policy.
        prompt: the prompt of the benchmark.
        config: settings of the chat.

    Raises:
        ConfigError: if the prompt does not support the configured answer style.
    """

    def __init__(
        self, policy: Policy, prompt: PromptTemplate, config: ChatConfig | None = None
    ) -> None:
        self.policy = policy
        self.prompt = prompt
        self.config = config or ChatConfig()
        self._notation = self.config.style if self.config.style in NOTATIONS else ""
        if self._notation and not prompt.header.tools:
            raise ConfigError(
                f"The prompt {prompt.label} has no tools, so a model cannot call any in the style "
                f'{self.config.style!r}. Set policy.chat.style = "plain", or add the header field '
                "tools and the block native to the prompt's file."
            )
        if prompt.shows_past != (self.config.history == "prompt"):
            raise ConfigError(
                f"policy.chat.history is {self.config.history!r}, but the prompt {prompt.label} "
                + (
                    "shows past steps itself. Set policy.chat.history = 'prompt'."
                    if prompt.shows_past
                    else "does not show past steps. Choose another history, or add the input "
                    "'past' to the prompt's file."
                )
            )
        if self.config.style == "react" and "style" not in prompt.header.inputs:
            raise ConfigError(
                f"The prompt {prompt.label} has no instructions for the answer style "
                f"{self.config.style!r}. Add the input 'style' to the prompt's file, or set "
                'policy.chat.style = "plain".'
            )

    def greedy(self) -> ChatAgent:
        """Return a deterministic version of this agent for evaluation."""
        config = self.config.model_copy(update={"temperature": 0.0})
        return ChatAgent(self.policy, self.prompt, config)

    def act(self, views: Sequence[View]) -> list[Act]:
        """Return one ``Act`` per view, using one batch of requests (two if notes are due).

        Raises:
            ModelError: if the history is ``causal`` and the prompt's tokens differ from the sampled
                tokens, because a conversation was tokenised again.
            ConfigError: if cues must be stripped, but the policy does not return the remaining
                tokens to train on.
        """
        turns = [_Turn(self, view) for view in views]
        noting = [turn for turn in turns if turn.takes_notes]
        try:
            notes = self._generate(noting)
        except BudgetSpent as error:  # episodes to which no note is due may have room
            notes = [Completion(str(error), None, Finish.CAPPED)] * len(noting)
        for turn, completion in zip(noting, notes, strict=True):
            turn.receive(completion)
        answering = [turn for turn in turns if turn.request is not None]
        for turn, completion in zip(answering, self._generate(answering), strict=True):
            turn.receive(completion)
        return [turn.act for turn in turns]

    def stream(self) -> AbstractContextManager[ActStream] | None:
        """Return a stream of responses if the policy streams its answers; None otherwise.

        Responses are the same as those of :meth:`act`, with the given seeds.
        """
        return self._stream(self.policy) if isinstance(self.policy, StreamingPolicy) else None

    @contextmanager
    def _stream(self, policy: StreamingPolicy) -> Iterator[ActStream]:
        with policy.stream() as answers:
            yield _ChatStream(self, answers)

    def _generate(self, turns: Sequence[_Turn]) -> Sequence[Completion]:
        requests = [turn.request for turn in turns if turn.request is not None]
        return self.policy.generate(requests) if requests else []

    def messages(self, view: View, memory: str = "") -> tuple[Message, ...]:
        """Return the chat that the policy should continue for a view.

        Args:
            view: the view.
            memory: text that the model has just written about earlier steps; see :class:`Act`.
        """
        config = self.config
        conversation = self._conversation(view, memory)
        match config.history:
            case "causal":
                return history.causal_messages(conversation)
            case "reasoning":
                return history.reasoning_messages(conversation)
            case "window":
                return history.window_messages(conversation, config.window_turns)
            case "recent":
                return history.recent_messages(conversation, config.window_turns)
            case "self_managed":
                return history.self_managed_messages(
                    conversation, config.managed_chars, by_model=config.memory == "model"
                )
            case "prompt":
                return history.single_message(conversation, config.window_turns)

    def _conversation(self, view: View, memory: str = "") -> history.Conversation:
        config = self.config
        return history.Conversation(view, self.prompt, config.thinking, config.style, memory)

    def _notes_request(self, view: View) -> Prompt | None:
        """Return a request for notes on a long history or edits to it, or None if none is due.

        Stripped cues do not affect when a request is due, because the chat to train on has the same
        answer.
        """
        config = self.config
        if config.memory == "rule":
            return None
        conversation = self._conversation(_without_stripped_cues(view))
        if config.history == "window":
            text = history.notes_request(conversation, config.window_turns)
        else:
            text = history.shortening_request(conversation, config.managed_chars)
        if not text:
            return None
        sampling = Sampling(0.0, config.max_answer_tokens)
        return Prompt((Message("user", text),), sampling, purpose="memory", episode=view.episode)

    def decision_for(self, view: View, action: str) -> TokenDecision | None:
        """Return the decision that produces ``action``, or None if the prompt is too long.

        Raises:
            ConfigError: if the policy does not work with tokens.
        """
        if not isinstance(self.policy, Demonstrable):
            raise ConfigError(
                f"{type(self.policy).__name__} cannot convert actions to tokens, so it cannot "
                "imitate them. Use a locally trained policy."
            )
        tools = self._tools(view)
        text = answer_of(action, self.prompt.header.answer, self._notation, tools)
        messages = self._stripped_messages(view) or self.messages(view)
        return self.policy.encode_demonstration(messages, text, tools)

    def _chat_request(
        self, view: View, max_tokens: int, memory: str, seed: tuple[int, ...]
    ) -> Prompt:
        sampling = Sampling(self.config.temperature, max_tokens)
        return Prompt(
            self.messages(view, memory),
            sampling,
            trained=self._stripped_messages(view, memory),
            template=self.prompt.label,
            tools=self._tools(view),
            seed=seed,
            episode=view.episode,
        )

    def _tools(self, view: View) -> str:
        """Return the tools that the model's chat template describes, or "" if there are none.

        A chat keeps the tools that it began with, because each prompt extends the previous one. An
        endpoint gets the current ones.
        """
        if not self._notation:
            return ""
        begun = view.history[0] if view.history and self._notation != "openai" else view
        tools = str(begun.info.get(self.prompt.header.tools, "[]"))
        return "" if tools == "[]" else tools

    def _stripped_messages(self, view: View, memory: str = "") -> tuple[Message, ...] | None:
        """Return the chat to train on, or None if it is the same as the policy's chat."""
        shorter = _without_stripped_cues(view)
        return None if shorter == view else self.messages(shorter, memory)

    def _check_stripped_prompt(self, request: Prompt, completion: Completion) -> None:
        """Check that the tokens to train on do not include cues that must be stripped."""
        decision = completion.decision
        if request.trained is None or not isinstance(decision, TokenDecision):
            return
        if decision.trained_prompt_ids is None:
            raise ConfigError(
                f"Some cues have strip=True, but {type(self.policy).__name__} does not return "
                "trained_prompt_ids (the token ids of Prompt.trained). Use a policy that does, or "
                "cues with strip=False."
            )

    def _to_act(self, completion: Completion, tools: str = "") -> Act:
        if completion.finish is Finish.OVERFLOW:
            return Act("", end=EndReason.CONTEXT_OVERFLOW)
        if completion.finish is Finish.REFUSED:
            return Act("", said=completion.text, end=EndReason.REFUSED)
        if completion.finish is Finish.UNSENT:
            return Act("", end=EndReason.MAX_TOKENS)
        if completion.finish is Finish.CAPPED:
            return Act("", said=completion.text, end=EndReason.CAPPED)
        if completion.finish is Finish.LOST:
            return Act("", said=completion.text, end=EndReason.MODEL_LOST)
        form, cut = self.prompt.header.answer, completion.finish is Finish.LENGTH
        if form not in FORMS:
            action = action_of(completion.text, form)
            return Act(
                action, completion.decision, completion.text, usage=completion.usage, cut=cut
            )
        text = text_without_thoughts(completion)
        if self.config.history == "self_managed" and self.config.memory == "rule":
            text = history.without_marks(text)
        if self.config.style == "react":
            text = without_thought_line(text)
        if self._notation:
            action = translate_calls(text, self._notation, tools, cut=cut)
        else:
            action = action_of(text, form, cut=cut)
        return Act(action, completion.decision, completion.text, usage=completion.usage, cut=cut)

    def _tokens_left(self, view: View) -> int:
        """Return the maximum number of tokens for the next answer (0 or less if none are left)."""
        config = self.config
        if config.max_episode_tokens is None:
            return config.max_answer_tokens
        spent = sum(len(turn.decision.ids) for turn in view.history if turn.decision is not None)
        return min(config.max_answer_tokens, config.max_episode_tokens - spent)


class _Turn:
    """The requests behind one response: for notes about earlier steps, if due, and for the answer.

    Attributes:
        request: the request to answer next; None if the response is ready.
        takes_notes: True if this request is for notes.
        act: the response, when it is ready.
    """

    act: Act

    def __init__(self, agent: ChatAgent, view: View, seed: tuple[int, ...] = ()) -> None:
        self._agent, self._view, self._seed = agent, view, seed
        self._memory = Completion("", None)
        self._max_tokens = agent._tokens_left(view)
        self.takes_notes = False
        self.request: Prompt | None = None
        if self._max_tokens <= 0:
            self.act = Act("", end=EndReason.MAX_TOKENS)
        elif (notes := agent._notes_request(view)) is not None:
            self.request, self.takes_notes = notes, True
        else:
            self._request_answer()

    def receive(self, completion: Completion) -> None:
        """Take the answer to :attr:`request`."""
        if not self.takes_notes:
            self._finish(completion)
            return
        self.takes_notes = False
        if completion.finish is Finish.CAPPED:
            self.request, self.act = None, self._agent._to_act(completion)
            return
        text = ""  # if the model has not answered
        if completion.finish in (Finish.STOP, Finish.LENGTH):
            text = clean_text(text_without_thoughts(completion).strip(), _MEMORY_CHARS)
        self._memory = completion._replace(text=text)
        self._request_answer()

    def _request_answer(self) -> None:
        self.request = self._agent._chat_request(
            self._view, self._max_tokens, self._memory.text, self._seed
        )

    def _finish(self, completion: Completion) -> None:
        agent, request = self._agent, self.request
        assert request is not None
        agent._check_stripped_prompt(request, completion)
        if agent.config.history == "causal":
            _check_extends_previous(self._view, completion)
        act = agent._to_act(completion, request.tools)
        if act.end is None:
            act = act._replace(call=_model_call(request, completion))
        if self._memory.usage is not NO_USAGE:
            act = act._replace(usage=act.usage + self._memory.usage)
        if completion.seconds is not None:
            act = act._replace(answer_s=completion.seconds + (self._memory.seconds or 0.0))
        self.request, self.act = None, act._replace(memory=self._memory.text)


class _ChatStream:
    """Responses that a chat agent prepares together; see :meth:`ChatAgent.stream`."""

    def __init__(self, agent: ChatAgent, answers: AnswerStream) -> None:
        self._agent, self._answers = agent, answers
        self._turns: dict[int, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, key: int, view: View, seed: tuple[int, ...]) -> None:
        turn = self._turns[key] = _Turn(self._agent, view, seed)
        if turn.request is not None:
            self._answers.add(key, turn.request)

    def step(self) -> list[tuple[int, Act]]:
        for key, completion in self._answers.step():
            turn = self._turns[key]
            turn.receive(completion)
            if turn.request is not None:
                self._answers.add(key, turn.request)
        ready = [(key, turn.act) for key, turn in self._turns.items() if turn.request is None]
        for key, _ in ready:
            del self._turns[key]
        return ready


def _model_call(request: Prompt, completion: Completion) -> ModelCall:
    return ModelCall(
        tuple((message.role, message.content) for message in request.messages),
        completion.text,
        request.tools,
        completion.usage.prompt_tokens,
        completion.usage.completion_tokens,
    )


def _without_stripped_cues(view: View) -> View:
    return replace(view, cues=tuple(cue for cue in view.cues if not cue.strip))


def _check_extends_previous(view: View, completion: Completion) -> None:
    """Check that a prompt starts with the previous prompt and the tokens sampled after it."""
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
        f"The prompt for step {len(view.history) + 1} differs from the previously sampled tokens, "
        f"starting at token {place}. A policy must not change a message's token ids."
    )
