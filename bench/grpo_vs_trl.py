"""Time and memory of a GRPO update, or of a whole step: this learner and TRL's GRPOTrainer.

Both get the same weights, the same trajectories and the same settings (loss_type="dapo", clips 0.2
and 0.28, KL weight 1e-3, AdamW, gradient clipped to 1), and compute as in
their own updates: reference log-probabilities, with --epochs above 1 old ones too, loss, gradient,
optimiser step. The clock runs from finished rollouts to new weights. The policy has been moved away
from its reference, so that loss and gradient depend on all of that; if those of the first update
differ, the times compare nothing and the exit code is 1.

A forward pass has the same number of tokens on both sides: TRL's is --rows trajectories padded to
the longest of the batch, this learner packs as many tokens into it. Each side has a process of its
own; updates alternate, the first one of each is not timed. fp32 on a CPU; on a GPU bf16 with fp32
weights. Peak memory is the process's largest resident set, on a GPU PyTorch's largest allocation.

Lengths: a prompt of LONGEST/8 tokens, then 1 to 8 turns (uniform) of an answer of LONGEST/40 and an
observation of LONGEST/20 tokens (medians; log-normal, sigma 0.6), for as long as answers fit into
LONGEST. Only answers are trained on. With --lengths equal all trajectories have 8 turns of the
median lengths: no padding on either side, so this shows the gains without packing.

With --whole the clock runs from prompts to new weights: each side samples, too, with its own engine
(transformers in both) exactly 16 tokens after each of its chats, which have LONGEST tokens with
them. Answers differ, so only the number of tokens is compared. With --model the exit code is 1 if a
bound is missed; they are for SmolLM2 and one thread.
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

from grpo_sides import SHAPES, Job, Update, child, make_model, run_ours, run_trl, width_of

from coevo_gym.agents.lm.models import resolve_model
from coevo_gym.core.errors import ModelError

EXAMPLES = """examples:
  python bench/grpo_vs_trl.py                       a tiny model; shows that it runs
  python bench/grpo_vs_trl.py --model smollm2       135M weights, after `coevo model fetch smollm2`
  python bench/grpo_vs_trl.py --shape 1.5b --longest 4096 --groups 8 --group-size 8      on a GPU
  python bench/grpo_vs_trl.py --whole --model smollm2 --threads 1 --groups 2 --longest 176
"""
WANTED = {"seconds": 0.8, "cpu_seconds": None, "peak_bytes": 1.0}
WANTED_WHOLE = {"seconds": None, "cpu_seconds": 0.65, "peak_bytes": 0.8}


def compare(job: Job) -> dict[str, list[Update]]:
    """Alternate updates of both sides, each in its process; the first of each is a warm-up."""
    spawn = multiprocessing.get_context("spawn")
    channels = {}
    for name, target in (("ours", run_ours), ("trl", run_trl)):
        tell(f"{name}: starting")
        channels[name], theirs = spawn.Pipe()
        spawn.Process(target=child, args=(target, job, theirs), daemon=True).start()
        theirs.close()
        heard(channels[name], name)
    found: dict[str, list[Update]] = {name: [] for name in channels}
    for turn in range(job.updates):
        for name in sorted(channels, reverse=turn % 2 == 1):
            channels[name].send("go")
            found[name].append(heard(channels[name], name))
            tell(f"{name}: update {turn + 1} of {job.updates}, {found[name][-1].seconds:.3f} s")
    return found


def heard(channel: Connection, name: str) -> Any:
    """Return the next message of a side."""
    try:
        return channel.recv()
    except EOFError:
        sys.exit(f"The side {name!r} has failed; its own message is above.")


def tell(line: str) -> None:
    """Print progress, apart from the table."""
    print(line, file=sys.stderr, flush=True)


def ratios(found: dict[str, list[Update]]) -> dict[str, dict[str, float]]:
    """Return our numbers over TRL's: medians, minimum and maximum of the timed pairs, and peaks."""
    ours, theirs = found["ours"], found["trl"]
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


def agrees(found: dict[str, list[Update]], job: Job) -> bool:
    """Return True if both sides did the same work.

    Each update must be of the same number of tokens. The first must have the same loss and a
    gradient of the same length, or in whole steps, whose answers differ, a gradient.
    """
    ours, theirs = found["ours"][0], found["trl"][0]
    tokens = sum(len(rollout.ids) for rollout in job.batch())
    if any(update.tokens != tokens for side in found.values() for update in side):
        return False
    if job.whole:
        return ours.grad_norm > 0 and theirs.grad_norm > 0
    slack = 0.05 if job.device == "cuda" else 1e-3  # TRL adds 1e-4 to deviations, and bf16 rounds
    same_norm = abs(ours.grad_norm - theirs.grad_norm) <= slack * theirs.grad_norm
    return abs(ours.loss - theirs.loss) <= 1e-4 and same_norm


def facts(job: Job, model: str, found: dict[str, list[Update]]) -> dict[str, Any]:
    """Return all results, as ``--json`` prints them."""
    batch = job.batch()
    tokens, padded = sum(len(r.ids) for r in batch), width_of(batch) * len(batch)
    processors = Path("/proc/cpuinfo")
    names = processors.read_text().split("\n") if processors.exists() else []
    cpu = next((line.partition(": ")[2] for line in names if "model name" in line), "")
    return {
        "command": shlex.join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("torch", "transformers", "trl", "accelerate")},
        "machine": found["ours"][0].device or f"{cpu or platform.machine()}, {job.threads} threads",
        "model": model,
        "batch": {
            "trajectories": len(batch),
            "tokens": tokens,
            "longest": max(len(r.ids) for r in batch),
            "sampled": sum(sum(r.sampled) for r in batch),
            "padding_share": 1 - tokens / padded,
            "tokens_a_pass": job.rows * width_of(batch),
        },
        "sides": {name: [update._asdict() for update in side] for name, side in found.items()},
        "ratios": ratios(found),
        "wanted": WANTED_WHOLE if job.whole else WANTED,
        "agree": agrees(found, job),
    }


def table(told: dict[str, Any]) -> str:
    """Return the results as text."""
    batch, sides = told["batch"], told["sides"]
    lines = [
        told["command"],
        ", ".join(f"{name} {number}" for name, number in told["versions"].items()),
        f"{told['machine']}, {told['date']}",
        f"{told['model']}; {batch['trajectories']} trajectories of up to {batch['longest']} tokens:"
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
        found, wanted = told["ratios"][name], told["wanted"].get(name)
        spread = f"{found['ratio']:.2f} (pairs {found['least']:.2f} to {found['most']:.2f})"
        row(title, [statistics.median(t) for t in timed], ".3f", spread + aim(wanted))
    last = [sides[side][-1] for side in ("ours", "trl")]
    peak, grown = (told["ratios"][name]["ratio"] for name in ("peak_bytes", "grown_bytes"))
    wanted = aim(told["wanted"]["peak_bytes"])
    row("peak memory, MB", [u["peak_bytes"] / 1e6 for u in last], ".0f", f"{peak:.2f}{wanted}")
    more = [(u["peak_bytes"] - u["resident_bytes"]) / 1e6 for u in last]
    row("of these for the updates", more, ".0f", f"{grown:.2f}")
    first = [sides[side][0] for side in ("ours", "trl")]
    row("loss of the first update", [u["loss"] for u in first], ".7f")
    row("norm of its gradient", [u["grad_norm"] for u in first], ".5f")
    return "\n".join(lines)


def missed(told: dict[str, Any]) -> list[str]:
    """Return the names of the ratios that are beyond their bounds."""
    bounds = told["wanted"].items()
    return [n for n, wanted in bounds if wanted is not None and told["ratios"][n]["ratio"] > wanted]


def aim(wanted: float | None) -> str:
    """Return the goal for a ratio."""
    return "" if wanted is None else f", wanted <= {wanted}"


def main() -> None:
    """Measure, print, and fail if both sides did not do the same work."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--shape", choices=SHAPES, default="tiny", help="random weights of a shape")
    which.add_argument("--model", help="a folder, or a fetched model's name such as smollm2")
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
    parser.add_argument("--epochs", type=int, default=1, help="steps on a batch (%(default)s)")
    parser.add_argument(
        "--updates", type=int, default=6, help="timed updates of each side (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--whole", action="store_true", help="measure whole steps, with sampling")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    args = parser.parse_args()
    if args.groups * args.group_size % args.rows or args.updates < 2:
        parser.error("--rows must divide --groups times --group-size; --updates must be 2 or more")
    with tempfile.TemporaryDirectory() as scratch:
        try:
            folder = resolve_model(args.model) if args.model else scratch
        except ModelError as error:
            sys.exit(str(error))
        if not args.model:
            tell(f"making a model of shape {args.shape}")
            maker = multiprocessing.get_context("spawn").Process(
                target=make_model, args=(args.shape, folder)
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
        )
        told = facts(job, args.model or f"shape {args.shape}", compare(job))
    print(json.dumps(told, indent=1) if args.json else table(told))
    if not told["agree"]:
        sys.exit("The sides have not done the same, so the times compare nothing.")
    if args.whole and args.model and missed(told):
        sys.exit(f"Beyond the bound: {', '.join(missed(told))}.")


if __name__ == "__main__":
    main()
