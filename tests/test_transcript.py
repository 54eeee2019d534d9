"""Transcripts: the exact messages of an episode, each stored once."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.trajectory import EndReason, EvalTrajectory, Step
from coevo_gym.core.trajectory_json import eval_trajectory_from_json, eval_trajectory_to_json
from coevo_gym.core.transcript import NOTHING, ModelCall, Transcript

MESSAGES = st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.text(max_size=3))
CALLS = st.builds(
    ModelCall,
    st.lists(MESSAGES, max_size=4).map(tuple),
    st.text(max_size=3),
    st.sampled_from(["", "[1]", "[2]"]),
    st.integers(0, 9),
    st.integers(0, 9),
)


@given(st.lists(st.none() | CALLS, max_size=6))
def test_a_transcript_contains_every_prompt_and_answer(calls: list[ModelCall | None]) -> None:
    transcript = Transcript.of(calls)
    if transcript is None:
        assert not any(calls)
        return
    assert len(set(transcript.messages)) == len(transcript.messages)
    for step, call in enumerate(calls):
        asked = call or ModelCall((), "")
        assert transcript.prompt_at(step) == asked.messages
        assert transcript.tokens[step] == (asked.prompt_tokens, asked.completion_tokens)
        offered = transcript.offered[step]
        assert ("" if offered == NOTHING else transcript.tools[offered]) == asked.tools
        if call is not None:
            assert transcript.messages[transcript.answers[step]] == ("assistant", call.answer)
    seen = [part.first + n for part in transcript.parts() for n in range(len(part.answers))]
    assert seen == [step for step, call in enumerate(calls) if call is not None]
    for part in transcript.parts():
        chat = list[int]()
        for n, (new, answer) in enumerate(zip(part.chats, part.answers, strict=True)):
            chat += new
            assert tuple(chat) == transcript.prompts[part.first + n]
            chat.append(answer)


def test_a_transcript_survives_json_and_is_missing_in_older_episodes() -> None:
    call = ModelCall((("system", "Play."), ("user", "Where?")), "here", "[]", 5, 1)
    whole = EvalTrajectory(
        task_id="t",
        steps=(Step("Where?", "Where?", "here"),),
        score=0.0,
        success=False,
        end_reason=EndReason.FAILED,
        transcript=Transcript.of([call]),
    )
    data = json.loads(json.dumps(eval_trajectory_to_json(whole)))
    assert eval_trajectory_from_json(data) == whole
    del data["transcript"]
    assert eval_trajectory_from_json(data) == replace(whole, transcript=None)
    assert "transcript" not in eval_trajectory_to_json(replace(whole, transcript=None))


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompts": ((0, 7),)},
        {"prompts": ((-2,),)},
        {"answers": (5,)},
        {"answers": ()},
        {"offered": (3,)},
        {"tokens": ((1, 1), (1, 1))},
    ],
)
def test_a_transcript_with_wrong_indices_is_refused(wrong: dict[str, object]) -> None:
    good = Transcript((("user", "a"), ("assistant", "b")), ((0,),), (1,), (), (NOTHING,), ((0, 0),))
    with pytest.raises(ValueError, match="Transcript"):
        replace(good, **wrong)  # type: ignore[arg-type]
