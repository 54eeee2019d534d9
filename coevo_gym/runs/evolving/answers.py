"""Counts of model answers: used, repaired, or replaced by a rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coevo_gym.core.spend import ANSWERS, Usage

Answers = Mapping[str, int]
"""Counts of answers that were used, repaired or replaced; the keys are ``ANSWERS``."""


def count_answers(usage: Mapping[str, Usage]) -> dict[str, dict[str, int]]:
    """Count a model's answers for each purpose, excluding exploration steps.

    Example:
        >>> abstract = Usage(calls=3, used=1, by_rule=1)
        >>> count_answers({"abstract": abstract, "explore": Usage(calls=9)})
        {'abstract': {'used': 1, 'repaired': 0, 'by_rule': 1}}
    """
    return {
        purpose: {name: getattr(used, name) for name in ANSWERS}
        for purpose, used in sorted(usage.items())
        if used.questions
    }


def describe_answers(answers: Mapping[str, Answers]) -> str:
    """Summarise a model's answers in one line, grouped by purpose.

    Example:
        >>> describe_answers({"abstract": {"used": 20, "repaired": 3, "by_rule": 1}})
        'abstract: 20 used, 3 repaired, 1 replaced by a rule'
    """
    return "; ".join(
        f"{purpose}: {n['used']:,} used, {n['repaired']:,} repaired, "
        f"{n['by_rule']:,} replaced by a rule"
        for purpose, n in answers.items()
    )


def unusable_answer_warnings(asked_by: Mapping[str, Mapping[str, Answers]]) -> Iterator[str]:
    """Yield a warning for each type of question (such as judging) with mostly unusable answers.

    Example:
        >>> counts = {"used": 1, "repaired": 0, "by_rule": 3}
        >>> (one,) = unusable_answer_warnings({"mine": {"judge": counts}})
        >>> one[:79]
        'Most model answers for "judge" were unusable, and a rule took their place: mine'
    """
    by_purpose: dict[str, list[str]] = {}
    for who, answers in asked_by.items():
        for purpose, n in answers.items():
            of = sum(n.values())
            if 2 * n["by_rule"] > of:
                by_purpose.setdefault(purpose, []).append(f"{who} {n['by_rule']:,} of {of:,}")
    for purpose, shares in by_purpose.items():
        yield (
            f'Most model answers for "{purpose}" were unusable, and a rule took their place: '
            f"{', '.join(shares)}. The model has hardly contributed. Try a stronger model, or "
            "raise explorer.max_answer_tokens."
        )
