"""The results as a Markdown page. It needs no packages, so that it can list missing ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]


def to_markdown(results: Mapping[str, Any]) -> str:
    """Return the results, as stored in the JSON file, as Markdown."""
    parts = [
        f"# {results.get('card', 'Nothing measured')}, {results['date']}",
        f"`{results['command']}`",
    ]
    if "card" in results:
        parts += _format_header(results)
    for part, columns in _COLUMNS.items():
        rows = results.get(part)
        if isinstance(rows, list):
            parts += [
                f"## {part} ({results['seconds'][part]:,.0f} s)",
                _format_table(rows, columns),
            ]
            parts += [text for text in [results.get("ended", {}).get(part)] if text]
        elif rows is not None:
            parts += [f"## {part}", rows]
    parts += ["## targets", _format_table(results["targets"], _TARGETS)]
    return "\n\n".join(parts) + "\n"


def describe_model(model: Row) -> str:
    """Return a model's name and size, and say if its weights are random."""
    size = f"{model['name']}: {model['parameters'] / 1e6:,.1f} M weights"
    return f"{size}, all of them random" if model["random"] else size


def _format_header(results: Mapping[str, Any]) -> list[str]:
    software = results["software"]
    lines = [
        *([_format_peaks(results["peaks"])] if "peaks" in results else []),
        *(f"- model {describe_model(model)}" for model in results["models"]),
        *(f"- note: {note}" for note in results["notes"]),
        "- software: " + ", ".join(f"{name} {v}" for name, v in software.items() if v),
    ]
    return ["\n".join(lines)]


def _format_peaks(peaks: Row) -> str:
    reached = f"{peaks['flops'] / 1e12:,.2f} TFLOP/s in {peaks['dtype']}"
    if peaks["data_sheet"]:
        reached += f" ({peaks['flops'] / peaks['data_sheet']:.0%} of the data sheet)"
    return f"- reached: {reached}, {peaks['bandwidth'] / 1e9:,.0f} GB/s"


def _format_table(rows: Iterable[Row], columns: Sequence[Column]) -> str:
    lines = ["| " + " | ".join(name for name, _ in columns) + " |", "|---" * len(columns) + "|"]
    lines += [
        "| " + " | ".join(_format_cell(write, row) for _, write in columns) + " |" for row in rows
    ]
    return "\n".join(lines)


def _format_cell(write: Callable[[Row], str], row: Row) -> str:
    """Return the text of a cell, or a dash if the row has no such number."""
    try:
        text = write(row)
    except (KeyError, TypeError):
        return "–"
    return " ".join(text.replace("|", "\\|").split())


def _format_memory(row: Row) -> str:
    if row.get("out_of_memory"):
        return "out of memory"
    return f"{row['peak_memory'] / 2**30:.1f} GiB"


_MODEL: Column = ("model", lambda row: row["model"])
_COLUMNS: dict[str, Sequence[Column]] = {
    "equal": (
        _MODEL,
        ("precision", lambda row: row["dtype"]),
        ("loss off", lambda row: f"{row['loss_off']:.1e}"),
        ("norm off", lambda row: f"{row['grad_norm_off']:.2%}"),
        ("gradient off", lambda row: f"{row['gradient_off']:.2%}"),
        ("within tolerance", lambda row: "yes" if row["ok"] else "**no**"),
    ),
    "train": (
        _MODEL,
        ("tokens per pass", lambda row: f"{row['budget_tokens']:,}"),
        ("checkpointing", lambda row: "yes" if row["checkpointing"] else "no"),
        ("compiled", lambda row: "yes" if row["compiled"] else "no"),
        ("tokens/s", lambda row: f"{row['tokens_per_s']:,.0f}"),
        ("in steps", lambda row: f"{row['step_tokens_per_s']:,.0f}"),
        ("MFU", lambda row: f"{row['mfu']:.1%}"),
        ("padding", lambda row: f"{row['padding']:.1%}"),
        ("peak memory", _format_memory),
        ("planned", lambda row: f"{row['planned_memory'] / 2**30:.1f} GiB"),
    ),
    "rollout": (
        _MODEL,
        ("engine", lambda row: row["engine"]),
        ("answers per batch", lambda row: f"{row['batch']:,}"),
        ("sampled tokens/s", lambda row: f"{row['tokens_per_s']:,.0f}"),
        ("against generate", lambda row: f"{row['against_generate']:.1f} x"),
        ("decode roofline", lambda row: f"{row['roofline_share']:.1%}"),
        ("remark", lambda row: row["remark"]),
    ),
    "mismatch": (
        _MODEL,
        ("trained", lambda row: row["trained"]),
        ("tokens", lambda row: f"{row['tokens']:,}"),
        ("entropy", lambda row: f"{row['entropy']:.2f}"),
        ("mean", lambda row: f"{row['mean_off']:.4f}"),
        ("largest", lambda row: f"{row['max_off']:.3f}"),
        ("k3 per token", lambda row: f"{row['kl']:.5f}"),
    ),
    "sampling": (
        _MODEL,
        ("prefix cache", lambda row: f"{row['cache_gib']:g} GiB"),
        ("episodes", lambda row: f"{row['episodes']:,}"),
        ("turns", lambda row: f"{row['turns']:,}"),
        ("sampled tokens/s", lambda row: f"{row['tokens_per_s']:,.0f}"),
        ("fed", lambda row: f"{row['fed']:,}"),
        ("read", lambda row: f"{row['read']:,}"),
        ("reused", lambda row: f"{row['reused']:,} ({row['reused_share']:.0%})"),
        ("rows per pass", lambda row: f"{row['rows_per_pass']:.1f}"),
        ("tokens decoded without a graph", lambda row: f"{row['graphless_share']:.0%}"),
        ("captures", lambda row: f"{row['captures']:,} in {row['capture_s']:.1f} s"),
        ("declined", lambda row: f"{row['declined']:,}"),
        ("restarts", lambda row: f"{row['restarts']:,}"),
        ("peak memory", _format_memory),
        ("planned", lambda row: f"{row['planned_memory'] / 2**30:.1f} GiB"),
    ),
    "update": (
        _MODEL,
        ("episodes", lambda row: f"{row['episodes']:,}"),
        ("tokens", lambda row: f"{row['tokens']:,}"),
        ("tokens/s", lambda row: f"{row['tokens_per_s']:,.0f}"),
        ("seconds", lambda row: f"{row['update_s']:.1f}"),
        ("captures in each turn", lambda row: ", ".join(map(str, row["captures"]))),
        ("peak memory", _format_memory),
        ("planned", lambda row: f"{row['planned_memory'] / 2**30:.1f} GiB"),
    ),
    "learning": (
        _MODEL,
        ("seed", lambda row: str(row["seed"])),
        ("old log-probabilities", lambda row: row["old_logprobs"]),
        ("success by step", lambda row: ", ".join(f"{n}: {s:.0%}" for n, s in row["success"])),
        ("ended", lambda row: f"{row['ended']} {row['message']}".strip()),
    ),
}
_TARGETS: Sequence[Column] = (
    ("target", lambda row: row["name"]),
    ("wanted", lambda row: row["wanted"]),
    ("measured", lambda row: f"{row['value']:.3g}"),
    ("met", lambda row: "yes" if row["met"] else "–" if row["met"] is None else "**no**"),
)
