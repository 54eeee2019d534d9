"""A gate that asks a model whether a task's reference solution fulfils the instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.evolution import Exchange, Proposal
from coevo_gym.core.inquiry import Advisor, Answer, Inquiry
from coevo_gym.core.seams import Sampling
from coevo_gym.core.spaces import clean_text
from coevo_gym.curricula.gates.candidate import Candidate, Rejected
from coevo_gym.curricula.growth.evidence import MAX_TEXT

JUDGE = "coevolve/judge"
"""Name of the judge's prompt file."""
PURPOSE = "judge"
EVIDENCE_CHARS = 24_000
"""Maximum total length of the steps shown to the judge, in characters."""
_ACTION_CHARS = 2_000
_MIN_CHARS = 200
_SAMPLING = Sampling(temperature=0.0, max_tokens=512)


class Judgement(BaseModel):
    """A judge's verdict on whether actions satisfy an instruction.

    Attributes:
        success: True if the actions fulfil the request.
        reason: the reason, in one or two sentences.
    """

    success: bool
    reason: str = ""


def ask_judge(
    advisor: Advisor,
    candidate: Candidate,
    benchmark: Benchmark,
    done: Sequence[Exchange],
    *,
    opening: str = "",
    reference: Sequence[str] = (),
) -> Answer[Judgement]:
    """Ask a judge whether the given actions satisfy the instruction of the candidate's task.

    The opening is the observation before the first action. If ``done`` contains other actions, pass
    actions that are known to be correct as the reference.
    """
    proposal = candidate.proposal
    request = {
        "request": benchmark.evidence(candidate.the_task).said,
        "done_when": proposal.done_when if isinstance(proposal, Proposal) else "",
        "opening": clean_text(opening, MAX_TEXT),
        "reference": [clean_text(action, _ACTION_CHARS) for action in reference],
    }
    inquiry = Inquiry(
        prompt=JUDGE,
        schema=Judgement,
        inputs={**request, "steps": _judge_inputs(done, EVIDENCE_CHARS)},
        purpose=PURPOSE,
        sampling=_SAMPLING,
        shorten=lambda: {**request, "steps": _judge_inputs(done, EVIDENCE_CHARS // 2)},
    )
    (answer,) = advisor.ask([inquiry])
    return answer


@dataclass(frozen=True, slots=True)
class JudgeGate:
    """A gate that asks a model whether the reference solution's effects satisfy the instruction.

    The answer is stored but never used as a reward. Without an answer, the candidate passes.
    """

    benchmark: Benchmark
    advisor: Advisor
    name: str = "judge"

    def check(self, candidate: Candidate) -> Candidate:
        """Ask the judge about the reference solution; see :class:`Gate`."""
        task, replay, steps = candidate.the_task, candidate.replay, 0
        if replay is None:
            replay = self.benchmark.replay(task, task.solution)
            steps = len(replay.errors)
        done = [
            Exchange(action=action, observation=observation, error_kind=error)
            for action, observation, error in zip(
                task.solution, map(_clean, replay.shown), replay.errors, strict=False
            )
        ]
        answer = ask_judge(
            self.advisor, candidate, self.benchmark, done, opening=_clean(replay.opening)
        )
        if answer.value is None:
            remark = f"no answer: {answer.problem}"
        elif not answer.value.success:
            raise Rejected(f"the judge rejects it: {answer.value.reason}", env_steps=steps)
        else:
            remark = answer.value.reason or "success"
        return replace(candidate, said=remark, env_steps=candidate.env_steps + steps)


def _judge_inputs(done: Sequence[Exchange], cap: int) -> list[Mapping[str, Any]]:
    """Return all steps, with observations truncated equally so that the judge sees every step."""
    share = max(_MIN_CHARS, cap // max(1, len(done)))
    return [
        {
            "number": number,
            "action": clean_text(each.action, _ACTION_CHARS),
            "observation": clean_text(each.observation, share),
        }
        for number, each in enumerate(done, start=1)
    ]


def _clean(text: str) -> str:
    return clean_text(text, EVIDENCE_CHARS)
