"""Check of the language-model learner on a GPU: agreement with the CPU, and speed.

It has three parts:

    equal    compares loss and gradient of a GRPO step, in fp32 and bf16, with the CPU in fp32
    train    measures tokens per second, MFU (share of the card's matrix rate), padding and memory
    rollout  compares sampled tokens per second with Hugging Face's generate and the decode roofline

The results are written to the folder --out: gpu_grpo.json, a table in gpu_grpo.md and charts in
gpu_grpo.svg. Nothing is downloaded. If the given model is not on this machine, a model with random
weights is measured in its place. All parts need torch, transformers, peft, safetensors, and
coevo_gym with gymnasium, pydantic, jinja2 and rapidfuzz. rollout also measures vllm if it is
installed.

The exit code is 1 if the device disagrees with the CPU or a part fails, and 3 if no part can be
measured.

With --quick, each of these ends by its time limit, 6 minutes in all:

    graphs      the tests of decoding with CUDA graphs
    multi-turn  mismatch, sampling and update of bench/gpu_multiturn.py
    rollout     rollout with a random model, for batches of 64 and 256

Run: make gpu-check PYTHON=python3
     make gpu-check PYTHON=python3 ARGS="--quick"
     python bench/gpu_grpo.py --parts train --shape none    # one part, without random weights
     python bench/gpu_grpo.py --device cpu --shape tiny     # a quick test
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_parts.results import NOT_RUN, missing_packages, write_texts

PARTS = ("equal", "train", "rollout")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the requested parts; return the exit code."""
    options = _parse_options(arguments)
    if options.quick:
        from gpu_parts.quick import run_quick_check

        return run_quick_check(options.device, options.shape, options.out)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "command": options.command}
    results |= dict.fromkeys(PARTS, NOT_RUN)
    if missing := missing_packages():
        for part in options.parts:
            results[part] = f"skipped: {', '.join(missing)} not installed"
            _print_line(f"{part}: {results[part]}")
        _write_results(options.out, results)
        _print_line(f"written: {options.out / 'gpu_grpo.md'}, without numbers or a picture")
        return 3
    from coevo_gym.core.errors import CoevoError

    with tempfile.TemporaryDirectory() as folder:
        try:
            _measure_parts(options, results, Path(folder))
        except (CoevoError, ImportError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
    _print_line(f"written: {options.out / 'gpu_grpo.md'}, .json and .svg")
    failed = any(str(results[part]).startswith("failed") for part in PARTS)
    unequal = isinstance(results["equal"], list) and not all(row["ok"] for row in results["equal"])
    measured = any(isinstance(results[part], list) for part in PARTS)
    return 1 if failed or unequal else 0 if measured else 3


def _measure_parts(options: argparse.Namespace, results: dict[str, Any], folder: Path) -> None:
    """Measure the requested parts, and write the results after each one."""
    from gpu_parts import card
    from gpu_parts.equal import compare_with_cpu
    from gpu_parts.rollouts import measure_rollouts
    from gpu_parts.subjects import SIZES, Subject, choose_models
    from gpu_parts.training import measure_training
    from transformers.utils.logging import disable_progress_bar

    from coevo_gym.agents.lm.causal_lm import pick_device

    disable_progress_bar()
    pick_device(options.device)  # raises an error if there is no such device
    device, size = options.device, SIZES[options.device]
    size = size._replace(batches=options.batches or size.batches)
    checked, timed, notes = choose_models(options.model, options.shape, folder)
    for note in notes:
        _print_line(note)
    peaks = card.measure_peaks(device, size)
    results |= {
        "card": card.card_name(device),
        "software": card.software_versions(device),
        "peaks": peaks._asdict(),
        "models": [s.to_json() for s in dict.fromkeys((checked, *timed))],
        "notes": notes,
        "seconds": {},
    }
    _print_line(
        f"{results['card']}: {peaks.flops / 1e12:,.2f} TFLOP/s in {peaks.dtype}, "
        f"{peaks.bandwidth / 1e9:,.0f} GB/s"
    )

    def train(subject: Subject) -> list[dict[str, Any]]:
        return measure_training(subject, size, device, peaks, _print_line)

    def rollout(subject: Subject) -> list[dict[str, Any]]:
        return measure_rollouts(subject, size, device, peaks, _print_line)

    measures = {
        "equal": lambda: compare_with_cpu(checked, size, device, _print_line),
        "train": lambda: [row for subject in timed for row in train(subject)],
        "rollout": lambda: [row for subject in timed for row in rollout(subject)],
    }
    for part in options.parts:
        started = time.monotonic()
        try:
            results[part] = measures[part]()
        except Exception as error:  # other parts can still be measured
            traceback.print_exc()
            results[part] = f"failed: {type(error).__name__}: {error}"
        card.free_memory(device)
        results["seconds"][part] = round(time.monotonic() - started, 1)
        if isinstance(results[part], str):
            _print_line(f"{part}: {results[part]}")
        _write_results(options.out, results)  # keep the results even if a later part crashes
    for target in results["targets"]:
        value = NOT_RUN if target["value"] is None else f"{target['value']:.3g}"
        met = {None: "", True: "met", False: "missed"}[target["met"]]
        _print_line(f"{target['name']:40} {value:>9}  target {target['wanted']:8} {met}")


def _write_results(out: Path, results: dict[str, Any]) -> None:
    """Write the results and the table, and the charts if anything was measured."""
    from gpu_parts.table import to_markdown
    from gpu_parts.targets import evaluate_targets

    results["targets"] = [target._asdict() for target in evaluate_targets(results)]
    texts = {
        "gpu_grpo.json": json.dumps(results, indent=2) + "\n",
        "gpu_grpo.md": to_markdown(results),
    }
    if "card" in results:
        from gpu_parts.plot import render_svg

        texts["gpu_grpo.svg"] = render_svg(results)
    write_texts(out, texts)


def _parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    about, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument(
        "--model",
        help="folder of a model or name of a fetched one, replaced by random weights if missing; "
        "`none`: no trained model (default: smollm2, or none with --shape tiny)",
    )
    parser.add_argument(
        "--shape",
        choices=("1.5b", "smollm2", "tiny", "none"),
        help="shape of a model with random weights (default: 1.5b; on a CPU: tiny)",
    )
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="parts to run, separated by commas"
    )
    parser.add_argument(
        "--batches",
        type=lambda text: tuple(map(int, text.split(","))),
        help="answers per batch in rollout, separated by commas (default: 8,64,256; on a CPU: 2,4)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="check in 6 minutes what the parts above leave out: CUDA graphs, conversations of "
        "many turns, and rollout with a random model; --model and --parts have no effect",
    )
    parser.add_argument("--out", type=Path, default=Path("gpu_grpo"), help="folder for the results")
    options = parser.parse_args(arguments)
    options.parts = options.parts.split(",")
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {min(unknown)!r}; choose from {','.join(PARTS)}")
    options.shape = options.shape or ("1.5b" if options.device == "cuda" else "tiny")
    options.model = options.model or ("none" if options.shape == "tiny" else "smollm2")
    argv = sys.argv[1:] if arguments is None else arguments
    options.command = shlex.join(["python", "bench/gpu_grpo.py", *argv])
    return options


def _print_line(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    logging.getLogger("coevo_gym.trainers.grpo").setLevel(logging.ERROR)  # clipping is not measured
    sys.exit(main())
