"""SVG building blocks: escaped elements, scales, ticks, markers and non-overlapping labels."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

MAX_TEXT = 2000
"""Maximum number of characters of a text."""

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """Make a text safe for display: bounded, without control characters and lone surrogates.

    Bidirectional control characters are removed, too; right-to-left scripts do not need them.

    Args:
        text: any text.
        limit: maximum number of characters; a longer text is cut and states the number of
            characters cut.
    """
    rest = len(text) - limit
    kept = text if rest <= 0 else f"{text[:limit]}… ({rest:,} more characters)"
    return _printable(kept.replace("\r\n", "\n").replace("\r", "\n"))


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("\ufffd", text)


def number(value: float) -> str:
    """Format a coordinate with at most two decimals, identically on every machine."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


@dataclass(frozen=True)
class Element:
    """One SVG element. Text and attributes are escaped on output, never earlier.

    Attributes:
        tag: name of the element.
        attributes: pairs of name and value.
        children: elements, and texts between them.
    """

    tag: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Element | str, ...]

    def __str__(self) -> str:
        names = "".join(f' {name}="{escape(value)}"' for name, value in self.attributes)
        if not self.children:
            return f"<{self.tag}{names}/>"
        inner = "".join(
            str(child) if isinstance(child, Element) else escape(clean(child), quote=False)
            for child in self.children
        )
        return f"<{self.tag}{names}>{inner}</{self.tag}>"

    def __html__(self) -> str:
        """Return the markup, so that an autoescaping template does not escape it again."""
        return str(self)


def el(tag: str, *children: Element | str, **attributes: str | float | None) -> Element:
    """Create an element.

    Args:
        tag: name of the element.
        children: child elements and texts.
        attributes: ``stroke_width`` becomes ``stroke-width``, ``class_`` becomes ``class``; numbers
            are formatted as coordinates; None omits the attribute.
    """
    pairs = tuple(
        (
            name.rstrip("_").replace("_", "-"),
            _printable(value) if isinstance(value, str) else number(value),
        )
        for name, value in attributes.items()
        if value is not None
    )
    return Element(tag, pairs, children)


def drawing(
    id: str, title: str, description: str, size: tuple[float, float], parts: Sequence[Element]
) -> Element:
    """Return a complete picture that a screen reader announces as one image.

    Args:
        id: id, unique within the page.
        title: title of the picture.
        description: description of the picture, in one sentence.
        size: width and height in pixels.
        parts: elements, back to front.
    """
    width, height = size
    return el(
        "svg",
        el("title", title, id=f"{id}-title"),
        el("desc", description, id=f"{id}-desc"),
        *parts,
        class_="chart",
        role="img",
        aria_labelledby=f"{id}-title {id}-desc",
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width,
        height=height,
    )


class Scale(NamedTuple):
    """A linear map from values to pixels.

    Attributes:
        low: value drawn at ``start``.
        high: value drawn at ``end``.
        start: pixel of ``low``.
        end: pixel of ``high``.
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value; values beyond the ends are clipped."""
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.0
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def nice_step(span: float, n: int) -> float:
    """Return the smallest round step that covers ``span`` in at most ``n`` steps."""
    if not (math.isfinite(span) and span > 0):
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / n))
    return next(
        (f * power for f in (1, 2, 2.5, 5) if f * power * n >= span * (1 - 1e-9)), 10 * power
    )


def nice_ticks(high: float, n: int = 5, *, whole: bool = False) -> tuple[float, ...]:
    """Return round numbers from 0 to at most ``high``.

    Args:
        high: end of the axis.
        n: maximum number of steps.
        whole: True if the axis shows counts, so that a step is at least 1.
    """
    step = nice_step(high, n)
    if whole:
        step = max(1.0, step if step != 2.5 else 5.0)
    if not (math.isfinite(high) and high > 0):
        return (0.0,)
    return tuple(i * step for i in range(math.floor(high / step + 1e-9) + 1))


def nice_top(value: float, n: int = 5, *, whole: bool = False) -> float:
    """Return the end of an axis from 0: the first round tick at or above ``value``."""
    if not (math.isfinite(value) and value > 0):
        return 1.0
    step = nice_step(value, n)
    if whole:
        step = max(1.0, step if step != 2.5 else 5.0)
    return math.ceil(value / step - 1e-9) * step


def text_width(text: str, size: float = 12) -> float:
    """Return the approximate width of a text in pixels; characters of wide scripts count double."""
    return sum(1.0 if ord(char) >= 0x1100 else 0.56 for char in text) * size


def shorten(text: str, width: float, size: float = 12) -> str:
    """Cut a label with an ellipsis to fit ``width`` pixels."""
    flat = " ".join(clean(text).split())
    if text_width(flat, size) <= width:
        return flat
    while flat and text_width(flat + "…", size) > width:
        flat = flat[:-1]
    return flat.rstrip() + "…"


def keep_apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels as little as necessary so that neighbours are ``gap`` apart in [low, high].

    If they do not fit, they are spaced evenly.
    """
    if len(wanted) > 1:
        gap = min(gap, (high - low) / (len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
    placed = [0.0] * len(wanted)
    floor = low
    for i in order:
        placed[i] = max(wanted[i], floor)
        floor = placed[i] + gap
    ceiling = high
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed


def line_path(points: Sequence[tuple[float, float]]) -> str:
    """Return the path through points in pixels; a NaN breaks the line."""
    parts: list[str] = []
    pen = "M"
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y):
            parts.append(f"{pen}{number(x)} {number(y)}")
            pen = "L"
        else:
            pen = "M"
    return "".join(parts)


DASHES = (None, "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2", "12 4")
"""Line patterns, so that curves are distinguishable without colour."""


def marker(
    style: int, x: float, y: float, note: str = "", size: float = 4, *, css: str = ""
) -> Element:
    """Return the mark of a style at a point: disc, square, triangle, diamond, ring or cross.

    Args:
        style: number of the style.
        x: centre in pixels.
        y: centre in pixels.
        note: text of the tooltip.
        size: half of the mark's width.
        css: CSS classes; "" for the classes of the style.
    """
    inner = (el("title", note),) if note else ()
    shape = style % 6
    css = css or f"mark s{shape}{' ring' if shape in (4, 5) else ''}"
    a = size * 1.2
    if shape in (0, 4):
        return el("circle", *inner, class_=css, cx=x, cy=y, r=size)
    path = {
        1: f"M{number(x - size)} {number(y - size)}h{number(2 * size)}v{number(2 * size)}"
        f"h{number(-2 * size)}Z",
        2: f"M{number(x)} {number(y - a)}L{number(x + a)} {number(y + size)}H{number(x - a)}Z",
        3: f"M{number(x)} {number(y - a)}L{number(x + a)} {number(y)}"
        f"L{number(x)} {number(y + a)}L{number(x - a)} {number(y)}Z",
        5: f"M{number(x - size)} {number(y - size)}L{number(x + size)} {number(y + size)}"
        f"M{number(x + size)} {number(y - size)}L{number(x - size)} {number(y + size)}",
    }[shape]
    return el("path", *inner, class_=css, d=path)
