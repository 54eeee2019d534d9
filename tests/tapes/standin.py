"""Rules in place of a model, at the seams where an explorer asks one, and as a policy on a tape."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from coevo_gym.core.evolution import Exchange
from coevo_gym.core.inquiry import Advisor, Answer, Inquiry
from coevo_gym.core.seams import Act, Agent, Completion, Request
from coevo_gym.core.trajectory import View
from coevo_gym.curricula.explore.abstract import Idea, Ideas
from coevo_gym.curricula.explore.summarise import BriefAnswer
from coevo_gym.prompts import AnswerForm
from coevo_gym.prompts.answers import answer_of
from tests.standins.walks import Propose, Rule

BRIEF = BriefAnswer(summary="It was done in another way than was asked for (step 1).")


class AdvisesByRule:
    """An advisor that sums up each rollout alike, and proposes by a rule.

    Args:
        propose: makes proposals out of a walk.
    """

    def __init__(self, propose: Propose) -> None:
        self._propose = propose

    def ask(self, inquiries: Sequence[Inquiry[Any]]) -> list[Answer[Any]]:
        """One answer each."""
        return [Answer(self.answer(inquiry)) for inquiry in inquiries]

    def answer(self, inquiry: Inquiry[Any]) -> BriefAnswer | Ideas:
        """What it says about an inquiry."""
        if inquiry.schema is BriefAnswer:
            return BRIEF
        ideas = []
        for walk in inquiry.inputs["walks"]:
            fields = Exchange.model_fields
            exchanges = [Exchange(**{k: step[k] for k in fields}) for step in walk["steps"]]
            for proposal in self._propose(exchanges):
                ideas.append(Idea(walk=walk["number"], **proposal.model_dump()))
        return Ideas(tasks=tuple(ideas))


class StandIn:
    """A policy that acts by one rule and proposes by another; its answers can go on a tape.

    What it is asked about it is told beforehand, by :class:`ActsBy` and :class:`AsksAbout`.

    Args:
        rule: says what to do in a view.
        propose: makes proposals out of a walk.
        form: how its answers hold an action.
    """

    def __init__(self, rule: Rule, propose: Propose, form: AnswerForm) -> None:
        self._rule, self._form = rule, form
        self._advice = AdvisesByRule(propose)
        self._rng = np.random.default_rng(0)
        self.about: deque[View | Inquiry[Any]] = deque()

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One answer for each request, about what comes next of what it was told."""
        return [Completion(self._text(self.about.popleft()), None) for _ in requests]

    def _text(self, about: View | Inquiry[Any]) -> str:
        if isinstance(about, View):
            return answer_of(self._rule(about, self._rng), self._form)
        return self._advice.answer(about).model_dump_json(exclude_defaults=True)


class ActsBy:
    """An agent whose model is told which views it is about to be asked about."""

    def __init__(self, agent: Agent, model: StandIn) -> None:
        self._agent, self._model = agent, model

    def act(self, views: Sequence[View]) -> Sequence[Act]:
        self._model.about.extend(views)
        return self._agent.act(views)


class AsksAbout:
    """An advisor whose model is told which inquiries it is about to be asked."""

    def __init__(self, advisor: Advisor, model: StandIn) -> None:
        self._advisor, self._model = advisor, model

    def ask(self, inquiries: Sequence[Inquiry[Any]]) -> list[Answer[Any]]:
        self._model.about.extend(inquiries)
        return self._advisor.ask(inquiries)
