"""Time and memory of a GRPO update or of a whole step, with this learner and TRL's GRPOTrainer.

Both sides get the same weights, trajectories and settings (loss_type="dapo", clip ranges 0.2 and
0.28, KL weight 1e-3, AdamW, gradient norm clipped to 1). This learner's bound on the KL term of a
token is off, because TRL has none. Each side makes a complete update: reference log-probabilities,
old log-probabilities if --epochs is above 1, loss, gradient, and optimiser step. The time from
finished rollouts to new weights is measured. The policy starts with weights that differ from the
reference, so that loss and gradient depend on all of these computations. If the losses or
gradients of the first update differ, the times are not comparable, and the exit code is 1.

A forward pass has the same number of tokens on both sides: TRL pads --rows trajectories to the
longest one of the batch, and this learner packs the same number of tokens. Each side runs in its
own process. Updates alternate between the sides, and the first update of each is not timed. Both
compute in fp32 on a CPU, and in bf16 with fp32 weights on a GPU. Peak memory is the largest
resident set of the process on a CPU, and PyTorch's largest allocation on a GPU.

A trajectory has a prompt of LONGEST/8 tokens and 1 to 8 turns (uniform), as many as fit into
LONGEST tokens. A turn has an answer of LONGEST/40 and an observation of LONGEST/20 tokens (medians
of log-normal draws with sigma 0.6). Only answers are trained on. With --lengths equal, all
trajectories have 8 turns of the median lengths, so neither side has padding and packing gains
nothing.

With --whole, the time from prompts to new weights is measured. Each side samples exactly 16 tokens
per chat with its own engine (both use transformers); chat and answer have LONGEST tokens together.
Answers differ between the sides, so only the numbers of tokens are compared. With --model, the exit
code is 1 if a bound is missed. The bounds are for SmolLM2 and one thread.

With --whole and --turns, each chat is a conversation with an environment that shows random digits
after each answer. On TRL's side, it is an environment_factory with one tool. Since models do not
call tools at random, each answer counts as a call. Both sides have the same number of tokens: 16
per answer, 128 between two answers, and the rest of LONGEST before the first.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grpo_sides import (
    SHAPES,
    Job,
    Update,
    padded_width,
    run_ours,
    run_side,
    run_trl,
    save_model_quietly,
)

from coevo_gym.agents.lm.stored_models import resolve_model
from coevo_gym.core.errors import ModelError

EXAMPLES = """examples:
  python bench/grpo_vs_trl.py                       a tiny model, for a quick test
  python bench/grpo_vs_trl.py --model smollm2       135M weights, after `coevo model fetch smollm2`
  python bench/grpo_vs_trl.py --shape 1.5b --longest 4096 --groups 8 --group-size 8      on a GPU
  python bench/grpo_vs_trl.py --whole --model smollm2 --threads 1 --groups 2 --longest 176
  python bench/grpo_vs_trl.py --whole --turns 6 --model smollm2 --threads 1 --longest 1056 \
      --groups 1 --rows 1 --updates 3
"""
WANTED: dict[str, float | None] = {"seconds": 0.8, "cpu_seconds": None, "peak_bytes": 1.0}
WANTED_WHOLE: dict[str, float | None] = {"seconds": None, "cpu_seconds": 0.42, "peak_bytes": 0.8}
NOTHING_WANTED: dict[str, float | None] = dict.fromkeys(WANTED_WHOLE)
"""Conversations have no bounds, because TRL's engine for them is vLLM, not transformers."""


def run_both_sides(job: Job) -> dict[str, list[Update]]:
    """Run the updates of both sides alternately, and return their results.

    Each side has its own process. Its first update is a warm-up.
    """
    spawn = multiprocessing.get_context("spawn")
    channels = {}
    for name, target in (("ours", run_ours), ("trl", run_trl)):
        print_progress(f"{name}: starting")
        channels[name], theirs = spawn.Pipe()
        spawn.Process(target=run_side, args=(target, job, theirs), daemon=True).start()
        theirs.close()
        receive(channels[name], name)
    updates: dict[str, list[Update]] = {name: [] for name in channels}
    for turn in range(job.updates):
        for name in sorted(channels, reverse=turn % 2 == 1):
            channels[name].send("go")
            updates[name].append(receive(channels[name], name))
            print_progress(
                f"{name}: update {turn + 1} of {job.updates}, {updates[name][-1].seconds:.3f} s"
            )
    return updates


def receive(channel: Connection, name: str) -> Any:
    """Return a side's next message."""
    try:
        return channel.recv()
    except EOFError:
        sys.exit(f"The side {name!r} failed; see its message above.")


def print_progress(line: str) -> None:
    """Print progress to standard error."""
    print(line, file=sys.stderr, flush=True)


def ratios(updates: dict[str, list[Update]]) -> dict[str, dict[str, float]]:
    """Return the ratios of our values to TRL's, with minimum and maximum over the timed pairs."""
    ours, theirs = updates["ours"], updates["trl"]
    answer = {}
    names = ["seconds", "cpu_seconds"]
    if ours[0].sampling_cpu_seconds:
        names += ["sampling_cpu_seconds", "update_cpu_seconds"]
    for name in names:
        pairs = [(getattr(a, name), getattr(b, name)) for a, b in zip(ours, theirs, strict=True)]
        mine, other = zip(*pairs[1:], strict=True)
        each = [a / b for a, b in pairs[1:]]
        median = statistics.median(mine) / statistics.median(other)
        answer[name] = {"ratio": median, "least": min(each), "most": max(each)}
    answer["peak_bytes"] = {"ratio": ours[-1].peak_bytes / theirs[-1].peak_bytes}
    grown = [side[-1].peak_bytes - side[-1].resident_bytes for side in (ours, theirs)]
    answer["grown_bytes"] = {"ratio": grown[0] / max(1, grown[1])}
    return answer


def did_same_work(updates: dict[str, list[Update]], job: Job) -> bool:
    """Return True if both sides did the same work.

    All updates must have the same number of tokens. The first ones must have the same loss and
    gradient norm. In whole steps, where answers differ, gradients only need to be nonzero.
    """
    ours, theirs = updates["ours"][0], updates["trl"][0]
    tokens = sum(len(rollout.ids) for rollout in job.random_batch())
    if any(update.tokens != tokens for side in updates.values() for update in side):
        return False
    if job.whole:
        return ours.grad_norm > 0 and theirs.grad_norm > 0
    slack = (
        0.05 if job.device == "cuda" else 1e-3
    )  # TRL adds 1e-4 to standard deviations; bf16 rounds
    same_norm = abs(ours.grad_norm - theirs.grad_norm) <= slack * theirs.grad_norm
    return abs(ours.loss - theirs.loss) <= 1e-4 and same_norm


def make_report(job: Job, model: str, updates: dict[str, list[Update]]) -> dict[str, Any]:
    """Return all results in the form that ``--json`` prints."""
    batch = job.random_batch()
    tokens, padded = sum(len(r.ids) for r in batch), padded_width(batch) * len(batch)
    processors = Path("/proc/cpuinfo")
    names = processors.read_text().split("\n") if processors.exists() else []
    cpu = next((line.partition(": ")[2] for line in names if "model name" in line), "")
    return {
        "command": shlex.join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("torch", "transformers", "trl", "accelerate")},
        "machine": updates["ours"][0].device
        or f"{cpu or platform.machine()}, {job.threads} threads",
        "model": model,
        "batch": {
            "trajectories": len(batch),
            "tokens": tokens,
            "longest": max(len(r.ids) for r in batch),
            "sampled": sum(sum(r.sampled) for r in batch),
            "padding_share": 1 - tokens / padded,
            "tokens_a_pass": job.rows * padded_width(batch),
        },
        "sides": {name: [update._asdict() for update in side] for name, side in updates.items()},
        "ratios": ratios(updates),
        "wanted": wanted_ratios(job),
        "agree": did_same_work(updates, job),
    }


def wanted_ratios(job: Job) -> dict[str, float | None]:
    """Return the bounds on our values, divided by TRL's."""
    if job.turns > 1:
        return NOTHING_WANTED
    return WANTED_WHOLE if job.whole else WANTED


def format_report(report: dict[str, Any]) -> str:
    """Return the results as a table."""
    batch, sides = report["batch"], report["sides"]
    lines = [
        report["command"],
        ", ".join(f"{name} {number}" for name, number in report["versions"].items()),
        f"{report['machine']}, {report['date']}",
        f"{report['model']}; {batch['trajectories']} trajectories of up to {batch['longest']} "
        "tokens:"
        f" {batch['tokens']} tokens, {batch['sampled']} sampled; {batch['padding_share']:.0%} of a "
        f"padded batch is padding; {batch['tokens_a_pass']} tokens a forward pass",
        f"{'':28}{'ours':>12}{'TRL':>12}  ours/TRL",
    ]

    def row(title: str, values: list[float], form: str, ratio: str = "") -> None:
        mine, other = (format(value, form) for value in values)
        lines.append(f"{title:28}{mine:>12}{other:>12}  {ratio}".rstrip())

    titles = {"seconds": "seconds, median", "cpu_seconds": "CPU seconds, median"}
    if any(update["sampling_cpu_seconds"] for side in sides.values() for update in side):
        titles |= {"sampling_cpu_seconds": "sampling", "update_cpu_seconds": "scoring and update"}
    for name, title in titles.items():
        timed = [[update[name] for update in sides[side][1:]] for side in ("ours", "trl")]
        measure, wanted = report["ratios"][name], report["wanted"].get(name)
        spread = f"{measure['ratio']:.2f} (pairs {measure['least']:.2f} to {measure['most']:.2f})"
        row(title, [statistics.median(t) for t in timed], ".3f", spread + format_bound(wanted))
    last = [sides[side][-1] for side in ("ours", "trl")]
    peak, grown = (report["ratios"][name]["ratio"] for name in ("peak_bytes", "grown_bytes"))
    wanted = format_bound(report["wanted"]["peak_bytes"])
    row("peak memory, MB", [u["peak_bytes"] / 1e6 for u in last], ".0f", f"{peak:.2f}{wanted}")
    more = [(u["peak_bytes"] - u["resident_bytes"]) / 1e6 for u in last]
    row("of these for the updates", more, ".0f", f"{grown:.2f}")
    first = [sides[side][0] for side in ("ours", "trl")]
    row("loss of the first update", [u["loss"] for u in first], ".7f")
    row("norm of its gradient", [u["grad_norm"] for u in first], ".5f")
    return "\n".join(lines)


def missed_bounds(report: dict[str, Any]) -> list[str]:
    """Return the names of the ratios that miss their bounds."""
    bounds = report["wanted"].items()
    return [
        n for n, wanted in bounds if wanted is not None and report["ratios"][n]["ratio"] > wanted
    ]


def format_bound(wanted: float | None) -> str:
    """Return the text of a ratio's bound."""
    return "" if wanted is None else f", wanted <= {wanted}"


def main() -> None:
    """Print the results; return 1 if the sides did different work or a bound is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--shape", choices=SHAPES, default="tiny", help="shape of a model with random weights"
    )
    which.add_argument(
        "--model", help="folder of a model or name of a fetched one, such as smollm2"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--groups", type=int, default=4, help="tasks in the batch (%(default)s)")
    parser.add_argument(
        "--group-size", type=int, default=4, help="trajectories per task (%(default)s)"
    )
    parser.add_argument(
        "--longest", type=int, default=256, help="maximum tokens of a trajectory (%(default)s)"
    )
    parser.add_argument("--lengths", choices=("mixed", "equal"), default="mixed")
    parser.add_argument("--rows", type=int, default=4, help="TRL's micro-batch (%(default)s)")
    parser.add_argument(
        "--epochs", type=int, default=1, help="optimiser epochs per batch (%(default)s)"
    )
    parser.add_argument(
        "--updates",
        type=int,
        default=6,
        help="updates per side, including the untimed first one (%(default)s)",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads per side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--whole", action="store_true", help="measure whole steps, with sampling")
    parser.add_argument(
        "--turns", type=int, default=1, help="with --whole: answers per conversation (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args()
    if args.groups * args.group_size % args.rows or args.updates < 2:
        parser.error("--rows must divide --groups times --group-size; --updates must be 2 or more")
    if args.turns < 1 or (args.turns > 1 and not args.whole):
        parser.error("--turns must be 1 or more, and needs --whole if it is above 1")
    with tempfile.TemporaryDirectory() as scratch:
        try:
            folder = resolve_model(args.model) if args.model else scratch
        except ModelError as error:
            sys.exit(str(error))
        if not args.model:
            print_progress(f"creating a model of shape {args.shape}")
            maker = multiprocessing.get_context("spawn").Process(
                target=save_model_quietly, args=(args.shape, folder)
            )
            maker.start()
            maker.join()
        device = args.device
        if device == "auto":
            device = "cuda" if Path("/proc/driver/nvidia/version").exists() else "cpu"
        job = Job(
            folder=folder,
            device=device,
            groups=args.groups,
            group_size=args.group_size,
            longest=args.longest,
            equal=args.lengths == "equal",
            rows=args.rows,
            epochs=args.epochs,
            updates=args.updates,
            threads=args.threads,
            seed=args.seed,
            whole=args.whole,
            turns=args.turns,
        )
        report = make_report(job, args.model or f"shape {args.shape}", run_both_sides(job))
    print(json.dumps(report, indent=1) if args.json else format_report(report))
    if not report["agree"]:
        sys.exit("The two sides did different work, so their times are not comparable.")
    if args.whole and args.model and missed_bounds(report):
        sys.exit(f"Bounds missed by: {', '.join(missed_bounds(report))}.")


if __name__ == "__main__":
    main()
