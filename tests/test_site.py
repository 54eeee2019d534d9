"""The documentation as a site: it is built without a warning, and asks the network for nothing."""

from __future__ import annotations

import doctest
import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import coevo_gym

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ENTRY = re.compile(r"^- \[[^\]]+\]\(([^)]+)\)(?:: .+)?$")
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Tag → the attribute that makes a browser fetch something."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it; `--quiet` would hide the warnings from `--strict`."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Fetched(HTMLParser):
    """Collects what a browser would fetch to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(LOADED.get(tag, ""))
        if address and "canonical" not in (dict(attrs).get("rel") or ""):
            self.addresses.append(address)


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        parser = Fetched()
        text = page.read_text()
        parser.feed(text)
        assert parser.addresses
        assert not [one for one in parser.addresses if re.match(r"(\w+:)?//", one)], page
        assert 'class="mermaid"' not in text, "a diagram by mermaid is fetched from elsewhere"


def test_every_markdown_table_is_rendered_as_a_table(site: Path) -> None:
    """Python-Markdown, unlike GitHub, does not recognise a table right below a code block."""
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        meant = len(re.findall(r"^\|(?: *:?-+:? *\|)+$", text, re.MULTILINE))
        count = (site / page.relative_to(DOCS)).with_suffix(".html").read_text().count("<table>")
        assert count >= meant, f"{page.name} has {meant} tables and shows {count}"


def test_no_page_is_in_the_navigation_twice() -> None:
    pages = re.findall(r"^ +- .*?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(pages) > 50
    assert len(pages) == len(set(pages))


def test_every_page_is_also_published_as_markdown(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        beside = site / page.relative_to(DOCS)
        assert beside.is_file(), f"{page.name} is not in the site as Markdown"
        assert beside.with_suffix(".html").is_file()
    index = (site / "llms.txt").read_text()
    for link in re.findall(r"\]\(([^)]+)\)", index):
        assert (site / link).is_file(), f"llms.txt links to {link}"


def test_terms_show_their_meaning_where_a_page_first_uses_them(site: Path) -> None:
    text = (DOCS / "glossary.md").read_text().partition("|---|---|\n")[2]
    words = re.findall(r"^\| \**([^|*]+?)\** \| ", text, re.MULTILINE)
    assert words == sorted({*words}, key=str.lower), "not in order, or defined twice"
    glossary = (site / "glossary.html").read_text()
    assert 'class="term"' not in glossary
    pages = {page.name: page.read_text() for page in (site / "howto").glob("*.html")}
    for name, page in pages.items():
        anchors = re.findall(r'<a class="term" href="\.\./glossary\.html#([\w-]+)" title=', page)
        assert anchors, f"{name} has no hover texts"
        assert len(anchors) == len({*anchors}), f"{name} explains a term twice"
        assert all(f'<td id="{anchor}">' in glossary for anchor in anchors)


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    pages = {page.name: page.read_text() for page in (site / "api").glob("*.html")}
    for name in coevo_gym.__all__:
        link = re.search(
            rf'href="([\w.]*)#(coevo_gym\.[\w.]*)"[^>]*><code>{name}<', pages["index.html"]
        )
        assert link, f"docs/api/index.md does not list {name}"
        assert f'id="{link[2]}"' in pages[link[1] or "index.html"]
    for name in ("EvolvingTaskSampler", "CurriculumSession", "train", "evaluate"):
        assert f'<h2 id="coevo_gym.{name}"' in pages["index.html"], "shown by the name to import"


def test_methods_for_callers_come_before_hooks_in_the_reference(site: Path) -> None:
    envs = (site / "api" / "envs.html").read_text()
    names = re.findall(r'<h3 id="coevo_gym\.envs\.base\.TaskEnv\.(\w+)"', envs)
    assert names[:4] == ["reset", "step", "render", "close"]
    assert {"task", "view", "cut", "max_live"} <= {*names}
    assert names.index("view") < names.index("max_live")


@pytest.mark.parametrize("word", ["faq", "hyperparameter", "colab", "bug", "cite"])
def test_the_search_index_has_a_title_for_a_common_word(site: Path, word: str) -> None:
    (index,) = (site / "search").glob("search_index.json")
    titles = [doc["title"] for doc in json.loads(index.read_text())["docs"]]
    assert any(re.search(rf"\b{word}", title, re.IGNORECASE) for title in titles)


def test_the_table_of_trainers_and_its_code_block_fit_into_the_page(site: Path) -> None:
    from tests.view import browsing

    with browsing.browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto((site / "trainers.html").as_uri())
        for part in (".md-typeset__scrollwrap", ".highlight code"):
            hidden = page.locator(part).first.evaluate("one => one.scrollWidth - one.clientWidth")
            assert hidden <= 0, f"{part} is cut by {hidden} px"


def test_the_diagram_is_readable_on_light_and_dark_pages() -> None:
    from tests.view.test_pages import contrast

    svg = (DOCS / "assets" / "loop.svg").read_text()
    assert max(map(int, re.findall(r'<rect [^>]*width="(\d+)"', svg))) < 770, "a background"
    light, dark = svg.partition("</style>")[0].split("@media (prefers-color-scheme: dark)")
    for page in (rgb("ffffff"), rgb("1e2129")):
        assert contrast(colour(light, r"\bpath", "stroke"), page) >= 3
    for style in (light, dark):
        for words in (r"\btext", r"\.soft"):
            assert contrast(colour(style, words, "fill"), colour(style, r"\.card", "fill")) >= 4.5


def colour(style: str, selector: str, what: str) -> tuple[float, ...]:
    match = re.search(rf"{selector} \{{[^}}]*\b{what}: #(\w{{6}})", style)
    assert match
    return rgb(match[1])


def rgb(digits: str) -> tuple[float, ...]:
    return tuple(part / 255 for part in bytes.fromhex(digits))


def test_llms_txt_is_well_formed_and_lists_every_page() -> None:
    title, *rest = (ROOT / "llms.txt").read_text().splitlines()
    assert title.startswith("# ")
    assert rest[1].startswith("> ")
    body = rest[rest.index("## Start") :]
    for line in body:
        assert not line or line.startswith("## ") or ENTRY.match(line), line
    targets = {match[1] for line in body if (match := ENTRY.match(line))}
    detail = {DOCS / "methods", DOCS / "api"}  # each has a page that leads to the others
    pages = [page for page in DOCS.rglob("*.md") if page.parent not in detail]
    assert {str(page.relative_to(ROOT)) for page in pages} <= targets, (
        "a page has no line in llms.txt"
    )
    assert all((ROOT / target).is_file() for target in targets)


@pytest.mark.parametrize("name", ["site_hooks", "docstrings"])
def test_examples_in_the_scripts_of_the_docs_run(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
