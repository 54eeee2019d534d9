"""Hooks of `mkdocs build` that add and check pages.

Pages that lie at the root of the repository join the site, links to source files lose their target,
and every page is there as Markdown too, with an index of them for language models (`llms.txt`).
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
AT_THE_ROOT = {
    "AGENTS.md": "agents-guide.md",
    "README.md": "about.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""File at the root of the repository → page of the site."""
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for name, page in AT_THE_ROOT.items():
        text = from_the_root((ROOT / name).read_text())
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Keep the words of links to source files, which are not part of the site."""
    folder = PurePosixPath(page.file.src_uri).parent
    return LINK.sub(lambda link: _within(link, folder), markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Put the page beside itself as Markdown."""
    beside = Path(config.site_dir) / page.file.src_uri
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(page.markdown or "")
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """Put the index for language models at the root of the site."""
    text = from_the_root((ROOT / "llms.txt").read_text())
    (Path(config.site_dir) / "llms.txt").write_text(text)


def from_the_root(text: str) -> str:
    """Adapt the links of a text from the root of the repository to a page of docs/.

    Example:
        >>> from_the_root("[words](docs/concepts.md#words), [how](CONTRIBUTING.md)")
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


def _within(link: re.Match[str], folder: PurePosixPath) -> str:
    """Return the link, or only its text if it leads out of docs/."""
    target = normpath(f"{folder}/{link[2]}")
    if not target.startswith("../"):
        return link[0]
    name = target.removeprefix("../")
    if name in AT_THE_ROOT:
        up = "../" * (len(folder.parts))
        return f"[{link[1]}]({up}{AT_THE_ROOT[name]}{link[3] or ''})"
    return link[1]
