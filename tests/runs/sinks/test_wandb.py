"""What Weights & Biases keeps offline, read back with its own reader."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.runs.sinks.test_sending import lines, sinks

pytestmark = [
    pytest.mark.skipif(bool(needs.sinks()), reason=needs.sinks()),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


BLOCK, HEAD = 32_768, 7
FULL, LAST = 1, 4


def records(file: Path) -> list[Any]:
    """All records of an offline run, which are kept as LevelDB's log keeps them."""
    from wandb.proto import wandb_internal_pb2

    content, place, parts, entries = file.read_bytes(), HEAD, b"", []
    assert content.startswith(b":W&B")
    while place < len(content):
        if BLOCK - place % BLOCK < HEAD:  # too little is left of this block
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + HEAD : place + HEAD + length]
        place += HEAD + length
        if kind in (FULL, LAST):
            entries.append(wandb_internal_pb2.Record.FromString(parts))
            parts = b""
    return entries


def test_an_offline_run_contains_every_number_once_and_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("sys.argv", ["coevo", "--set", "explorer.key=a-secret-argument"])
    for first, last in ((0, 4), (3, 6)):  # the second life begins at the checkpoint of step 2
        with sinks(tmp_path, "wandb", learner={"lr": 0.25}) as sending:
            for line in lines(first, last):
                sending.send(line)
    import wandb

    wandb.teardown()  # its own process writes the files, also after a run is over
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    rows: dict[int, dict[str, Any]] = {}
    ids = set()
    for file in files:
        assert b"a-secret-argument" not in file.read_bytes()
        assert b"0123456789" * 4 not in file.read_bytes()
        for record in records(file):
            if record.HasField("run"):
                ids.add(record.run.run_id)
                assert record.run.run_group == "a-run"
                config = {
                    item.key: json.loads(item.value_json) for item in record.run.config.update
                }
                assert config["learner"] == {"lr": 0.25}
            if record.HasField("history"):
                row = {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                }
                assert not rows.get(row["_step"], {}).keys() & (
                    row.keys() - {"_step", "_timestamp", "_runtime"}
                )
                rows.setdefault(row["_step"], {}).update(row)
    assert len(ids) == 1
    assert sorted(rows) == list(range(7))
    assert all(row["train/loss"] == 1.0 for row in rows.values())
    assert {step: row["eval/success_rate"] for step, row in rows.items() if step % 2 == 0} == (
        pytest.approx({0: 0.0, 2: 0.2, 4: 0.4, 6: 0.6})
    )
