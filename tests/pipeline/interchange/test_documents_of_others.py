"""Documents of a run as Dolma, WebDataset, datasketch and DataTrove read them, and what comes back from there."""

from __future__ import annotations

import gzip
import importlib.util
import json
import tarfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.interchange.documents import without_arrays
from gristmill.pipeline.look.token_sets import exported
from gristmill.shards.export.export import Options
from gristmill.stages import DatasketchIndex, DatatroveIndex
from gristmill.stages.others.indexes import datatrove_shingles, shingles_of, words_by_sha1
from gristmill.stages.others.signatures import (
    datasketch_places,
    datatrove_places,
    lean_minhashes,
    of_lean_minhashes,
    signatures_of,
)
from tests.pipeline.runs import go

WORDS = ["".join(letters) for letters in product("bdkmst", "aeiou", "lnr", "aeiou")]  # DataTrove takes digits for equal


def text_of(seed: int, length: int = 120) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, length))


TEXTS = [text_of(seed) for seed in range(12)]


def save(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def run_of(folder: Path, texts: list[str] = TEXTS) -> Path:
    """A run with two files of documents and a signal."""
    for number in range(2):
        rows = [
            {"id": f"doc-{i}", "text": text, "url": f"https://a.org/{i}", "source": {"shelf": i}}
            for i, text in enumerate(texts)
            if i % 2 == number
        ]
        save(folder / "in" / f"{number}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    recipe = "name: r\nparts: {files: 1}\nsources:\n  a: {jsonl: {path: in}}\nstages: [text_signals, write]\n"
    go(save(folder / "r.yaml", recipe), folder / "out")
    return folder / "out"


def send(out: Path, to: str, place: Path, **options: Any) -> int:
    return exported(str(out), to, str(place), None, Options(**options), lambda done, of: None).items


def lines_in(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl.gz"))
        for line in gzip.decompress(path.read_bytes()).decode().splitlines()
    ]


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [row for path in sorted((out / "write").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_dolma_gets_documents_and_attributes_and_a_recipe_reads_both(tmp_path: Path) -> None:
    out = run_of(tmp_path)
    assert send(out, "dolma", tmp_path / "dolma") == 12
    documents, attributes = (lines_in(tmp_path / "dolma" / name) for name in ("documents", "attributes/gristmill"))
    rows = rows_of(out)
    assert (
        [line["id"] for line in documents] == [line["id"] for line in attributes] == [f"{r['uid']:016x}" for r in rows]
    )
    assert [line["text"] for line in documents] == [row["text"] for row in rows] and len(rows) == 12
    assert documents[0]["metadata"]["meta"] == {"source": {"shelf": 0}} and documents[0]["source"] == "a"
    spans = [line["attributes"]["gristmill__gristmill__words"] for line in attributes]
    assert spans == [[[0, len(row["text"]), row["words"]]] for row in rows]
    recipe = (
        "name: back\nsources:\n  a: {jsonl: {path: dolma/documents, layout: dolma, attributes: [dolma/attributes/gristmill]}}\n"
        "stages:\n  - from_meta: {numbers: {their_words: attributes.gristmill__gristmill__words}}\n  - write\n"
    )
    go(save(tmp_path / "back.yaml", recipe), tmp_path / "back")
    back = {row["text"]: row["their_words"] for row in rows_of(tmp_path / "back")}
    assert back == {row["text"]: float(row["words"]) for row in rows} and len(back) == 12


def test_dolmas_own_mixer_drops_by_our_attributes(tmp_path: Path) -> None:
    """Its extension alone is loaded: the package imports all its taggers."""
    found = importlib.util.find_spec("dolma")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs dolma")
    [binary] = Path(found.submodule_search_locations[0]).glob("dolma.*.so")
    spec = importlib.util.spec_from_file_location("dolma", binary)
    assert spec and spec.loader
    dolma = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dolma)
    out = run_of(tmp_path, [text_of(seed, 50 + 10 * seed) for seed in range(12)])
    send(out, "dolma", tmp_path / "dolma")
    few = "@.gristmill__gristmill__words && @.gristmill__gristmill__words[0][2] < 100"
    stream = {
        "name": "kept",
        "documents": [f"{tmp_path}/dolma/documents/*.gz"],
        "attributes": ["gristmill"],
        "output": {"path": f"{tmp_path}/mixed", "max_size_in_bytes": 10**9, "discard_fields": []},
        "filter": {"include": [], "exclude": [f"$.attributes[?({few})]"], "syntax": "jsonpath"},
    }
    work = {name: f"{tmp_path}/work/{name}" for name in ("input", "output")}
    for folder in work.values():
        Path(folder).mkdir(parents=True)
    dolma.mixer_entrypoint(json.dumps({"streams": [stream], "work_dir": work, "processes": 1, "dryrun": False}))
    kept = [
        json.loads(line)["id"]
        for path in (tmp_path / "mixed").glob("*.gz")
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    expected = [f"{row['uid']:016x}" for row in rows_of(out) if row["words"] >= 100]
    assert sorted(kept) == sorted(expected) and len(kept) == 7


@pytest.mark.parametrize("package", ["datasets", "pyspark", "ray.data"])
def test_other_readers_of_parquet_open_what_write_left(package: str, tmp_path: Path) -> None:
    module = pytest.importorskip(package, reason=f"needs {package}")
    out = run_of(tmp_path)
    if package == "datasets":
        files = [str(path) for path in sorted((out / "write").glob("*.parquet"))]
        rows = list(module.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache")))
    elif package == "pyspark":
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[1]").config("spark.driver.host", "127.0.0.1")
        spark = (
            builder.config("spark.ui.enabled", "false").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
        )
        rows = [row.asDict() for row in spark.read.parquet(str(out / "write")).collect()]
        spark.stop()
    else:
        import ray

        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
        rows = module.read_parquet(str(out / "write")).take_all()
        ray.shutdown()
    assert {int(row["uid"]): (row["text"], row["words"]) for row in rows} == {
        row["uid"]: (row["text"], row["words"]) for row in rows_of(out)
    }
    assert len(rows) == 12


def test_attributes_that_are_not_of_these_documents_stop_the_run(tmp_path: Path) -> None:
    recipe = save(
        tmp_path / "r.yaml",
        "name: r\nsources:\n  a: {jsonl: {path: documents, attributes: [attributes/x]}}\nstages: [write]\n",
    )
    save(tmp_path / "documents" / "a.jsonl", '{"id": "1", "text": "one"}\n{"id": "2", "text": "two"}\n')
    from gristmill.pipeline.errors import RunFailed

    for content, words in (
        ('{"id": "2", "attributes": {}}\n{"id": "1", "attributes": {}}\n', "no attributes for document '2'"),
        ('{"id": "1", "attributes": 3}\n', "not attributes as Dolma writes them"),
        (None, "there are no attributes for a.jsonl"),
    ):
        place = tmp_path / "attributes" / "x" / "a.jsonl"
        save(place, content) if content else place.unlink()
        with pytest.raises(RunFailed, match=words):
            go(recipe, tmp_path / "out")


def test_webdataset_gets_a_text_and_its_facts_in_files_of_a_size(tmp_path: Path) -> None:
    out = run_of(tmp_path)
    assert send(out, "webdataset", tmp_path / "tars", shard_bytes=10_000) == 12
    tars, rows = sorted((tmp_path / "tars").glob("*.tar")), rows_of(out)
    held: dict[str, bytes] = {}
    for path in tars:
        with tarfile.open(path) as tar:
            held |= {member.name: file.read() for member in tar if (file := tar.extractfile(member))}
    assert len(tars) > 1 and len(held) == 24
    for row in rows:
        assert held[f"{row['uid']:016x}.txt"].decode() == row["text"]
        facts = json.loads(held[f"{row['uid']:016x}.json"])
        assert facts["url"] == row["url"] and facts["words"] == row["words"] and "text" not in facts
    webdataset = pytest.importorskip("webdataset", reason="needs webdataset")
    samples = list(webdataset.WebDataset([str(path) for path in tars], shardshuffle=False, empty_check=False).decode())
    assert [sample["txt"] for sample in samples] == [row["text"] for row in rows]
    assert [sample["json"]["words"] for sample in samples] == [row["words"] for row in rows]


def test_vectors_and_packed_numbers_are_no_facts() -> None:
    batch = pa.record_batch({"text": ["a"], "token_ids": [b"C\xdf"], "embedding": [[1.0]], "words": [1]})
    large = pa.record_batch([pa.array([b"C"], pa.large_binary())], names=["token_ids"])
    assert [without_arrays(each).schema.names for each in (batch, large)] == [["text", "words"], []]


def folder_of(folder: Path, **columns: Any) -> Path:
    """A folder of Parquet that no run made."""
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"text": ["one", "two"], **columns}), folder / "a.parquet")
    return folder


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (pa.array([{"shelf": 1}, {"shelf": 2}]), {"shelf": 1}),
        (pa.array([[("shelf", 1)], []], pa.map_(pa.string(), pa.int64())), {"shelf": 1}),
        (pa.array(['{"shelf": 1}', None]), {"shelf": 1}),
        (pa.array(["upper shelf", "{"]), "upper shelf"),
    ],
)
def test_meta_of_any_kind_is_exported(tmp_path: Path, meta: pa.Array, expected: Any) -> None:
    folder = folder_of(tmp_path / "in", meta=meta)
    assert send(folder, "dolma", tmp_path / "dolma") == send(folder, "webdataset", tmp_path / "tars") == 2
    assert lines_in(tmp_path / "dolma" / "documents")[0]["metadata"] == {"meta": expected}
    [tar_path] = (tmp_path / "tars").glob("*.tar")
    with tarfile.open(tar_path) as tar:
        facts = [
            json.load(file) for member in tar if member.name.endswith("json") and (file := tar.extractfile(member))
        ]
    assert len(facts) == 2 and facts[0] == {"meta": expected}


@pytest.mark.parametrize("kind", [pa.int64(), pa.decimal128(20, 0)])
def test_a_key_is_16_digits_whatever_kind_of_number_the_uid_is(tmp_path: Path, kind: pa.DataType) -> None:
    folder = folder_of(tmp_path / "in", uid=pa.array([-1 if kind == pa.int64() else 2**64 - 1, 3], kind))
    assert send(folder, "dolma", tmp_path / "dolma") == 2
    keys = [line["id"] for line in lines_in(tmp_path / "dolma" / "documents")]
    assert keys == ["f" * 16, f"{3:016x}"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"uid": ["x1", "x2"]}, "`uid` is string; whole numbers were expected"),
        ({"uid": [1.0, 2.0]}, "`uid` is double; whole numbers were expected"),
        ({"text": [b"one", b"two"]}, "`text` is binary; strings were expected"),
        ({"text": [1, 2]}, "`text` is int64; strings were expected"),
    ],
)
def test_a_column_of_another_kind_is_named(tmp_path: Path, columns: dict[str, list[Any]], words: str) -> None:
    folder = folder_of(tmp_path / "in", **columns)
    for to in ("dolma", "webdataset"):
        with pytest.raises(RecipeError, match=words):
            send(folder, to, tmp_path / to)
        assert not (tmp_path / to).exists()


@pytest.mark.parametrize("scheme", ["affine32", "legacy"])
def test_signatures_are_those_of_datasketch(scheme: Any) -> None:
    datasketch = pytest.importorskip("datasketch", reason="needs datasketch")
    column = pa.array([*TEXTS, "", "one two"])
    for hashes, first in (shingles_of(column, 5), words_by_sha1(column, 5)):
        ours = signatures_of(hashes, first, datasketch_places(128, 7, scheme))
        for document in range(len(column)):
            theirs = datasketch.MinHash(128, seed=7, hashfunc=lambda h: h & 0xFFFFFFFF, scheme=scheme)
            theirs.update_batch(hashes[first[document] : first[document + 1]].tolist())
            assert ours[document].tolist() == theirs.hashvalues.tolist()
    words = TEXTS[0].split()
    theirs = datasketch.MinHash(64)
    theirs.update_batch([" ".join(words[at : at + 5]).encode() for at in range(len(words) - 4)])
    assert (
        signatures_of(*words_by_sha1(pa.array(TEXTS[:1]), 5), datasketch_places(64))[0].tolist()
        == theirs.hashvalues.tolist()
    )


def test_datasketch_opens_our_signatures_and_finds_what_is_alike(tmp_path: Path) -> None:
    datasketch = pytest.importorskip("datasketch", reason="needs datasketch")
    out = run_of(tmp_path, [*TEXTS, "and " + TEXTS[3], ""])
    assert send(out, "datasketch", tmp_path / "sketches") == 13
    rows = [
        row for path in sorted((tmp_path / "sketches").glob("*.parquet")) for row in pq.read_table(path).to_pylist()
    ]
    lsh = datasketch.MinHashLSH(threshold=0.8, num_perm=128)
    lean = {row["id"]: datasketch.LeanMinHash.deserialize(row["lean_minhash"], "<") for row in rows}
    for key, sketch in lean.items():
        lsh.insert(key, sketch)
    assert sorted(lsh.query(lean["doc-3"])) == ["doc-12", "doc-3"] and lsh.query(lean["doc-5"]) == ["doc-5"]
    assert lean["doc-3"].jaccard(lean["doc-12"]) > 0.9
    query = datasketch.MinHash(128, hashfunc=lambda h: h & 0xFFFFFFFF)
    query.update_batch(shingles_of(pa.array([TEXTS[7]]), 5)[0].tolist())
    assert lsh.query(query) == ["doc-7"]


def test_a_set_of_sketches_is_an_index_for_later_documents(tmp_path: Path) -> None:
    out = run_of(tmp_path)
    assert send(out, "datasketch", tmp_path / "sketches") == 12
    fresh = [text_of(seed) for seed in range(50, 56)]
    table = pa.table({"text": [*fresh, "so " + TEXTS[4], TEXTS[9], ""]})
    stage = DatasketchIndex(index_path=str(tmp_path / "sketches"))
    assert stage(table)["text"].to_pylist() == [*fresh, ""]
    [batch] = table.to_batches()
    verdict = stage.apply(batch).verdict
    uids = {row["text"]: f"{row['uid']:016x}" for row in rows_of(out)}
    assert verdict.details[7] == f"1.000 like {uids[TEXTS[9]]}"
    words = signatures_of(*words_by_sha1(pa.array(TEXTS), 3), datasketch_places(256))
    pq.write_table(pa.table({"key": TEXTS, "lean_minhash": lean_minhashes(words)}), tmp_path / "words.parquet")
    by_words = DatasketchIndex(index_path=str(tmp_path / "words.parquet"), shingles="words", ngram=3)
    assert by_words(table)["text"].to_pylist() == [*fresh, ""]


def test_rows_that_are_no_sketches_are_refused(tmp_path: Path) -> None:
    good = lean_minhashes(signatures_of(*shingles_of(pa.array(TEXTS[:2]), 5), datasketch_places(16)))
    values, seed, scheme = of_lean_minhashes(good)
    assert values.shape == (2, 16) and (seed, scheme) == (1, "affine32")
    for rows, words in (
        ([], "no signatures"),
        ([good[0], good[1][:-4]], "different seeds, schemes or lengths"),
        ([b"x"], "as LeanMinHash.serialize"),
        ([good[0][:12] + b"\x02" + good[0][13:]], "no 32-bit signatures"),
        ([good[0][:-1]], "no 32-bit signatures"),
    ):
        with pytest.raises(ValueError, match=words):
            of_lean_minhashes(rows)


def test_a_folder_of_signatures_as_datatrove_has_it_is_an_index(tmp_path: Path) -> None:
    out = run_of(tmp_path, [*TEXTS, ""])
    assert send(out, "datatrove-minhash", tmp_path / "sigs") == 12
    record = np.dtype([("hashes", "<u8", (8,)), ("document", "<u4")])
    files = sorted((tmp_path / "sigs" / "bucket_013").glob("*.minhash.sig"))
    rows = [np.fromfile(path, record) for path in files]
    assert [path.name for path in files] == ["00000.minhash.sig", "00001.minhash.sig"] and sum(map(len, rows)) == 12
    expected = signatures_of(*shingles_of(pa.array(TEXTS[::2]), 5), datatrove_places(112))[:, 13 * 8 :]
    assert sorted(map(tuple, expected.tolist())) == [tuple(row) for row in rows[0]["hashes"].tolist()]
    assert sorted(rows[0]["document"].tolist()) == [0, 1, 2, 3, 4, 5]
    fresh = [text_of(seed) for seed in range(50, 56)]
    table = pa.table({"text": [*fresh, "so " + TEXTS[4], TEXTS[9], ""]})
    stage = DatatroveIndex(index_path=str(tmp_path / "sigs"), shingles="gristmill")
    assert stage(table)["text"].to_pylist() == [*fresh, ""]


def test_datatrove_decides_the_same_from_its_own_signatures(tmp_path: Path) -> None:
    """Signatures of DataTrove's own, its index of them, and later documents held against it by both."""
    pytest.importorskip("spacy", reason="DataTrove's words need spacy")
    minhash = pytest.importorskip("datatrove.pipeline.dedup.minhash", reason="needs datatrove")
    from datatrove.data import Document

    old = [Document(text=text, id=str(i)) for i, text in enumerate(TEXTS)]
    changed = [
        " ".join(f"new{chr(97 + i % 26)}" if i % 9 == 4 else word for i, word in enumerate(text.split()))
        for text in TEXTS
    ]
    slightly = [
        " ".join(f"new{chr(97 + i % 26)}" if i % 60 == 7 else word for i, word in enumerate(text.split()))
        for text in TEXTS
    ]
    later = [*changed, *slightly, *(text_of(seed) for seed in range(50, 56))]
    folders = {name: str(tmp_path / name) for name in ("old", "index", "new", "pairs", "gone")}
    minhash.MinhashDedupSignature(folders["old"]).run(iter(old), 0, 1)
    for bucket in range(14):
        minhash.MinhashBuildIndex(folders["old"], folders["index"], "first").run(None, bucket, 14)
    news = [Document(text=text, id=str(i)) for i, text in enumerate(later)]
    minhash.MinhashDedupSignature(folders["new"]).run(iter(news), 0, 1)
    for bucket in range(14):
        minhash.MinhashDedupBuckets(
            folders["new"], folders["pairs"], index_folder=folders["index"], only_dedup_in_index=True
        ).run(None, bucket, 14)
    minhash.MinhashDedupCluster(folders["pairs"], folders["gone"]).run(None, 0, 1)
    kept = [document.text for document in minhash.MinhashDedupFilter(folders["gone"]).run(iter(news), 0, 1)]
    assert 6 < len(kept) < len(later) - 4
    assert datatrove_shingles(5, 64, "deu").language == "deu"
    for index in ("index", "old"):
        stage = DatatroveIndex(index_path=folders[index])
        assert stage(pa.table({"text": later}))["text"].to_pylist() == kept


def test_datatrove_finds_duplicates_in_our_signatures(tmp_path: Path) -> None:
    pytest.importorskip("spacy", reason="DataTrove's words need spacy")
    minhash = pytest.importorskip("datatrove.pipeline.dedup.minhash", reason="needs datatrove")
    from datatrove.pipeline.readers import ParquetReader

    out = run_of(tmp_path, [*TEXTS, *("so " + text for text in TEXTS[:5]), ""])
    send(out, "datatrove-minhash", tmp_path / "sigs")
    for bucket in range(14):
        minhash.MinhashDedupBuckets(str(tmp_path / "sigs"), str(tmp_path / "pairs")).run(None, bucket, 14)
    minhash.MinhashDedupCluster(str(tmp_path / "pairs"), str(tmp_path / "gone")).run(None, 0, 1)
    kept = []
    for rank in range(2):
        documents = ParquetReader(str(out / "write"), glob_pattern="*.parquet").run(None, rank, 2)
        kept += [d.text for d in minhash.MinhashDedupFilter(str(tmp_path / "gone")).run(documents, rank, 2)]
    assert len(kept) == 12 and sorted(text.removeprefix("so ") for text in kept) == sorted(TEXTS)


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    out = run_of(tmp_path)
    for to, options, words in (
        ("dolmaa", {}, "did you mean dolma?"),
        ("dolma", {"eod": 3}, "eod means nothing to dolma"),
        ("webdataset", {"files": "arrow"}, "files means nothing to webdataset"),
    ):
        with pytest.raises(RecipeError, match=words):
            send(out, to, tmp_path / "x", **options)
    with pytest.raises(RecipeError, match="--row-length is for token shards"):
        exported(str(out), "dolma", str(tmp_path / "x"), 8, Options(), lambda done, of: None)
    with pytest.raises(RecipeError, match="no Parquet files"):
        send(tmp_path / "in", "dolma", tmp_path / "x")
    assert not (tmp_path / "x").exists()
