"""A prompt of an inquiry, its schema, and helpers that tests of asking models share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coevo_gym.core.inquiry import Inquiry
from coevo_gym.core.seams import Sampling
from coevo_gym.core.task import FrozenModel, Text
from coevo_gym.prompts.inquiry import InquiryPrompt, parse_inquiry

TEXT = """{#
kind = "inquiry"
name = "kettle/summary"
version = 3
schema = "Summary"
inputs = ["story"]
#}
{% block system %}You study kettles. Answer with one JSON object.{% endblock %}
{% block user %}What happened: {{ story }}{% endblock %}
{% block repair %}Unusable, since {{ error }}. Tell it again: {{ story }}{% endblock %}
"""
GOOD = '{"summary": "It boiled.", "confidence": 0.75}'


class Part(FrozenModel):
    name: Text


class Summary(FrozenModel):
    summary: Text
    confidence: float
    parts: tuple[Part, ...] = ()


def load_prompt(name: str) -> InquiryPrompt:
    assert name == "kettle/summary"
    return parse_inquiry(TEXT)


def make_inquiry(
    story: str = "steam", *, shorter: str | None = None, purpose: str = "", max_tokens: int = 32
) -> Inquiry[Summary]:
    def shorten() -> Mapping[str, Any]:
        return {"story": shorter}

    return Inquiry(
        "kettle/summary",
        Summary,
        {"story": story},
        purpose,
        Sampling(0.0, max_tokens),
        shorten if shorter is not None else None,
    )
