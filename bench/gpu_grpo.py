"""What does a GPU do with the learner? Equality with the CPU, speed of both halves, learning.

Four parts:

    equal    loss and gradient of a GRPO step, in fp32 and bf16, against the CPU in fp32
    train    tokens a second and share of the card's matrix rate (MFU), padding, memory
    rollout  sampled tokens a second against Hugging Face's generate and the decode roofline
    learn    ALFWorld: warm-up and GRPO, on a fixed set and on an evolving one, before and after

Numbers go to gpu_grpo.json and gpu_grpo.svg in the folder --out. The exit code is 1 if the device
is not equal to the CPU. Nothing is downloaded.

Needs torch, transformers, peft, safetensors, and coevo_gym with gymnasium, pydantic, jinja2 and
rapidfuzz; the given model on this machine (`coevo model fetch smollm2`). For learn also rich,
alfworld and textworld, or rich alone with `--set benchmark=webshop`. Where vllm is installed, it is
measured too; where it is not, its targets are not run.

Run: python bench/gpu_grpo.py --minutes 30
     python bench/gpu_grpo.py --device cpu --shape tiny --parts equal,train,rollout   # does it run?
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PARTS = ("equal", "train", "rollout", "learn")
NOT_RUN = "not run"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the parts that were asked for; the exit code."""
    options = _options(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported
    from coevo_gym.core.errors import CoevoError

    with tempfile.TemporaryDirectory() as folder:
        try:
            return _measure(options, Path(folder))
        except CoevoError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1


def _measure(options: argparse.Namespace, folder: Path) -> int:
    from gpu_parts import card, subjects
    from gpu_parts.equal import measure_equal
    from gpu_parts.rollouts import measure_rollouts
    from gpu_parts.targets import targets
    from gpu_parts.training import measure_training
    from transformers.utils.logging import disable_progress_bar

    from coevo_gym.agents.lm.causal_lm import pick_device

    disable_progress_bar()
    pick_device(options.device)  # raises where there is none
    device, size = options.device, subjects.SIZES[options.device]
    shaped = None if options.shape == "none" else options.shape
    own = [] if options.model == "none" else [subjects.given(options.model)]
    own += [subjects.random_weights(shaped, folder)] if shaped else []
    if not own:
        raise SystemExit("There is nothing to measure: --model and --shape are both none.")
    peaks = card.measure_peaks(device, size)
    results: dict[str, Any] = dict.fromkeys(PARTS, NOT_RUN)
    _tell(
        f"{card.card_name(device)}: {peaks.flops / 1e12:,.2f} TFLOP/s in {peaks.dtype}, "
        f"{peaks.bandwidth / 1e9:,.0f} GB/s"
    )

    def save() -> None:
        _write(options, results, peaks, card.card_name(device), card.software(device))

    measures = {
        "equal": lambda: measure_equal(own[0], size, device, _tell),
        "train": lambda: [r for s in own for r in measure_training(s, size, device, peaks, _tell)],
        "rollout": lambda: [
            r for s in own for r in measure_rollouts(s, size, device, peaks, _tell)
        ],
        "learn": lambda: _learn(own[0], options),
    }
    for part in (part for part in PARTS if part in options.parts):
        results[part] = measures[part]()
        save()  # what is measured is not lost to what comes after
    for target in targets(results):
        value = NOT_RUN if target.value is None else f"{target.value:.3g}"
        met = {None: "", True: "met", False: "missed"}[target.met]
        _tell(f"{target.name:40} {value:>9}  wanted {target.wanted:8} {met}")
    _tell(f"written: {options.out / 'gpu_grpo.json'}, {options.out / 'gpu_grpo.svg'}")
    unequal = results["equal"] != NOT_RUN and not all(row["ok"] for row in results["equal"])
    return int(unequal)


def _learn(subject: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    from gpu_parts.learning import measure_learning  # needs more packages than the other parts

    runs = options.out / "runs"
    return measure_learning(subject, options.device, options.minutes, options.set, runs, _tell)


def _write(
    options: argparse.Namespace,
    results: dict[str, Any],
    peaks: Any,
    card: str,
    software: dict[str, str | None],
) -> None:
    """The numbers and the picture, each replaced as a whole."""
    from gpu_parts.plot import picture
    from gpu_parts.targets import targets

    from coevo_gym.store.folder import write_json

    day = time.strftime("%Y-%m-%d")
    options.out.mkdir(parents=True, exist_ok=True)
    found = {
        "date": day,
        "command": options.command,
        "card": card,
        "software": software,
        "peaks": peaks._asdict(),
        **results,
        "targets": [target._asdict() for target in targets(results)],
    }
    write_json(options.out / "gpu_grpo.json", found)
    title = f"{card}, {day}, PyTorch {software['torch']}"
    (options.out / "gpu_grpo.svg").write_text(picture(results, title), encoding="utf-8")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    about, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument(
        "--model",
        help="folder of a model, or name of a fetched one; `none` for none "
        "(default: smollm2, or none with --shape tiny)",
    )
    parser.add_argument(
        "--shape",
        choices=("1.5b", "tiny", "none"),
        help="a model with random weights, made on the spot (default: 1.5b, on a CPU tiny)",
    )
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="some of them, with commas between"
    )
    parser.add_argument("--minutes", type=float, default=20, help="of learn, both arms together")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="section.key=value for learn, as in `coevo train`",
    )
    parser.add_argument("--out", type=Path, default=Path("gpu_grpo"), help="folder of the results")
    options = parser.parse_args(arguments)
    options.parts = options.parts.split(",")
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {min(unknown)!r}; choose some of {','.join(PARTS)}")
    options.shape = options.shape or ("1.5b" if options.device == "cuda" else "tiny")
    options.model = options.model or ("none" if options.shape == "tiny" else "smollm2")
    given = sys.argv[1:] if arguments is None else arguments
    options.command = shlex.join(["python", "bench/gpu_grpo.py", *given])
    return options


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
