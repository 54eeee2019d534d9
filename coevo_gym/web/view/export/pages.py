"""The viewer's page as files: a single file, or a folder with scripts and data."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from coevo_gym.core.errors import CoevoError

_STYLE = re.compile(r'<link rel="stylesheet" href="(static/[^"]+)">')
_SCRIPT = re.compile(r'<script src="(static/[^"]+)"></script>')
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
_LAST = '<script src="static/viewer/main.js"></script>'
_ANSWERS = '<script src="static/viewer/exported.js"></script>'
_BOOT = re.compile(r'<div id="app">.*?</div>\n<noscript>.*?</noscript>', re.DOTALL)
_CHARSET = '<meta charset="utf-8">'
_ROBOTS = '<meta name="robots" content="noindex">'
_COMMON = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'"


def one_file(page: str, static: Path, data: str) -> str:
    """Return the page with all its scripts, styles and data embedded.

    Args:
        page: ``index.html`` of the viewer.
        static: the folder of its files.
        data: a packed part.
    """

    def text_of(name: str) -> str:
        return (static.parent / name).read_text(encoding="utf-8")

    def style(found: re.Match[str]) -> str:
        text = text_of(found[1]).replace("</", "<\\/")
        return f"<style>{text}</style>"

    def script(found: re.Match[str]) -> str:
        # In a script, `<\\/` is equivalent to `</` wherever code may contain it.
        text = re.sub(r"</(?=script)", r"<\\/", text_of(found[1]), flags=re.IGNORECASE)
        text = text.replace("<!--", "<\\!--")
        return f"<script>{text}</script>"

    whole = _SCRIPT.sub(script, _STYLE.sub(style, _with_answers(page)))
    policy = (
        f"{_COMMON}; script-src {_hashes(whole, 'script')}; style-src {_hashes(whole, 'style')}"
    )
    data_block = f'<script type="text/plain" id="coevo-export">{data}</script>\n'
    return _headed(_before_scripts(whole, data_block, "<script>"), policy)


def beside(page: str) -> str:
    """Return the page for a folder, which loads its scripts and data from that folder."""
    policy = f"{_COMMON}; script-src 'self' file:; style-src 'self' file:"
    data = '<script src="data/index.js"></script>\n'
    return _headed(_before_scripts(_with_answers(page), data, "<script src="), policy)


def exported(page: str, *, title: str, plain: str, home: str, without: Sequence[str] = ()) -> str:
    """Return the page of an export, with HTML that is shown until its scripts run.

    Args:
        page: ``index.html`` of the viewer.
        title: title of the page.
        plain: HTML for readers without JavaScript.
        home: place of the first page; "" for the list of runs.
        without: kinds of pages that the export lacks, see ``web/static/viewer/routes.js``.
    """
    about = f'data-home="{escape(quote(home))}" data-without="{" ".join(without)}"'
    page = page.replace('<html lang="en">', f'<html lang="en" {about}>', 1)
    page = page.replace("<title>coevo view</title>", f"<title>{escape(title)}</title>", 1)
    return _BOOT.sub(lambda _: f'<div id="app">{plain}</div>', page, count=1)


def copy_static(page: str, static: Path, folder: Path) -> None:
    """Copy the files that a page uses into a folder next to the page."""
    whole = _with_answers(page)
    for name in [*_STYLE.findall(whole), *_SCRIPT.findall(whole)]:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(static.parent / name, target)


def _with_answers(page: str) -> str:
    if _LAST not in page:
        raise CoevoError(f"The viewer's page does not load {_LAST}. Reinstall coevo_gym.")
    return page.replace(_LAST, f"{_ANSWERS}\n{_LAST}")


def _before_scripts(page: str, block: str, first: str) -> str:
    place = page.index(first)
    return page[:place] + block + page[place:]


def _headed(page: str, policy: str) -> str:
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return page.replace(_CHARSET, f"{_CHARSET}\n{meta}\n{_ROBOTS}", 1)


def _hashes(page: str, kind: str) -> str:
    found = [text for name, text in _INLINE.findall(page) if name == kind]
    return " ".join(f"'sha256-{_hash(text)}'" for text in found) or "'none'"


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
