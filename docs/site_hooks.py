"""Hooks of `mkdocs build` that add and check pages.

Pages that lie at the root of the repository join the site, links to source files lose their target,
terms of the glossary show their meaning where a page first uses them, and every page is there as
Markdown too, with an index of them for language models (`llms.txt`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path, PurePosixPath
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[1]
AT_THE_ROOT = {
    "AGENTS.md": "agents-guide.md",
    "README.md": "about.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""File at the root of the repository → page of the site."""
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
GLOSSARY = "glossary.md"
CODE = ("api/", "agents-guide.md", "changelog.md", "code-map.md", "contributing.md", "sandbox.md")
"""Pages without hover texts: they are about code, where a term may be an ordinary word."""
ENTRY = re.compile(r"^\| \*\*([^|*]+)\*\* \| (.+) \|$", re.MULTILINE)
"""A row of the glossary with a term in bold, and its meaning."""
SILENT = {"a", "autoref", "button", "code", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "svg", "th"}
"""Elements in which terms get no hover text."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for name, page in AT_THE_ROOT.items():
        text = adapt_links((ROOT / name).read_text())
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Keep the words of links to source files, which are not part of the site."""
    folder = PurePosixPath(page.file.src_uri).parent
    return LINK.sub(lambda link: _adapt_link(link, folder), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add hover texts to a page, and anchors for them to the glossary."""
    glossary = files.get_file_from_path(GLOSSARY)
    assert glossary is not None
    if page.file.src_uri == GLOSSARY:
        return re.sub(r"<td><strong>([^<]+)<", lambda term: _entry(term[1]), html)
    if page.file.src_uri.startswith(CODE):
        return html
    terms = terms_of(glossary.content_string)
    return with_hover_texts(html, terms, get_relative_url(glossary.url, page.url))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Put the page beside itself as Markdown."""
    beside = Path(config.site_dir) / page.file.src_uri
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(page.markdown or "")
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """Put the index for language models at the root of the site."""
    text = adapt_links((ROOT / "llms.txt").read_text())
    (Path(config.site_dir) / "llms.txt").write_text(text)


def adapt_links(text: str) -> str:
    """Adapt the links of a text from the root of the repository to a page of docs/.

    Example:
        >>> adapt_links("[words](docs/concepts.md#words), [how](CONTRIBUTING.md)")
        '[words](concepts.md#words), [how](contributing.md)'
    """

    def moved(link: re.Match[str]) -> str:
        words, target, anchor = link[1], link[2], link[3] or ""
        if target in AT_THE_ROOT:
            target = AT_THE_ROOT[target]
        elif target.startswith("docs/"):
            target = target.removeprefix("docs/")
        else:
            target = f"../{target}"
        return f"[{words}]({target}{anchor})"

    return LINK.sub(moved, text.replace("](docs/pictures/", "](pictures/"))


def terms_of(glossary: str) -> dict[str, str]:
    """Return the meaning of each term in bold, without markup.

    Example:
        >>> terms_of("| **slot** | a place in `K` |")
        {'slot': 'a place in K'}
    """
    return {term: meaning.replace("`", "") for term, meaning in ENTRY.findall(glossary)}


def with_hover_texts(html: str, terms: Mapping[str, str], glossary: str) -> str:
    """Link the first use of each term to the glossary, with its meaning as the title.

    Args:
        html: a page.
        terms: the meaning of each term, in the singular.
        glossary: address of the glossary.

    Example:
        >>> with_hover_texts("<p><code>a tag</code>, Tags</p>", {"tag": "a property"}, "x.html")
        '<p><code>a tag</code>, <a class="term" href="x.html#tag" title="a property">Tags</a></p>'
    """
    plurals = {re.sub("y$", "ie", term) + "s": term for term in terms}
    spellings = plurals | {term: term for term in terms}
    words = "|".join(map(re.escape, sorted(spellings, key=len, reverse=True)))
    use = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE)
    left = dict(terms)

    def linked(use: re.Match[str]) -> str:
        term = spellings[use[0].lower()]
        if term not in left:
            return use[0]
        meaning = escape(left.pop(term))
        return f'<a class="term" href="{glossary}#{_anchor(term)}" title="{meaning}">{use[0]}</a>'

    parts = re.split(r"(<[^>]*>)", html)
    n_silent = 0
    for i, part in enumerate(parts):
        if tag := re.match(r"<(/?)(\w+)", part):
            n_silent += (tag[2] in SILENT) * (-1 if tag[1] else 1)
        elif not n_silent:
            parts[i] = use.sub(linked, part)
    return "".join(parts)


def _entry(term: str) -> str:
    return f'<td id="{_anchor(term)}"><strong>{term}<'


def _anchor(term: str) -> str:
    return term.replace(" ", "-")


def _adapt_link(link: re.Match[str], folder: PurePosixPath) -> str:
    """Return the link, or only its text if it leads out of docs/."""
    target = normpath(f"{folder}/{link[2]}")
    if not target.startswith("../"):
        return link[0]
    name = target.removeprefix("../")
    if name in AT_THE_ROOT:
        up = "../" * (len(folder.parts))
        return f"[{link[1]}]({up}{AT_THE_ROOT[name]}{link[3] or ''})"
    return link[1]
