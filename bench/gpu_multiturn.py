"""Sampling and learning in conversations of many turns on a GPU.

It has four parts:

    mismatch   compares the log-probabilities of sampler and learner, for SmolLM2 in bf16
    sampling   plays 128 conversations of 12 turns, 64 at a time, with a prefix cache of 4 and of
               40 GiB: tokens per second, tokens fed, read and reused, CUDA graphs, and memory
               against the plan
    update     measures an update on such conversations, and whether graphs survive it
    learning   trains SmolLM2 in the shop: seeds 1 and 2, with recorded and recomputed
               log-probabilities, side by side

sampling and update use the settings of coevolve_appworld_qwen3_4b_h100, and a model with the shape
of Qwen3-4B, random weights and a LoRA adapter of rank 64. If SmolLM2 is not on this machine,
mismatch uses random weights of its shape, and learning is skipped. Nothing is downloaded.

Each part has its own process and time limit. The results are written to the folder --out
(gpu_multiturn.json and a table in gpu_multiturn.md) after every measured row, so a part that fails
or runs out of time keeps its earlier rows, and the next part runs. The exit code is 1 if a part
fails, and 3 if no part can be measured.

Run: python bench/gpu_multiturn.py                            # 11 minutes at most
     python bench/gpu_multiturn.py --parts sampling,update    # some of the parts
     python bench/gpu_multiturn.py --device cpu --shape tiny  # a quick test
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from gpu_parts.results import NOT_RUN, missing_packages, write_texts
from gpu_parts.table import to_markdown
from gpu_parts.targets import evaluate_targets


class Limit(NamedTuple):
    """The time limit of a part in seconds, and the shorter one with --quick."""

    full: int
    quick: int


LIMITS = {
    "mismatch": Limit(60, 40),
    "sampling": Limit(240, 105),
    "update": Limit(120, 65),
    "learning": Limit(240, 0),
}
"""Time limits by part; with --quick, learning is left out."""
_CPU_FACTOR = 10
"""Factor of all limits on a CPU, where the sizes are small but nothing else is known."""
_START_S = 30.0
"""Seconds of a part's limit in which its process starts and loads the model."""


class Job(NamedTuple):
    """A part to measure in its own process.

    Attributes:
        part: name of the part.
        device: ``cuda`` or ``cpu``.
        model: folder or name of the trained model, or ``none``.
        shape: shape of the model with random weights.
        folder: folder for models and runs.
        limit_s: time limit of the part.
    """

    part: str
    device: str
    model: str
    shape: str
    folder: Path
    limit_s: float


class _NotMeasured(Exception):
    """A part cannot be measured on this machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the requested parts; return the exit code."""
    options = _parse_options(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "command": options.command}
    results |= dict.fromkeys(LIMITS, NOT_RUN)
    results |= {"seconds": {}, "ended": {}, "notes": [], "models": []}
    if missing := missing_packages():
        for part in options.parts:
            results[part] = f"skipped: {', '.join(missing)} not installed"
            _print_line(f"{part}: {results[part]}")
        _write_results(options.out, results)
        return 3
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts:
            limit = LIMITS[part].quick if options.quick else LIMITS[part].full
            limit *= _CPU_FACTOR if options.device == "cpu" else 1
            job = Job(part, options.device, options.model, options.shape, Path(folder), limit)
            _run_part(job, options.out, results)
    _print_line(f"written: {options.out / 'gpu_multiturn.md'} and .json")
    if any("failed" in text for text in results["ended"].values()):
        return 1
    return 0 if any(isinstance(results[part], list) for part in LIMITS) else 3


def _run_part(job: Job, out: Path, results: dict[str, Any]) -> None:
    """Measure a part in its own process, and write the results after each row."""
    started, rows = time.monotonic(), list[dict[str, Any]]()
    ended = f"stopped by its time limit of {job.limit_s:g} s"
    with _messages(job) as messages:
        for kind, value in messages:
            if kind == "ended":
                ended = value
            elif kind == "row":
                rows.append(value)
                _print_line(f"{job.part}: {json.dumps(value)}")
            else:
                _add_facts(results, value)
            results[job.part] = rows or NOT_RUN
            results["seconds"][job.part] = round(time.monotonic() - started, 1)
            _write_results(out, results)
    results["seconds"][job.part] = round(time.monotonic() - started, 1)
    results["ended"][job.part] = ended
    results[job.part] = rows or ended
    if ended:
        _print_line(f"{job.part}: {ended}")
    _write_results(out, results)


@contextmanager
def _messages(job: Job) -> Iterator[Iterator[tuple[str, Any]]]:
    """Start a part's process, and yield its messages until its end or its time limit."""
    spawn, deadline = get_context("spawn"), time.monotonic() + job.limit_s
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_measure_part, args=(job, sender))
    process.start()
    sender.close()

    def messages() -> Iterator[tuple[str, Any]]:
        kind = ""
        while kind != "ended" and receiver.poll(max(0.0, deadline - time.monotonic())):
            try:
                kind, value = receiver.recv()
            except EOFError:
                process.join()
                kind, value = "ended", f"failed: exit code {process.exitcode}"
            yield kind, value

    try:
        yield messages()
    finally:
        with suppress(ProcessLookupError):  # it has no group yet
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()
        process.join()


def _add_facts(results: dict[str, Any], facts: dict[str, Any]) -> None:
    """Add what a process reports on the device, its software and its model."""
    for name in ("models", "notes"):
        results[name] += [value for value in facts[name] if value not in results[name]]
    results |= {name: facts[name] for name in ("card", "software")}


def _measure_part(job: Job, sender: Connection) -> None:
    """Measure a part, and send its rows; the last message is how it has ended."""
    os.setpgid(0, 0)
    try:
        for row in _rows(job, sender):
            sender.send(("row", row))
    except _NotMeasured as error:
        sender.send(("ended", f"skipped: {error}"))
    except Exception as error:  # other parts can still be measured
        traceback.print_exc()
        sender.send(("ended", f"failed: {type(error).__name__}: {error}"))
    else:
        sender.send(("ended", ""))


def _rows(job: Job, sender: Connection) -> Iterator[dict[str, Any]]:
    """Yield the rows of a part."""
    import logging

    import torch
    from gpu_parts import card
    from gpu_parts.learning import measure_learning
    from gpu_parts.mismatch import measure_mismatch
    from gpu_parts.multiturn import AMOUNTS, measure_sampling, measure_update
    from gpu_parts.subjects import choose_models
    from transformers.utils.logging import disable_progress_bar

    from coevo_gym.agents.lm.causal_lm import pick_device

    logging.basicConfig(level=logging.WARNING)
    disable_progress_bar()
    if job.device == "cpu":
        torch.set_num_threads(1)
    pick_device(job.device)  # raises an error if there is no such device
    trained = job.part in ("mismatch", "learning")
    shape = "tiny" if job.shape == "tiny" else "smollm2"
    chosen = choose_models(
        job.model if trained else "none", shape if trained else job.shape, job.folder
    )
    subject = chosen.checked
    facts = {
        "card": card.card_name(job.device),
        "software": card.software_versions(job.device),
        "models": [subject.to_json()],
        "notes": chosen.notes,
    }
    sender.send(("facts", facts))
    left_s = max(1.0, job.limit_s - _START_S)
    if job.part == "mismatch":
        yield from measure_mismatch(subject, job.device)
    elif job.part == "sampling":
        yield from measure_sampling(subject, job.device, left_s / len(AMOUNTS[job.device].caches))
    elif job.part == "update":
        yield from measure_update(subject, job.device, left_s / 8)
    elif subject.random and job.shape != "tiny":
        raise _NotMeasured(f"learning needs a trained model. {' '.join(chosen.notes)}")
    else:
        yield from measure_learning(subject, job.device, job.folder / "runs", left_s)


def _write_results(out: Path, results: dict[str, Any]) -> None:
    results["targets"] = [target._asdict() for target in evaluate_targets(results)]
    texts = {
        "gpu_multiturn.json": json.dumps(results, indent=2) + "\n",
        "gpu_multiturn.md": to_markdown(results),
    }
    write_texts(out, texts)


def _parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    about, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument(
        "--model",
        help="folder of a trained model or name of a fetched one, for mismatch and learning "
        "(default: smollm2, or random weights with --shape tiny)",
    )
    parser.add_argument(
        "--shape",
        choices=("4b", "1.5b", "smollm2", "tiny"),
        help="shape of the model with random weights (default: 4b; on a CPU: tiny)",
    )
    parser.add_argument("--parts", help="parts to run, separated by commas (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="leave out learning, and use shorter time limits"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("gpu_multiturn"), help="folder for the results"
    )
    options = parser.parse_args(arguments)
    possible = [part for part, limit in LIMITS.items() if limit.quick or not options.quick]
    options.parts = options.parts.split(",") if options.parts else possible
    unknown = set(options.parts) - set(possible)
    if unknown:
        parser.error(f"there is no part {min(unknown)!r}; choose from {','.join(possible)}")
    options.shape = options.shape or ("4b" if options.device == "cuda" else "tiny")
    options.model = options.model or ("none" if options.shape == "tiny" else "smollm2")
    argv = sys.argv[1:] if arguments is None else arguments
    options.command = shlex.join(["python", "bench/gpu_multiturn.py", *argv])
    return options


def _print_line(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
