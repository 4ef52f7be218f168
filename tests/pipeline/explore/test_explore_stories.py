"""The page of each document tells what the run did to it, through stages that write documents anew; held against the
files themselves."""

from __future__ import annotations

import json
from pathlib import Path

from gristmill.pipeline.look.history import history
from gristmill.pipeline.look.run_folder import NotFound, RunFolder
from tests.pipeline.explore.explore_runs import Asker, served
from tests.pipeline.runs import go, save, written

NOTICE = "This site uses cookies to give you the best of all that the mill can offer you today and tomorrow."


def crawl(folder: Path) -> None:
    """Pages with a text of their own and a notice; every third is the notice alone."""
    folder.mkdir()
    for file in range(3):
        rows = [
            {"text": NOTICE if n % 3 == 0 else f"{words(file, n)}\n{NOTICE}", "url": f"http://a/{file}/{n}"}
            for n in range(15)
        ]
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def words(file: int, n: int) -> str:
    return " ".join(f"w{file * 1000 + n * 30 + k}" for k in range(20))


def test_stories_and_texts_are_those_of_the_files(tmp_path: Path) -> None:
    crawl(tmp_path / "in")
    stages = "[paragraph_dedup, text_signals, {gopher_quality: {min_words: 15, min_stop_words: 0, min_alphabetic_word_share: 0}}, exact_dedup, write]"
    recipe = save(
        tmp_path / "recipe.yaml",
        f"name: stories\nparts: {{files: 1}}\nsources: {{a: {{jsonl: {{path: in}}}}}}\nstages: {stages}\n",
    )
    summary, _ = go(recipe, tmp_path / "out")
    kept = dict(written(tmp_path / "out"))
    assert 25 <= len(kept) <= 31 and summary.record.to_json()["stages"][0]["kept"] == 45
    seen = 0
    with served(tmp_path / "out") as server:
        asker = Asker(server)
        links = asker.links("/documents", "^/document/")
        for link in links:
            uid = int(link.split("/")[2].split("?")[0], 16)
            story = history(RunFolder(tmp_path / "out"), uid=uid)
            assert (story.outcome == "kept") == (uid in kept), story.verdicts
            text = asker.get(link).text
            if uid in kept:
                assert story.text is not None and kept[uid].startswith(story.text) and kept[uid] in text
                assert "written to write/" in text and [one.row for one in story.written] != [None]
                seen += 1
            else:
                last = story.verdicts[-1]
                assert (
                    f'{last.stage}: <span dir="auto">{last.reason}<' in asker.get("/documents").text
                    and str(last.reason) in text
                )
    assert len(links) == 45 and seen == len(kept)


def test_a_uid_of_no_document_has_no_story(tmp_path: Path) -> None:
    crawl(tmp_path / "in")
    go(
        save(tmp_path / "recipe.yaml", "name: few\nsources: {a: {jsonl: {path: in}}}\nstages: [write]\n"),
        tmp_path / "out",
    )
    try:
        history(RunFolder(tmp_path / "out"), uid=12345)
    except NotFound as error:
        assert "no document 0000000000003039" in str(error)
    else:
        raise AssertionError("found")
