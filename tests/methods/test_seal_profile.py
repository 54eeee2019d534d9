"""The memory of failures: what it counts, when a window is over, and its state."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.notes import NO_NOTES, Note, Notes
from coevo_gym.core.seams import Memory
from coevo_gym.methods.seal.profile import (
    UTILITIES,
    FailureProfile,
    ProfileConfig,
    WindowLabel,
    turn_notes,
)


def notes_of(*episodes: tuple[list[str], bool]) -> Notes:
    """The notes of a step with these episodes: the labels of their turns, and their success."""
    return Notes(
        note
        for index, (labels, success) in enumerate(episodes)
        for note in turn_notes(labels, task_id="t", group_id="g", index=index, success=success)
    )


def test_labels_are_counted_with_the_success_of_their_episodes() -> None:
    profile: FailureProfile = FailureProfile()
    as_memory: Memory = profile
    as_memory.note(notes_of((["pass", "state_mismatch", "not_reached"], False), (["pass"], True)))
    expected = {"pass": WindowLabel(2, 0.5), "state_mismatch": WindowLabel(1, 0.0)}
    assert profile.window_or_total == profile.total == expected
    assert profile.metrics()["labelled_turns"] == 3
    assert profile.metrics()["share_pass"] == 2 / 3


def test_other_notes_and_unknown_labels_are_ignored() -> None:
    profile = FailureProfile()
    other = Note(kind="attribution", task_id="t", group_id="g", index=0, label="pass")
    unheard = Note(kind="turn_label", task_id="t", group_id="g", index=0, label="unheard of")
    profile.note(Notes([other, unheard]))
    assert profile.total == {}
    assert profile.metrics() == {"evolutions": 0.0, "cues_on": 0.0, "labelled_turns": 0.0}


def test_a_common_failure_switches_its_cue_on_and_a_rare_one_off() -> None:
    profile = FailureProfile(ProfileConfig(evolve_every_steps=2))
    common = notes_of(*[(["argument_mismatch"], False)] * 5)
    profile.note(common)
    assert (profile.on, profile.evolutions) == ((), 0)
    profile.note(common)
    assert (profile.on, profile.evolutions) == (("argument_mismatch",), 1)
    assert profile.utilities["argument_mismatch"] > UTILITIES["argument_mismatch"]
    for _ in range(2):
        profile.note(notes_of((["argument_mismatch"], False), *[(["state_mismatch"], False)] * 9))
    assert (profile.on, profile.evolutions) == (("state_mismatch",), 2)


def test_an_empty_window_falls_back_to_the_total() -> None:
    profile = FailureProfile(ProfileConfig(evolve_every_steps=1))
    profile.note(notes_of(*[(["state_mismatch"], False)] * 8))
    assert profile.on == ("state_mismatch",)
    assert profile.window_or_total == {"state_mismatch": WindowLabel(8, 0.0)}
    profile.note(NO_NOTES)
    assert (profile.on, profile.evolutions) == (("state_mismatch",), 2)


labels = st.sampled_from([*UTILITIES, "not_reached", "gt_error"])
steps = st.lists(
    st.lists(st.tuples(st.lists(labels, max_size=4), st.booleans()), max_size=6), max_size=8
)


@given(steps, st.integers(0, 8), st.integers(1, 4))
def test_a_loaded_profile_continues_as_if_never_interrupted(
    episodes: list[list[tuple[list[str], bool]]], cut: int, every: int
) -> None:
    config = ProfileConfig(evolve_every_steps=every, count=2)
    whole, first, second = (FailureProfile(config) for _ in range(3))
    for step in episodes:
        whole.note(notes_of(*step))
    for step in episodes[:cut]:
        first.note(notes_of(*step))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict()
    for step in episodes[cut:]:
        second.note(notes_of(*step))
    assert second.state_dict() == whole.state_dict()
    assert second.metrics() == whole.metrics()
    assert (second.on, second.utilities) == (whole.on, whole.utilities)
    assert (second.window_or_total, second.total) == (whole.window_or_total, whole.total)


@given(steps)
def test_every_label_is_counted_exactly_once(episodes: list[list[tuple[list[str], bool]]]) -> None:
    profile = FailureProfile(ProfileConfig(evolve_every_steps=3))
    for step in episodes:
        profile.note(notes_of(*step))
    counts = Counter(
        label
        for step in episodes
        for label_names, _ in step
        for label in label_names
        if label in UTILITIES
    )
    assert {label: seen.turns for label, seen in profile.total.items()} == counts
    assert all(0.0 <= seen.mean <= 1.0 for seen in profile.total.values())
    assert profile.evolutions == len(episodes) // 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("evolve_every_steps", 2),
        ("count", 30),
        ("prevalence", 0.9),
        ("keep", 0.9),
        ("reward", 0.0),
        ("top", 0),
        ("alpha", 0.1),
        ("beta", 1.0),
        ("confident", 1),
    ],
)
def test_each_setting_changes_the_cues_or_the_utilities(name: str, value: float) -> None:
    def after(**settings: float) -> tuple[object, ...]:
        profile = FailureProfile(ProfileConfig(**{"evolve_every_steps": 1, **settings}))
        for arguments, states in ((12, 9), (8, 100)):
            labels = ["argument_mismatch"] * arguments + ["state_mismatch"] * states
            profile.note(notes_of(*(([label], False) for label in labels), (["pass"], True)))
        return profile.on, profile.utilities

    assert after(**{name: value}) != after()
