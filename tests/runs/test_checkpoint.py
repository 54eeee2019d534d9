from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coevo_gym.core.errors import StoreError
from coevo_gym.store.checkpoint import Checkpoints
from tests.runs.test_folder import full


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "arm", keep=2)


def state(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(step).bit_generator.state
    return {"weights": torch.full((3,), float(step)), "rng": rng, "text": "ä" * step, "none": None}


def test_the_latest_checkpoint_is_loaded(checkpoints: Checkpoints) -> None:
    assert checkpoints.load_latest() is None
    for step in (1, 2, 10):
        checkpoints.save(step, state(step))
    checkpoint = checkpoints.load_latest()
    assert checkpoint is not None
    assert checkpoint.step == 10
    assert torch.equal(checkpoint.state["weights"], torch.full((3,), 10.0))
    assert {**checkpoint.state, "weights": None} == {**state(10), "weights": None}
    assert len(list(checkpoints.folder.iterdir())) == 2


def test_saving_a_step_again_replaces_its_checkpoint(checkpoints: Checkpoints) -> None:
    checkpoints.save(1, state(1))
    checkpoints.save(1, {**state(1), "more": 1})
    checkpoint = checkpoints.load_latest()
    assert checkpoint is not None
    assert checkpoint.state["more"] == 1
    assert len(list(checkpoints.folder.iterdir())) == 1


def test_saving_a_step_again_does_not_delete_the_previous_step(checkpoints: Checkpoints) -> None:
    first = checkpoints.save(1, state(1))
    replaced = checkpoints.save(2, state(2))
    for more in (1, 2, 2):
        latest = checkpoints.save(2, {**state(2), "more": more})
    assert set(checkpoints.folder.iterdir()) == {first, latest}
    assert not replaced.exists()
    latest.write_bytes(b"damaged")
    checkpoint = checkpoints.load_latest()
    assert checkpoint is not None
    assert checkpoint.step == 1


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    checkpoints.save(1, state(1))
    path = checkpoints.save(2, state(2))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data) if damage == "flipped" else bytes(data[:-10]))
    with caplog.at_level(logging.WARNING):
        checkpoint = checkpoints.load_latest()
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert f"checkpoint={path} is damaged" in caplog.text
    checkpoints.save(2, state(2))
    again = checkpoints.load_latest()
    assert again is not None
    assert again.step == 2


def test_a_full_disk_leaves_the_previous_checkpoint(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.save(1, state(1))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        checkpoints.save(2, state(2))
    monkeypatch.undo()
    checkpoint = checkpoints.load_latest()
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert len(list(checkpoints.folder.iterdir())) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has it")
@pytest.mark.parametrize("size", [3, 1_000_000])
def test_a_disk_that_fills_up_during_a_save_is_the_reported_cause(
    checkpoints: Checkpoints, size: int
) -> None:
    first = checkpoints.save(1, state(1))
    # The kernel answers every write to this device with ENOSPC.
    (checkpoints.folder / ".checkpoint.part").symlink_to("/dev/full")
    with pytest.raises(StoreError, match=r"arm: No space left on device\..*Free some space"):
        checkpoints.save(2, {"weights": torch.zeros(size)})
    assert list(checkpoints.folder.iterdir()) == [first]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_file_system_that_fills_up_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(mounted)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        checkpoints = Checkpoints(mounted / "arm")
        first = checkpoints.save(1, {"weights": torch.zeros(200_000)})
        with pytest.raises(StoreError, match="No space left on device"):
            checkpoints.save(2, {"weights": torch.zeros(200_000)})
        checkpoint = checkpoints.load_latest()
        assert checkpoint is not None
        assert checkpoint.path == first
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_only_plain_values_are_loaded_from_a_checkpoint(checkpoints: Checkpoints) -> None:
    checkpoints.save(1, {"path": Path("x")})
    with pytest.raises(StoreError, match="cannot be loaded: Weights only load failed"):
        checkpoints.load_latest()
