"""What TensorBoard reads from the files that its sink writes."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests import needs
from tests.runs.sinks.test_sending import lines, sinks

pytestmark = [
    pytest.mark.skipif(bool(needs.sinks()), reason=needs.sinks()),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_the_tensorboard_reader_finds_every_number_once(tmp_path: Path) -> None:
    killed = sinks(tmp_path, "tensorboard")
    for line in lines(0, 5)[:-1]:
        killed.send(line)
    with sinks(tmp_path, "tensorboard") as resumed:  # from the checkpoint of step 3
        for line in lines(4, 6):
            resumed.send(line)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    reader = EventAccumulator(str(tmp_path / "tensorboard" / "mine")).Reload()
    assert {"train/loss", "curriculum/pool_size", "eval/success_rate"} <= set(
        reader.Tags()["scalars"]
    )
    assert [point.step for point in reader.Scalars("train/loss")] == list(range(7))
    rates = reader.Scalars("eval/success_rate")
    assert [point.step for point in rates] == [0, 2, 4, 6]
    assert [point.value for point in rates] == pytest.approx([0.0, 0.2, 0.4, 0.6])
    assert [p.value for p in reader.Scalars("evolution/accepted")] == [1, 2, 1, 2, 1, 2]
