"""Look at the book: pictures of its pages at three widths, axe-core on them, and search from disk.

    make docs && python docs/site/look.py FOLDER --axe node_modules/axe-core/axe.min.js [PAGE...]

writes FOLDER/PAGE-WIDTH-SCHEME.png, light and dark, and prints what axe calls serious or critical, what asked a server,
and what scrolls sideways as a whole. The exit code is 1 if there is any of it. A page is a name in the book, or an HTML
file elsewhere, such as a run's report.html.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
WIDTHS = (390, 820, 1440)
PAGES = (
    "index",
    "start",
    "tour",
    "how_to/s3",
    "python",
    "notebooks/look_at_a_crawl",
    "notebooks/read_an_ablation",
    "design",
    "design/stages",
    "design/global_stages",
    "rules",
    "coming_from",
    "limits",
    "reference/stages",
    "reference/reasons",
    "reference/plans",
)
SERIOUS = ("serious", "critical")
WORD = "shingles"  # to search for


def faults_of(page: Any, axe: Path) -> list[str]:
    page.evaluate(axe.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"axe: {each['id']} ({each['impact']}), {len(each['nodes'])} places, such as {each['nodes'][0]['target']}"
        for each in found["violations"]
        if each["impact"] in SERIOUS
    ]


def search(page: Any) -> list[str]:
    page.goto((SITE / "index.html").as_uri())
    page.evaluate("document.querySelector('.md-search__input').focus()")
    page.locator(".md-search__input").press_sequentially(WORD)
    try:
        page.wait_for_selector(".md-search-result__link", timeout=30_000)
    except Exception as error:
        return [f"search from disk finds nothing for {WORD}: {str(error).splitlines()[0]}"]
    return []


def look(folder: Path, names: list[str], axe: Path | None) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    faults: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            for width in WIDTHS:
                page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=scheme, bypass_csp=True)
                asked: list[str] = []
                page.on("request", lambda request, asked=asked: asked.append(request.url))
                for name in names:
                    page.goto((Path(name).resolve() if name.endswith(".html") else SITE / f"{name}.html").as_uri())
                    page.wait_for_timeout(300)
                    where = f"{name} at {width}, {scheme}"
                    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                        faults.append(f"{where}: wider than the window")
                    faults += [f"{where}: {fault}" for fault in (faults_of(page, axe) if axe else [])]
                    called = name.removesuffix(".html").strip("/").replace("/", "-")
                    page.screenshot(path=folder / f"{called}-{width}-{scheme}.png")
                faults += [f"asks {url}" for url in asked if not url.startswith(("file:", "data:", "blob:"))]
                page.close()
        faults += search(browser.new_page())
        browser.close()
    return sorted(set(faults))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("pages", nargs="*", default=list(PAGES))
    parser.add_argument("--axe", type=Path, help="axe.min.js of the npm package axe-core")
    given = parser.parse_args()
    found = look(given.folder, given.pages, given.axe)
    print("\n".join(found) or f"nothing serious on {len(given.pages)} pages at {len(WIDTHS)} widths, light and dark")
    sys.exit(bool(found))
