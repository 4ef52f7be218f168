"""Pictures of the report and the other pages, as they are today: `python docs/site/pictures.py` (needs Chromium).

    python docs/site/pictures.py [FOLDER]

runs the demo in FOLDER (a temporary one unless given), a second run with another threshold, and photographs report,
explorer and comparison into docs/pictures, in few colors, so that the files stay small.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
COLORS = 64
MARGIN = 16
TALLEST = 900  # pixels of a section
STAGES = {"duplicates": "minhash_dedup", "curriculum": "order", "packing": "pack", "tokens": "tokenize"}
PARTS = {  # of the report
    "languages": "section:has(#languages)",
    **{name: f"details.stage:has(h3:text-is('{stage}'))" for name, stage in STAGES.items()},
}
SECOND = "  - gopher_quality"
MOVE = """x => {
  x.value = Number(x.min) + (Number(x.max) - Number(x.min)) * 0.55
  x.dispatchEvent(new Event("input", {bubbles: true}))
}"""


def gristmill(folder: Path, *words: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([str(Path(sys.executable).parent / "gristmill"), *words], cwd=folder, text=True, **more)


def demo(folder: Path) -> None:
    """Two runs on the demo's crawl: as it comes, and with another threshold. What is there already stays."""
    if (folder / "demo" / "strict" / "compare.html").exists():
        return
    if not (folder / "demo" / "run" / "report.html").exists():
        gristmill(folder, "demo", "--out", "demo").wait()
    text = (folder / "demo" / "crawl" / "demo.yaml").read_text()
    strict = text.replace(f"{SECOND}\n", f"{SECOND}: {{min_words: 110}}\n").replace("name: demo", "name: strict")
    (folder / "demo" / "crawl" / "strict.yaml").write_text(strict)
    gristmill(folder, "run", "demo/crawl/strict.yaml", "--out", "demo/strict").wait()
    gristmill(folder, "report", "demo/run", "demo/strict").wait()


def page_clip(page: Any, box: dict[str, float]) -> dict[str, float]:
    """A place in the window, with a margin, as one on the whole page."""
    wide = {"x": box["x"] - MARGIN, "width": box["width"] + 2 * MARGIN}
    return {**box, **wide, "y": box["y"] + page.evaluate("scrollY")}


def save(name: str, picture: bytes) -> None:
    image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    image.save(PICTURES / f"{name}.png", optimize=True)
    print(f"docs/pictures/{name}.png {(PICTURES / f'{name}.png').stat().st_size:,} bytes")


def main(folder: Path) -> None:
    demo(folder)
    explorer = gristmill(folder, "explore", "demo/run", "--no-open", "--port", "8187", stdout=subprocess.PIPE)
    try:
        address = next(line for line in iter(lambda: str(explorer.stdout.readline()), "") if "http" in line)  # type: ignore[union-attr]
        address = next(word for word in address.split() if word.startswith("http"))
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1100, "height": 1000})
            page.goto((folder / "demo" / "run" / "report.html").as_uri())
            save("report-overview", page.screenshot())
            slider = page.locator("input[type=range]").first
            slider.evaluate(MOVE)
            slider.scroll_into_view_if_needed()
            save("report-what-if", page.screenshot())
            page.reload()
            for name, place in PARTS.items():
                section = page.locator(place)
                section.evaluate("its => { its.open = true; }")
                section.scroll_into_view_if_needed()
                box = section.bounding_box()
                clip = {**box, "height": min(box["height"], TALLEST)}
                save(f"report-{name}", page.screenshot(full_page=True, clip=page_clip(page, clip)))
            page.goto((folder / "demo" / "strict" / "compare.html").as_uri())
            save("compare", page.screenshot())
            page.goto(address)
            save("explore", page.screenshot())
            page.get_by_role("link", name="Documents").first.click()
            page.locator("p.head a").first.click()
            page.wait_for_timeout(1000)
            save("explore-document", page.screenshot())
            browser.close()
    finally:
        explorer.terminate()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
