"""Runs that keep little, answers of language models, indexes and cards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from gristmill.pipeline.shuffle.saved_index import rows_in_index
from gristmill.pipeline.store.storage import Store
from tests.classifiers.llm.llm_server import LanguageServer, chat_reply, prompt_of
from tests.pipeline.forget.forgetting import RECIPE, ask, contents, documents, places, tokens_of, windows
from tests.pipeline.runs import go, lines, save
from tests.stages.pdf.made_pdfs import SCAN, pdf


def test_indexes_and_cards_follow_and_asking_again_does_nothing(out: Path) -> None:
    rows = documents(out)
    uids = np.array([row["uid"] for row in rows[:6]], np.uint64)
    index = Store(str(out.parent / "index/exact/hashes"))
    held = rows_in_index(index, np.array([row["uid"] for row in rows], np.uint64))
    assert rows_in_index(index, uids) == len(uids) and held >= len(rows)
    card = (out / "shards/README.md").read_text()
    names = [f"{uid:016x}" for uid in uids.tolist()]
    ask(out, *names)
    assert rows_in_index(index, uids) == 0
    assert rows_in_index(index, np.array([row["uid"] for row in rows], np.uint64)) == held - len(uids)
    assert "taken out of this data set" in (out / "shards/README.md").read_text()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    receipt = ask(out, *names)
    assert receipt["documents"] == 0 and "receipt" not in receipt
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    go(out.parent / "r.yaml", out)
    tokens = sum(map(len, tokens_of(out).values()))
    told = json.loads((out / "stages/pack/report.json").read_text())["packing"]
    assert told["tokens"] == tokens == sum(counts["tokens"] for counts in told["sources"].values())
    assert sum(counts["documents"] for counts in told["sources"].values()) == len(tokens_of(out)) == len(documents(out))
    assert f"{tokens:,}" in (out / "shards/README.md").read_text() and f"{tokens:,}" not in card


def test_an_index_elsewhere_is_known_to_a_second_takedown_too(out: Path) -> None:
    rows = documents(out)
    index = Store(str(out.parent / "index/exact/hashes"))
    for row in rows[:2]:
        assert rows_in_index(index, np.array([row["uid"]], np.uint64)) == 1
        ask(out, f"{row['uid']:016x}")
        assert rows_in_index(index, np.array([row["uid"]], np.uint64)) == 0


@pytest.mark.parametrize("keep", ["signals", "nothing"])
def test_a_run_that_keeps_little(out: Path, keep: str) -> None:
    recipe = save(out.parent / "little.yaml", RECIPE.replace("name: r", f"name: r\nkeep: {keep}"))
    shutil.rmtree(out)
    shutil.rmtree(out.parent / "index")
    go(recipe, out)
    rows = documents(out)
    gone, stay = rows[::6], [row for i, row in enumerate(rows) if i % 6]
    theirs = windows(str(row["text"]) for row in gone) - windows(str(row["text"]) for row in stay)
    receipt = ask(out, *(str(row["url"]) for row in gone))
    assert receipt["documents"] == len(gone) and len(theirs) > 1000
    rejected = (out / "stages").rglob("rejects/*.parquet")
    copies = windows(str(row["text"]) for path in rejected for row in documents(path.parent.parent, "rejects"))
    assert places(contents(out), theirs - copies) == {}
    assert documents(out) == stay
    go(recipe, out)
    left = {row["uid"] for row in documents(out)}
    came = left - {row["uid"] for row in stay}
    assert left >= {row["uid"] for row in stay} and came <= {int(uid, 16) for uid in receipt["may_return"]}
    assert (
        set(tokens_of(out)) == left
        and places(contents(out), theirs - windows(row["text"] for row in documents(out)) - copies) == {}
    )


def test_what_a_vision_model_read_goes_too(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / f"in/{number}.pdf").write_bytes(pdf([SCAN + b" 0 g %d 100 90 90 re f" % (20 * number)]))
    with LanguageServer(lambda path, body: chat_reply(f"A page that begins with {crc32(repr(body).encode()):08x}, and goes on.")) as server:  # fmt: skip
        asked = f"{{model: m, endpoint: '{server.url}', cache_path: {tmp_path / 'answers'}}}"
        recipe = f"name: r\nsources: {{a: {{pdf: {{path: in}}}}}}\nstages:\n  - ocr: {asked}\n  - extract\n  - write\n"
        go(save(tmp_path / "r.yaml", recipe), tmp_path / "out")
        rows = documents(tmp_path / "out")
        assert len({row["text"] for row in rows}) == 4
        receipt = ask(tmp_path / "out", f"{rows[0]['uid']:016x}")
    left = (tmp_path / "answers/answers-0000.jsonl").read_text()
    assert [row["text"] in left for row in rows] == [False, True, True, True]
    assert any(str(tmp_path / "answers") in line for line in receipt["not_reached"])


def test_what_a_model_wrote_of_a_document_goes_with_it_and_so_do_answers_that_quote_it(tmp_path: Path) -> None:
    texts = [
        f"The {i}th mill by the river has {i + 20} wheels, and the miller of house {i} turns them." for i in range(8)
    ]
    lines(tmp_path / "in/a.jsonl", texts)

    def again(path: str, body: dict[str, Any]) -> dict[str, Any]:
        prompt = prompt_of(body)
        passage = prompt.split("]\n", 1)[1].rsplit("\n[END", 1)[0]
        return chat_reply("end" if "name edits" in prompt else passage.replace(", and", ". Also,"))

    with LanguageServer(again) as server:
        asked = f"model: m, endpoint: '{server.url}', cache_path: {tmp_path / 'answers'}"
        stages = f"  - refine: {{{asked}}}\n  - rephrase: {{{asked}, styles: [wiki, distilled]}}\n  - write\n"
        go(
            save(tmp_path / "r.yaml", f"name: r\nsources: {{a: {{jsonl: {{path: in}}}}}}\nstages:\n{stages}"),
            tmp_path / "out",
        )
        signals = ("synthetic", "made_from")
        rows = documents(tmp_path / "out", signals=signals)
        assert len(rows) == 24 and sum(row["synthetic"] for row in rows) == 16
        kept = (tmp_path / "answers/answers-0000.jsonl").read_text().splitlines()
        assert len(kept) == 24
        gone = next(row["uid"] for row in rows if not row["synthetic"])
        written = next(row for row in rows if row["synthetic"] and row["made_from"] != f"{gone:016x}")
        receipt = ask(tmp_path / "out", f"{gone:016x}", f"{written['uid']:016x}")
        assert receipt["documents"] == 6
        left = documents(tmp_path / "out", signals=signals)
        both = {f"{gone:016x}", written["made_from"]}
        assert len(left) == 18 and not both & {row["made_from"] or f"{row['uid']:016x}" for row in left}
        assert len((tmp_path / "answers/answers-0000.jsonl").read_text().splitlines()) == 20, "two are one word"
        before = sum(server.asked.values())
        go(tmp_path / "r.yaml", tmp_path / "out")
        assert sum(server.asked.values()) == before and len(documents(tmp_path / "out")) == 18
    stages_of = json.loads((tmp_path / "out/run.json").read_text())["stages"]
    made = next(entry for entry in stages_of if entry["name"] == "rephrase")
    assert (made["docs_in"], made["made"], made["kept"]) == (6, 12, 18)
