r"""Make the pictures of docs/viewer.md and docs/concepts.md anew, from a run and two evaluations.

    coevo train quickstart --set store.record=all
    coevo eval quickstart --policy static --samples 4 --name static-at-4
    coevo eval quickstart --samples 4 --name coevolve-at-4
    python -m tests.view.pictures runs/quickstart docs/pictures \
      evals/static-at-4 evals/coevolve-at-4

One picture a view, with it light, dark and narrow beside each other; and some large ones. Chromium
takes them and writes them as WebP; README's, of the run's page, is a PNG.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from playwright.sync_api import Browser, ViewportSize

from tests.view import browsing
from tests.view.serving import serve_viewer

WIDE, NARROW = {"width": 1180, "height": 740}, {"width": 360, "height": 740}
LOOKS: tuple[dict[str, Any], ...] = (
    {"viewport": WIDE},
    {"viewport": WIDE, "color_scheme": "dark"},
    {"viewport": NARROW},
)
README: ViewportSize = {"width": 1280, "height": 850}
STORY = "e61a84748600e303e09b76eae6bf9379b662d124da3c3d9ff3c432d028a2eff5"
"""Id of the task whose life docs/concepts.md tells."""
TALL: ViewportSize = {"width": 1180, "height": 1110}
LARGE = ("run", "trajectory", "drafts", "comparison")
SCALE, GAP = 0.5, 12
_COMPOSE = """
async ([pictures, scale, gap, quality]) => {
  const images = await Promise.all(pictures.map((data) => new Promise((done) => {
    const image = new Image();
    image.onload = () => done(image);
    image.src = `data:image/png;base64,${data}`;
  })));
  const canvas = document.createElement("canvas");
  const wide = images.map((image) => Math.round(image.width * scale));
  canvas.width = wide.reduce((sum, width) => sum + width + gap, -gap);
  canvas.height = Math.round(Math.max(...images.map((image) => image.height)) * scale);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  let left = 0;
  images.forEach((image, i) => {
    context.drawImage(image, left, 0, wide[i], Math.round(image.height * scale));
    left += wide[i] + gap;
  });
  return canvas.toDataURL("image/webp", quality).split(",")[1];
}
"""


def view_addresses(address: str, run: str, evals: Sequence[str]) -> dict[str, str]:
    """A place of each view that has something to show, by its name.

    Args:
        address: of the viewer.
        run: id of the run.
        evals: ids of two evaluations on the same tasks.
    """

    def get(path: str, **filters: str) -> Any:
        with urlopen(f"{address}/api/{path}?{urlencode(filters)}") as answer:
            return json.load(answer)

    root = f"runs/{run}"
    arm = get(root)["arms"][-1]["name"]
    rounds = get(f"{root}/arms/{arm}/rounds")["rows"]
    latest = rounds[len(rounds) // 2]["id"]
    failed = get(f"{root}/trajectories", arm=arm, success="false", signal="boundary")["rows"][0]
    group = get(f"{root}/arms/{arm}/groups/{failed['group']}")["trajectories"]
    solved = next(row for row in group if row["success"])
    tasks = get(f"{root}/tasks", origin="evolved", arm=arm, sort="-episodes")["rows"]
    evolved = max(tasks, key=lambda task: (task["generation"], task["episodes"]))["id"]
    both = next(task for task in tasks if all(one["episodes"] for one in task["practice"]))["id"]
    sides = urlencode({"a": f"{root}/trajectories/{solved['id']}",
                       "b": f"{root}/trajectories/{failed['id']}"})  # fmt: skip
    rejected = get(f"{root}/drafts", accepted="false")["rows"][0]["id"]
    steps = [one["step"] for one in get(root)["evaluations"] if one["arm"] == arm and one["kept"]]
    before, after = (f"evals/{name}" for name in evals)
    return {
        "runs": "#/",
        "run": f"#/{root}",
        "arm": f"#/{root}/arms/{arm}",
        "round": f"#/{root}/arms/{arm}/rounds/{latest}",
        "group": f"#/{root}/arms/{arm}/groups/{failed['group']}",
        "trajectories": f"#/{root}/trajectories",
        "trajectory": f"#/{root}/trajectories/{failed['id']}?step=3",
        "tasks": f"#/{root}/tasks",
        "task": f"#/{root}/tasks/{evolved}",
        "drafts": f"#/{root}/drafts",
        "draft": f"#/{root}/drafts/{rejected}",
        "arms": f"#/{root}/arms",
        "task-arms": f"#/{root}/tasks/{both}/arms",
        "side": f"#/side?{sides}",
        "search": f"#/search?q=back&run={run}",
        "evaluation": f"#/{after}",
        "arm-evaluation": f"#/{root}/evaluations/{arm}/{steps[-1]}",
        "comparison": f"#/compare?{urlencode({'a': before, 'b': after})}",
    }


def take_pictures(
    browser: Browser, address: str, where: Mapping[str, str]
) -> dict[str, list[bytes]]:
    """Of each place a picture in each look."""
    pictures: dict[str, list[bytes]] = {name: [] for name in where}
    for look in LOOKS:
        with browsing.visit(browser, **look) as visit:
            for name, place in where.items():
                visit.go(place, address)
                visit.page.wait_for_timeout(300)  # charts are drawn
                pictures[name].append(visit.page.screenshot())
            assert not visit.complaints, visit.complaints
    return pictures


def picture(browser: Browser, address: str, place: str, viewport: ViewportSize) -> bytes:
    """Take one picture of a page, as a PNG."""
    with browsing.visit(browser, viewport=viewport) as visit:
        visit.go(place, address)
        visit.page.wait_for_timeout(300)  # charts are drawn
        return visit.page.screenshot()


def compose(
    browser: Browser, pictures: list[bytes], scale: float = SCALE, quality: float = 0.44
) -> bytes:
    """Pictures beside each other as one WebP."""
    with browsing.visit(browser) as visit:
        data = [base64.b64encode(picture).decode() for picture in pictures]
        return base64.b64decode(visit.page.evaluate(_COMPOSE, [data, scale, GAP, quality]))


def main(run: Path, folder: Path, evals: Sequence[Path]) -> None:
    """Take the pictures of a run and of two evaluations, and write them to a folder."""
    folder.mkdir(exist_ok=True)
    paths = [str(path) for path in (run, *evals)]
    with serve_viewer(paths) as address, browsing.browser() as browser:
        where = view_addresses(address, run.name, [path.name for path in evals])
        screenshots = take_pictures(browser, address, where)
        for name, pictures in screenshots.items():
            (folder / f"{name}.webp").write_bytes(compose(browser, pictures))
            if name in LARGE:
                large = compose(browser, pictures[:1], scale=1.0)
                (folder / f"{name}-large.webp").write_bytes(large)
        (folder / "viewer.png").write_bytes(picture(browser, address, where["run"], README))
        life = picture(browser, address, f"{where['tasks']}/{STORY}", TALL)
        (folder / "life.webp").write_bytes(compose(browser, [life], scale=1.0))
    print(sum(file.stat().st_size for file in folder.glob("*.webp")) // 1000, "kB")


if __name__ == "__main__":
    run, folder, *evals = map(Path, sys.argv[1:])
    main(run, folder, evals)
