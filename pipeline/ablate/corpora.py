"""Sets of documents, tokenized and packed alike: another tool's folder of JSON lines or Parquet, or a run.

    OUT/sets/NAME.yaml  OUT/sets/NAME/      the recipe that packs a set, and its run: a second start finds it done
    OUT/sets/tokenizer/                     one trained here, on equally many bytes of each set
    OUT/sets/held_out/                      passages of the evaluation, which are sought in every set

The tokenizer is the plan's, else that of shards in the plan, else a trained one. Shards of a run are read as they are
where tokenizer and row length fit; else its stored documents are packed. Documents that hold half of a held-out passage
are left out. Shards are not searched: they hold no texts.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
import yaml

from gristmill.kernels.common.files import whole_file, write_whole
from gristmill.kernels.common.paths import located
from gristmill.pipeline.ablate.plan import Corpus, Loaded
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.formatting import nearest
from gristmill.pipeline.inputs.columns import pieces_of, texts_in
from gristmill.pipeline.inputs.files import list_at
from gristmill.pipeline.interchange.documents import files_in
from gristmill.pipeline.look.token_sets import sets_in, the_set
from gristmill.pipeline.progress.progress import UI
from gristmill.pipeline.store.run_records import read_record
from gristmill.pipeline.store.storage import Store, digest
from gristmill.pipeline.train.checks import opening_in
from gristmill.pipeline.train.evaluation import documents_of, texts_spec
from gristmill.pipeline.train.facts import read_facts, write_facts
from gristmill.shards.export.rows import ExportError
from gristmill.shards.format import BadShards
from gristmill.shards.reader import ShardSet, open_shards
from gristmill.stages.dedup.benchmarks import BenchmarkError
from gristmill.stages.dedup.decontaminate import BenchmarkOverlap
from gristmill.stages.inputs import InputFile
from gristmill.stages.read.jsonl import Jsonl
from gristmill.stages.read.parquet import Parquet
from gristmill.stages.stage import CannotRun
from gristmill.stages.tokens.tokenize import MOST_OF_ONE, TRAIN, Tokenize
from gristmill.stages.tokens.vocabulary import FILE, SAYS_SPECIALS, given

ROW_LENGTH = 1024  # where neither the plan nor its shards say it
SAMPLE_BYTES = 64_000_000  # of text that a tokenizer is trained on, all sets together
PASSAGE = 600  # characters of a held-out text that are sought together
AT_LEAST = 0.5  # of a passage's n-grams: a document with so many is left out
READERS = {"jsonl": Jsonl.suffixes, "parquet": Parquet.suffixes}

Note = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """The documents of a set."""

    reader: str
    addresses: list[str]
    text: str
    files: Sequence[InputFile]

    @property
    def identity(self) -> list[object]:
        return [self.text, [[file.address, file.size, file.stamp] for file in self.files]]

    def texts(self, who: str) -> Iterator[str]:
        for _, _, table in texts_in(self.files, self.text, (), who):
            yield from (text for text in table[self.text].to_pylist() if text)


@dataclass(frozen=True)
class PackedCorpora:
    """A plan in which every set is one of shards, and what was left out of those that were packed here."""

    loaded: Loaded
    left_out: dict[str, int] = field(default_factory=dict)  # by set, documents with held-out texts
    warnings: list[str] = field(default_factory=list)


def pack_corpora(loaded: Loaded, out: Path, here: bool, note: Note) -> PackedCorpora:
    """Packs the sets that are not packed yet. `here`: in this process, without workers."""
    plan, folder = loaded.plan, out / "sets"
    corpora = {name: corpus for name, corpus in plan.sets.items() if corpus.shards is None}
    if not corpora:
        for name in ("tokenizer", "vocabulary", "row_length"):
            if name in plan.model_fields_set:
                raise loaded.wrong((name,), "all sets are packed already; take this out")
        return PackedCorpora(loaded)
    shards = _shards_of(loaded)
    reference = next(iter(shards.values()), None)
    row_length = plan.row_length or (reference.meta.row_length if reference is not None else ROW_LENGTH)
    sources = {name: _source_of(loaded, name, corpus) for name, corpus in corpora.items()}
    tokenizer = _tokenizer(loaded, reference, sources, folder / "tokenizer", note)
    try:
        identity = given(tokenizer, None, {}).hash
    except (CannotRun, OSError) as error:
        raise loaded.wrong(("tokenizer",), str(error)) from error
    alike = {name: each for name, each in shards.items() if each.meta.tokenizer_hash == identity}
    bos = any(opening_in(each) is not None for each in alike.values())
    found, places = PackedCorpora(loaded), {}
    sought = _sought(loaded, folder / "held_out", found.warnings)
    for name, corpus in corpora.items():
        if name in alike and alike[name].meta.row_length == row_length:
            places[name] = str(alike[name].folder)
            continue
        source = sources[name]
        if source is None:
            what = f"{corpus.run}: is packed with another tokenizer or row length, and keeps no documents"
            raise loaded.wrong(("sets", name, "run"), f"{what}; let its recipe end in `write` too")
        reader = {source.reader: {"path": source.addresses, "text": source.text, "keep": []}}
        stages = [*sought, {"tokenize": {"tokenizer": tokenizer, "bos": bos}}, {"pack": {"row_length": row_length}}]
        recipe = {"name": name, "keep": "nothing", "sources": {name: reader}, "stages": stages}
        found.left_out[name] = _run(loaded, name, recipe, folder, here, note)
        places[name] = str(the_set(str(folder / name), row_length))
        if found.left_out[name]:
            rejects = folder / name / "stages" / "decontaminate" / "rejects"
            found.warnings.append(
                f"sets.{name}: {found.left_out[name]:,} documents hold held-out texts and are left out ({rejects})"
            )
    if unsearched := [name for name in plan.sets if name not in found.left_out]:
        found.warnings.append(f"sets.{', '.join(unsearched)}: not searched for held-out texts: shards hold no texts")
    sets = {
        name: corpus.model_copy(update={"shards": places[name]}) if name in places else corpus
        for name, corpus in plan.sets.items()
    }
    return replace(found, loaded=replace(loaded, plan=plan.model_copy(update={"sets": sets})))


# --- what a set is made of --------------------------------------------------------------------------------------------


def _shards_of(loaded: Loaded) -> dict[str, ShardSet]:
    """Shards that are there already: those that the plan names, then those of runs."""
    plan, shards = loaded.plan, {}
    for name, corpus in sorted(plan.sets.items(), key=lambda each: each[1].shards is None):
        address = corpus.shards or corpus.run
        if address is None:
            continue
        folder = str(loaded.place(address))
        try:
            if corpus.shards is not None or _is_packed(folder):
                shards[name] = open_shards(the_set(folder, plan.row_length if corpus.run else None))
        except (BadShards, RecipeError) as error:
            raise loaded.wrong(("sets", name), str(error)) from error
    return shards


def _is_packed(folder: str) -> bool:
    try:
        return bool(sets_in(folder))
    except RecipeError:
        return False


def _source_of(loaded: Loaded, name: str, corpus: Corpus) -> Source | None:
    """What is there to be read; RecipeError says in one line what is not. None: a run that keeps no documents."""
    if corpus.run is not None:
        return _documents_of_run(loaded, name, corpus.run)
    who = loaded.where("sets", name, "documents")
    addresses = [located(path, loaded.folder) for path in corpus.documents or ()]
    every = tuple(suffix for suffixes in READERS.values() for suffix in suffixes)
    files = [file for address in addresses for file in list_at(address, loaded.folder, every, who).files]
    kinds = {_reader_of(file.path) for file in files}
    if len(kinds) > 1 or None in kinds:
        odd = next((file.path for file in files if _reader_of(file.path) is None), None)
        what = (
            f"{odd}: its name ends in none of {', '.join(every)}" if odd else "JSON lines and Parquet; name one of them"
        )
        raise RecipeError(f"{who}: {what}, such as {addresses[0].rstrip('/')}/*.parquet")
    for file in files:
        names = next(pieces_of(file), pa.table({})).column_names
        if names and corpus.text not in names:
            what = f"{file.address}: no column {corpus.text!r}{nearest(corpus.text, names)}"
            raise loaded.wrong(("sets", name, "text"), what)
        if names:
            return Source(str(kinds.pop()), addresses, corpus.text, files)
    raise RecipeError(f"{who}: {addresses[0]}: its files are empty")


def _reader_of(path: str) -> str | None:
    return next((reader for reader, suffixes in READERS.items() if path.lower().endswith(suffixes)), None)


def _documents_of_run(loaded: Loaded, name: str, run: str) -> Source | None:
    folder, place = str(loaded.place(run)), ("sets", name, "run")
    record = read_record(Store(folder))
    if record is None:
        raise loaded.wrong(place, f"{folder}: no run is here (there is no run.json)")
    if not record.done:
        raise loaded.wrong(place, f"{folder}: the run is {record.status or 'not finished'}; run its recipe again first")
    try:
        parent = str(files_in(folder)[0].parent)
    except ExportError as error:
        if _is_packed(folder):
            return None
        raise loaded.wrong(place, str(error)) from error
    return Source("parquet", [parent], "text", list_at(parent, Path(), Parquet.suffixes, name).files)


# --- the tokenizer ----------------------------------------------------------------------------------------------------


def _tokenizer(
    loaded: Loaded, reference: ShardSet | None, sources: Mapping[str, Source | None], folder: Path, note: Note
) -> str:
    """A folder, file or hub id."""
    asked = loaded.plan.tokenizer
    if asked is None and reference is not None:
        return str(reference.folder / "tokenizer")
    if asked is not None and asked != TRAIN:
        beside = loaded.place(asked)
        return str(beside) if beside.exists() else asked
    readable = {name: source for name, source in sources.items() if source is not None}
    made_of = digest([loaded.plan.vocabulary, SAMPLE_BYTES, [source.identity for source in readable.values()]])
    if read_facts(folder / "made_of.json", dict).get("made_of") != made_of:
        note(f"training a tokenizer of {loaded.plan.vocabulary:,} entries on {', '.join(readable)}")
        samples = [
            sample(source.texts(f"sets.{name}"), SAMPLE_BYTES // len(readable)) for name, source in readable.items()
        ]
        vocabulary = Tokenize(tokenizer=TRAIN, vocab_size=loaded.plan.vocabulary).learnt(equal_parts(samples))
        specials = {f"{role}_token": token for role, token in vocabulary.specials.items()}
        write_whole(folder / FILE, vocabulary.tokenizer_text.encode())
        write_whole(folder / SAYS_SPECIALS[0], json.dumps(specials, indent=1).encode())
        write_facts(folder / "made_of.json", {"made_of": made_of})
    return str(folder)


def sample(texts: Iterable[str], most: int) -> list[bytes]:
    """Texts of the lowest hashes, together of about so many bytes, in order of their hashes; of a long one its
    beginning."""
    kept: list[tuple[int, bytes]] = []  # a heap, the highest hash first
    size = 0
    for text in texts:
        content = text.encode("utf-8", "replace")[:MOST_OF_ONE]
        heapq.heappush(kept, (-xxhash.xxh3_64_intdigest(content), content))
        size += len(content)
        while size - len(kept[0][1]) >= most:
            size -= len(heapq.heappop(kept)[1])
    return [content for _, content in sorted(kept, reverse=True)]


def equal_parts(samples: list[list[bytes]]) -> Iterator[str]:
    """Of each sample as many bytes as the smallest has."""
    least = min(sum(map(len, each)) for each in samples)
    for each in samples:
        left = least
        for content in each:
            if left <= 0:
                break
            yield content[:left].decode("utf-8", "ignore")
            left -= len(content)


# --- held-out texts ---------------------------------------------------------------------------------------------------


def _sought(loaded: Loaded, folder: Path, warnings: list[str]) -> list[dict[str, object]]:
    """Stages that drop documents with held-out texts."""
    sets, passages = [], []
    for name, texts in loaded.plan.evaluate.texts.items():
        for text in documents_of(name, texts_spec(loaded.folder, name, texts)).texts:
            parts = max(1, round(len(text) / PASSAGE))
            ends = [len(text) * part // parts for part in range(parts + 1)]
            passages.append([text[start:end] for start, end in pairwise(ends)])
            sets.append(name)
    with whole_file(folder / "texts.parquet") as file:
        pq.write_table(pa.table({"set": sets, "passages": passages}), file)
    overlap = {
        "benchmarks_path": str(folder),
        "benchmarks": [{"name": "held_out", "path": "texts.parquet", "fields": ["passages"], "id": "set"}],
    }
    try:
        BenchmarkOverlap.model_validate(overlap).account()
    except BenchmarkError as error:
        warnings.append(f"evaluate.texts: not sought in the sets: {error}")
        return []
    return [{"benchmark_overlap": overlap}, {"decontaminate": {"at_least": AT_LEAST}}]


# --- packing ----------------------------------------------------------------------------------------------------------


class Notes(UI):
    """What a run says, as notes on its set."""

    def __init__(self, name: str, note: Note) -> None:
        self.name, self.say = name, note

    def note(self, message: str) -> None:
        self.say(f"sets.{self.name}: {message}")


def _run(loaded: Loaded, name: str, recipe: Mapping[str, object], folder: Path, here: bool, note: Note) -> int:
    """Documents with held-out texts, of a set that is packed now."""
    from gristmill.pipeline.recipe.recipe import load
    from gristmill.pipeline.run.run import run

    path = folder / f"{name}.yaml"
    write_whole(path, yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True).encode())
    try:
        done = run(load(path), str(folder / name), Where(0 if here else None), Notes(name, note))
    except (RecipeError, RunFailed) as error:
        raise loaded.wrong(("sets", name), str(error)) from error
    if done.worked:
        note(f"sets.{name}: packed")
    for alarm in done.alarms:
        note(f"warning: sets.{name}: {alarm}")
    return sum(stage.count.lost for stage in done.record.stages if stage.recipe_name == "decontaminate")
