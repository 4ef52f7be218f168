"""Near-deduplication on the engine: the same survivors for any workers, parts and order, an index that a later run
finds, and a report to read."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.portion import Portion
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.dry_run import foresee
from gristmill.pipeline.run.run import run
from gristmill.pipeline.shuffle import shuffle
from gristmill.pipeline.shuffle.saved_index import check_saved, read_index, write_index
from gristmill.pipeline.store.storage import Store
from gristmill.stages.dedup import components
from tests.pipeline.runs import Counting, go, save, written

RECIPE = "name: r\nparts: {{{parts}}}\nsources:\n  a: {{jsonl: {{path: {path}}}}}\nstages:\n  - minhash_dedup: {{{settings}}}\n  - write\n"
FILES = [f"f{n}.jsonl" for n in range(6)]


def make(folder: Path) -> None:
    """Sixty texts, twenty with an edited copy in another file, and one that is there thirty times."""
    folder.mkdir()
    dice = random.Random(0)
    words = [f"w{n}" for n in range(4000)]
    pages = [[dice.choice(words) for _ in range(80)] for _ in range(60)]
    texts = [*pages, *([*page[:40], "edited", *page[40:]] for page in pages[:20]), *([pages[30]] * 30)]
    dice.shuffle(texts)
    for at, name in enumerate(FILES):
        save(folder / name, "".join(json.dumps({"text": " ".join(t)}) + "\n" for t in texts[at::6]))


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str]]]:
    folder = tmp_path_factory.mktemp("usual")
    make(folder / "in")
    go(
        save(folder / "r.yaml", RECIPE.format(parts="files: 1", path="in", settings="save_index: index")),
        folder / "out",
    )
    found = written(folder / "out")
    assert len(found) == 60 and sum(" edited " in text for _, text in found) == 20, "of two the longer stays"
    return folder, found


@pytest.mark.run
@pytest.mark.parametrize(("parts", "workers"), [("files: 50", 1), ("files: 1, max_bytes: 3000", 2)])
def test_parts_and_workers_do_not_matter(
    tmp_path: Path, usual: tuple[Path, list[tuple[int, str]]], parts: str, workers: int
) -> None:
    make(tmp_path / "in")
    go(save(tmp_path / "r.yaml", RECIPE.format(parts=parts, path="in", settings="")), tmp_path / "out", workers=workers)
    assert written(tmp_path / "out") == usual[1]


def test_neither_do_rounds_nor_regrouping(
    tmp_path: Path, usual: tuple[Path, list[tuple[int, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Components by rounds alone, buckets of a few rows, wide buckets on the way; an index of regrouped rows too."""
    monkeypatch.setattr(components, "IN_ONE_TASK", 0)
    monkeypatch.setattr(shuffle, "ROWS_A_BUCKET", 10)
    monkeypatch.setattr(shuffle, "MOST_SLICES", 16)
    make(tmp_path / "in")
    recipe = RECIPE.format(parts="files: 1", path="in", settings="save_index: index")
    _, anew = go(save(tmp_path / "r.yaml", recipe), tmp_path / "out")
    assert written(tmp_path / "out") == usual[1]
    assert anew["minhash_dedup", "regroup"] > 20 and anew["minhash_dedup", "reduce"] > 20
    left = [path.name.split("-")[1] for path in (tmp_path / "out" / "shuffle" / "minhash_dedup").glob("*.arrow")]
    assert "sign" in left and not {"nominate", "fetch", "links", "hooks"} & set(left), "what no round asks for goes"
    later = (
        RECIPE.format(parts="files: 1", path="in", settings="against: [index]")
        .replace("name: r", "name: later")
        .replace("  a:", "  b:")
    )
    go(save(tmp_path / "later.yaml", later), tmp_path / "later")
    assert not written(tmp_path / "later"), "all that was kept is in the index"


def test_the_order_of_files_does_not_matter(tmp_path: Path, usual: tuple[Path, list[tuple[int, str]]]) -> None:
    make(tmp_path / "in")
    listed = f"[{', '.join(f'in/{n}' for n in (*FILES[3:], *FILES[:3]))}]"
    go(save(tmp_path / "r.yaml", RECIPE.format(parts="files: 1", path=listed, settings="")), tmp_path / "out")
    assert written(tmp_path / "out") == usual[1]


def test_a_later_run_against_the_saved_index(tmp_path: Path, usual: tuple[Path, list[tuple[int, str]]]) -> None:
    folder, kept = usual
    new = " ".join(f"new{n}" for n in range(60))
    fresh = [f"{new} and longer", f"now {kept[0][1]}", new]
    (tmp_path / "in").mkdir()
    save(tmp_path / "in" / "f.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in fresh))
    shutil.copytree(folder / "index", tmp_path / "index")  # beside the recipe, as all its paths are
    recipe = save(tmp_path / "r.yaml", RECIPE.format(parts="files: 1", path="in", settings="against: [index]"))
    go(recipe, tmp_path / "out")
    assert [text for _, text in written(tmp_path / "out")] == fresh[:1]
    rows = [
        r
        for p in (tmp_path / "out" / "stages" / "minhash_dedup" / "rejects").glob("*.parquet")
        for r in pq.read_table(p).to_pylist()
    ]
    assert sorted(r["text"] for r in rows) == sorted(fresh[1:]) and {r["reason"] for r in rows} == {"near_duplicate"}
    assert [r["detail"].endswith(f" like {kept[0][0]:016x}, kept by index") for r in rows if r["text"] == fresh[1]] == [
        True
    ]
    assert {seen.why for seen in foresee(recipes.load(recipe), str(tmp_path / "out"))} == {"up to date"}
    bands = Store(str(tmp_path / "index" / "bands"))
    written_before = read_index(bands)
    assert written_before is not None
    write_index(bands, replace(written_before, files=()))
    whys = {seen.name: seen.why for seen in foresee(recipes.load(recipe), str(tmp_path / "out"))}
    assert whys["minhash_dedup"] == "its documents changed, or what earlier runs saved for it"


def test_saved_indexes_are_never_lost_by_accident(tmp_path: Path) -> None:
    """By a run on a part, by another recipe, or by one that saves where it looks; and what is not there is said before
    any work."""
    make(tmp_path / "in")
    saves = save(tmp_path / "r.yaml", RECIPE.format(parts="files: 1", path="in", settings="save_index: index"))
    go(saves, tmp_path / "out")
    index = tmp_path / "index" / "bands" / "index.json"
    whole = index.read_bytes()
    assert (json.loads(whole)["run"]["name"], json.loads(whole)["run"]["stage"]) == ("r", "minhash_dedup")
    run(recipes.load(saves), str(tmp_path / "out-sample"), Where(1), Counting(), Portion(documents=10))
    assert index.read_bytes() == whole and list(
        (tmp_path / "out-sample" / "index" / "minhash_dedup").glob("*/index.json")
    )
    other = save(tmp_path / "s.yaml", saves.read_text().replace("name: r", "name: s"))
    with pytest.raises(RecipeError, match=r"s.yaml:6: minhash_dedup: .*index/bands is of r/minhash_dedup"):
        go(other, tmp_path / "other")
    both = save(
        tmp_path / "t.yaml",
        RECIPE.format(parts="files: 1", path="in", settings="save_index: ./index, against: [index]"),
    )
    with pytest.raises(RecipeError, match="would be replaced, and is what is compared with"):
        go(both, tmp_path / "both")
    none = save(tmp_path / "u.yaml", RECIPE.format(parts="files: 1", path="in", settings="against: [indexes]"))
    with pytest.raises(RecipeError, match=r"u.yaml:6: minhash_dedup: .*indexes/bands holds no saved index"):
        check_saved(recipes.load(none), whole=True)
    assert index.read_bytes() == whole and not (tmp_path / "both" / "run.json").exists()
    shutil.rmtree(tmp_path / "index" / "bands")
    whys = {seen.name: seen.why for seen in foresee(recipes.load(saves), str(tmp_path / "out"))}
    assert whys["minhash_dedup"] == "what it keeps for later runs is gone: it is saved again"
    go(saves, tmp_path / "out")
    assert index.read_bytes() == whole
    assert {seen.why for seen in foresee(recipes.load(saves), str(tmp_path / "out"))} == {"up to date"}


def test_the_report_shows_clusters_and_marked_pairs(usual: tuple[Path, list[tuple[int, str]]]) -> None:
    page = (usual[0] / "out" / "report.html").read_text()
    assert (
        "21 clusters of 71 documents, by size; the largest has 31" in page
        and "<ins>edited</ins>" in page
        and "18 bands of 7 rows" in page
    )
