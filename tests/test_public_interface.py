"""The public interface is what its list says, so that no change to it goes unnoticed; and the project's own files agree."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml
from test_house import ROOT

pytest.importorskip("griffe", reason="reading signatures needs griffelib")
from tests.public_interface import LIST, changes, lines


def test_the_public_interface_is_as_listed() -> None:
    listed = LIST.read_text(encoding="utf-8").splitlines()
    now = lines()
    assert len(now) > 700 and len(set(now)) == len(now)
    assert any(line.startswith("gristmill.run(recipe") for line in now)
    assert changes(now, listed) == [], "run `make api`; name what goes or changes in CHANGELOG.md under Upgrading"


def test_a_change_is_seen() -> None:
    assert changes(["a(x: int = 2)", "b"], ["a(x: int = 1)", "b"]) == ["- a(x: int = 1)", "+ a(x: int = 2)"]


def test_files_of_the_project_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    assert {"run": ".ci/run"} in workflow["jobs"]["test"]["steps"]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert lint
    tools = re.findall(r"\$\(BIN\)/(.*?)(?: \.)?\n", lint[1])
    [local] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook["entry"] for hook in local["hooks"]]
    assert len(tools) == len(hooks) == 3
    assert all(f".venv/bin/{tool}" in hook for tool, hook in zip(tools, hooks, strict=True))
    forms = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")]
    assert len(forms) == 2 and all(form["body"] and form["description"] for form in forms)


def test_the_images_hold_what_the_wheel_is_made_of() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    rooms = set(re.findall(r'"(\w+)"', (ROOT / "setup.py").read_text().split("ROOMS = (")[1].split(")")[0]))
    assert kept == {"gristmill", *rooms, "setup.py", "pyproject.toml", "README.md", "LICENSE"}
    assert all((ROOT / name).exists() for name in kept)
    docker = (ROOT / "Dockerfile").read_text()
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    asked = {name for names in re.findall(r"\$wheel\[([\w,]+)\]", docker) for name in names.split(",")}
    assert asked and asked <= extras
