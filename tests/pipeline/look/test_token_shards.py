"""From clean documents to token shards and a model that learns from them: the whole road, on any number of workers and
parts."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RunFailed
from gristmill.shards.batch import document_numbers, labels, positions
from gristmill.shards.loader import Loader
from gristmill.shards.orders import Shuffled
from gristmill.shards.reader import open_shards
from gristmill.shards.verify import verify
from gristmill.stages.tokens.tokenize import Tokenize
from tests.pipeline.runs import WORDS, go, lines, save, sentences

RECIPE = """
name: tokens
parts: {{files: {files}}}
sources:
  tales: {{jsonl: {{path: tales}}}}
  rhymes: {{jsonl: {{path: rhymes}}}}
stages:
  - tokenize: {{vocab_size: 600}}
  - mix: {{method: {{given: {{weights: {{tales: 0.6, rhymes: 0.4}}}}}}, budget: 30000, max_epochs: 8}}
  - order: {{by: {by}, schedule: {{stages: {{stages: 3}}}}, buckets: 3}}
  - pack: {{row_length: {lengths}, window_tokens: 4096, license: cc0-1.0}}
"""


def corpus(folder: Path) -> None:
    chance = random.Random(0)
    for source, files in (("tales", 6), ("rhymes", 2)):
        for number in range(files):
            lines(folder / source / f"{number}.jsonl", sentences(chance, 20, 200))


def made(
    folder: Path, out: str, files: int = 1, workers: int = 1, lengths: str = "[64, 256]", by: str = "mtld"
) -> Path:
    recipe = save(folder / f"{out}.yaml", RECIPE.format(files=files, lengths=lengths, by=by))
    go(recipe, folder / out, workers)
    return folder / out


def contents(out: Path) -> dict[str, Any]:
    """Of each set, its index without names of files."""
    found = {}
    for path in sorted(out.glob("shards/*/index.json")):
        index = json.loads(path.read_text())
        found[path.parent.name] = index | {
            "shards": [{k: v for k, v in shard.items() if k != "path"} for shard in index["shards"]]
        }
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    corpus(folder)
    return made(folder, "first")


@pytest.mark.run
def test_shards_are_the_same_for_any_workers_and_parts(run: Path) -> None:
    first = contents(run)
    assert set(first) == {"64", "256"} and len(first["64"]["shards"]) > 4
    assert contents(made(run.parent, "second", files=50, workers=2)) == first


def test_the_mix_is_kept_and_every_stretch_is_harder_than_the_last(run: Path) -> None:
    shards = open_shards(run / "shards" / "256")
    assert shards.index.sources["tales"] == pytest.approx(18_000, abs=120) and shards.index.sources[
        "rhymes"
    ] == pytest.approx(12_000, abs=120)
    segments = shards.index.segments
    buckets = [shards.row(i).bucket for i in range(len(shards))]
    assert (
        len(segments) == 3 and buckets == (np.searchsorted(segments, np.arange(len(shards)), side="right") - 1).tolist()
    )
    assert verify(run / "shards" / "256") == [] and verify(run / "shards" / "64") == []


def test_the_card_and_the_tokenizer_lie_beside_the_shards(run: Path) -> None:
    from tokenizers import Tokenizer

    card = (run / "shards" / "README.md").read_text()
    assert "license: cc0-1.0" in card and "path: 256/*.arrow" in card and "| tales |" in card and "60.00%" in card
    tokenizer = Tokenizer.from_file(str(run / "shards" / "256" / "tokenizer" / "tokenizer.json"))
    Tokenize(
        tokenizer=str(run / "shards" / "256" / "tokenizer")
    ).check()  # what it says of itself is enough for a run that goes on with it
    row = open_shards(run / "shards" / "256").row(0)
    text = tokenizer.decode(row.input_ids[: row.seq_lens[0] - 1].tolist())
    assert text.endswith(".") and set(text.lower().rstrip(".").split()) <= set(WORDS)


def test_what_an_earlier_version_wrote_goes(run: Path) -> None:
    corpus(run.parent / "changing")
    out = made(run.parent / "changing", "out", lengths="128")
    made(run.parent / "changing", "out", lengths="64")
    assert sorted(path.name for path in (out / "shards").iterdir()) == ["64", "README.md"]
    listed = {shard["path"] for shard in json.loads((out / "shards/64/index.json").read_text())["shards"]}
    assert {path.name for path in (out / "shards/64").glob("*.arrow")} == listed


def test_verify_and_export_on_the_command_line(run: Path, tmp_path: Path) -> None:
    ask = CliRunner().invoke
    fine = ask(app, ["maintain", "verify", str(run)])
    assert fine.exit_code == 0 and fine.output.count("all as written") == 3
    done = ask(app, ["export", str(run), str(tmp_path / "m"), "--to", "megatron", "--row-length", "64"])
    assert done.exit_code == 0 and (tmp_path / "m" / "tokens.bin").stat().st_size > 30_000
    assert "name one of" in str(ask(app, ["export", str(run), str(tmp_path / "n"), "--to", "mds"]).exception)
    assert "did you mean megatron" in str(
        ask(app, ["export", str(run / "shards" / "64"), str(tmp_path / "n"), "--to", "megatrom"]).exception
    )
    assert "no token shards are here" in str(ask(app, ["maintain", "verify", str(tmp_path)]).exception)
    shard = next((run / "shards" / "64").glob("*.arrow"))
    content = shard.read_bytes()
    try:
        shard.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
        broken = ask(app, ["maintain", "verify", str(run / "shards" / "64")])
        assert isinstance(broken.exception, RunFailed) and shard.name in broken.output.replace("\n", "")
        broken = ask(app, ["maintain", "verify", str(run)])
        assert str(broken.exception) == "1 fault", "the set does not say again what was said of the file"
    finally:
        shard.write_bytes(content)


def test_results_that_go_from_a_run_or_come_to_it_are_missed_and_named(run: Path, tmp_path: Path) -> None:
    def faults(change: Callable[[Path], object]) -> str:
        broken = tmp_path / "broken"
        shutil.copytree(run, broken)
        change(broken)
        said = CliRunner().invoke(app, ["maintain", "verify", str(broken)])
        assert isinstance(said.exception, RunFailed), said.output
        shutil.rmtree(broken)
        return said.output

    assert faults(lambda out: shutil.rmtree(out / "shards")).count(": is gone") > 6
    gone = faults(lambda out: shutil.rmtree(out / "shards" / "64"))
    assert "shards/64/index.json: is gone" in gone and "shards/256/" not in gone
    assert "tokenizer.json: is gone" in faults(lambda out: (out / "shards/64/tokenizer/tokenizer.json").unlink())

    def one_line_changes(out: Path) -> None:
        lines = (out / "journal/tasks.jsonl").read_bytes().splitlines(keepends=True)
        lines[4] = lines[4].replace(b"a", b"b", 1)
        (out / "journal/tasks.jsonl").write_bytes(b"".join(lines))

    assert "journal: 1 lines are not what was written" in faults(one_line_changes)
    assert "journal: is empty" in faults(lambda out: (out / "journal/tasks.jsonl").unlink())
    extra = faults(lambda out: shutil.copy(next(out.glob("shards/64/*.arrow")), out / "shards/64/more.arrow"))
    assert "more.arrow: lies among the shards" in extra
    recipe = run.parent / "first.yaml"
    shutil.copytree(run, run.parent / "planned")
    shutil.rmtree(run.parent / "planned" / "shards")
    plan = CliRunner().invoke(app, ["plan", str(recipe), "--out", str(run.parent / "planned")]).output
    assert "shards are gone: they" in plan and plan.count("up to date") >= 4, plan


def test_a_run_in_an_object_store_is_verified_and_not_exported(run: Path, tmp_path: Path) -> None:
    far = fsspec.filesystem("memory")
    far.put(str(run), "/verified", recursive=True)
    ask = CliRunner().invoke
    fine = ask(app, ["maintain", "verify", "memory://verified"])
    assert fine.exit_code == 0 and fine.output.index("with --read") < fine.output.index("written lengths")
    out = ask(app, ["export", "memory://verified", str(tmp_path / "m"), "--to", "mds"])
    assert "are read from a local folder" in str(out.exception)
    away = ask(app, ["export", str(run), "s3://bucket/m", "--to", "mds", "--row-length", "64"])
    assert "exports are written to a local folder" in str(away.exception)
    shard = next(path for path in far.find("/verified/shards/64") if path.endswith(".arrow"))
    far.pipe(shard, far.cat(shard)[:-8])
    assert isinstance(ask(app, ["maintain", "verify", "memory://verified"]).exception, RunFailed)
    far.rm("/verified", recursive=True)


def test_of_a_run_in_an_object_store_every_byte_is_checked_where_asked(run: Path) -> None:
    far = fsspec.filesystem("memory")
    far.put(str(run), "/read", recursive=True)
    ask = CliRunner().invoke
    fine = ask(app, ["maintain", "verify", "memory://read", "--read"])
    assert fine.exit_code == 0 and "all as written" in fine.output, fine.output
    alone = ask(app, ["maintain", "verify", "memory://read/shards/64", "--read"])
    assert "are read from a local folder" in str(alone.exception)
    shards = [name for name in sorted(far.find("/read/shards/64")) if name.endswith(".arrow")]
    texts = next(name for name in sorted(far.find("/read/partitions")) if name.endswith(".documents.parquet"))
    for name in (shards[0], texts):  # the length stays
        content = far.cat(name)
        far.pipe(name, content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    assert ask(app, ["maintain", "verify", "memory://read"]).exit_code == 0
    far.rm(shards[1])
    broken = ask(app, ["maintain", "verify", "memory://read", "--read"])
    assert isinstance(broken.exception, RunFailed)
    for name, what in ((texts, "its content is not"), (shards[0], "its content is not"), (shards[1], "is gone")):
        assert f"{name.removeprefix('/read/')}: {what}" in broken.output, broken.output
    far.rm("/read", recursive=True)


def test_a_small_model_learns_from_the_shards(run: Path) -> None:
    """Two layers, documents masked apart: the loss must fall well below that of knowing nothing, and what is masked
    must not be seen."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    shards = open_shards(run / "shards" / "64")
    model = Small(torch, shards.meta.vocab_size, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step, batch in enumerate(Loader(shards, batch_rows=16, order=Shuffled(), seed=1)):
        loss = model.loss(batch.rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 60:
            break
    assert losses[0] == pytest.approx(np.log(shards.meta.vocab_size), abs=0.7)
    assert np.mean(losses[-5:]) < 0.7 * losses[0]


class Small:
    """The smallest decoder that can be said to be one."""

    def __init__(self, torch: Any, vocabulary: int, width: int) -> None:
        nn = torch.nn
        self.torch = torch
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.layers = [
            nn.TransformerEncoderLayer(width, 2, 4 * width, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        ]
        self.out = nn.Linear(width, vocabulary)

    def parameters(self) -> list[Any]:
        return [p for part in (self.embed, self.place, *self.layers, self.out) for p in part.parameters()]

    def loss(self, rows: Any) -> Any:
        torch = self.torch
        ids, number = torch.from_numpy(rows.input_ids.astype(np.int64)), torch.from_numpy(document_numbers(rows))
        hidden = self.embed(ids) + self.place(torch.from_numpy(positions(rows).astype(np.int64)))
        later = torch.ones(64, 64, dtype=torch.bool).triu(1)
        masked = (number[:, :, None] != number[:, None, :]) | later
        for layer in self.layers:
            hidden = layer(hidden, src_mask=masked.repeat_interleave(2, 0))
        wanted = torch.from_numpy(labels(rows).astype(np.int64))
        return torch.nn.functional.cross_entropy(
            self.out(hidden)[:, :-1].flatten(0, 1), wanted[:, 1:].flatten(), ignore_index=-100
        )
