"""Pages opened in a real Chromium: what it says on its console, what it asks for, and what axe-core finds.

Chromium is Debian's (or that of CHROMIUM), axe-core's axe.min.js is where AXE_CORE says or in node_modules; tests that
need one of them skip without it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (390, 820, 1440)


@dataclass
class Opened:
    """A page at one width and colour scheme, and what happened since it was opened."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def serious_faults(self) -> list[str]:
        self.page.evaluate(axe_core())
        found = self.page.evaluate("axe.run()")
        return [
            f"{its['id']}: {its['nodes'][0]['html']}"
            for its in found["violations"]
            if its["impact"] in ("serious", "critical")
        ]

    def overflow(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser that finds no other host than this one."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not path:
        pytest.skip("no Chromium is here (apt-get install chromium, or say where in CHROMIUM)")
    with api.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--host-resolver-rules=MAP *.invalid 127.0.0.1"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


def axe_core() -> str:
    places = [
        os.environ.get("AXE_CORE", ""),
        "node_modules/axe-core/axe.min.js",
        str(Path.home() / "node_modules/axe-core/axe.min.js"),
    ]
    for place in places:
        if place and Path(place).is_file():
            return Path(place).read_text(encoding="utf-8")
    pytest.skip("no axe-core is here (npm install axe-core, or say where axe.min.js is in AXE_CORE)")


@contextmanager
def opened(path: Path, width: int = 1440, scheme: str = "light", strict: bool = True) -> Iterator[Opened]:
    """The page of a file. `strict` False lifts its Content-Security-Policy, so that axe-core may run."""
    with chromium() as browser:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=not strict
        )
        found = Opened(context.new_page())
        found.page.on("console", lambda message: found.said.append(message.text))
        found.page.on("pageerror", lambda error: found.said.append(str(error)))
        found.page.on("request", lambda request: found.asked.append(request.url))
        found.page.on("dialog", found.dismiss)
        found.page.goto(path.resolve().as_uri())
        found.page.wait_for_load_state("networkidle")
        yield found
