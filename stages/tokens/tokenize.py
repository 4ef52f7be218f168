"""Documents to token ids, by a tokenizer of the Hugging Face kind, or by one trained on a sample of this very corpus.

What others get wrong (docs/tokens.md): a special token that a page spells out is encoded as the special token, and ends
the document in its middle; ids that do not fit 16 bits are stored in them; a sample for training is the first files.
Its speed beside the fastest packages: benchmarks/tokens/tokenization.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from gristmill.kernels.base.types import Array
from gristmill.kernels.common.paths import PathRole
from gristmill.kernels.common.settings import Bytes
from gristmill.stages.checks import Complaint, RecipeContext
from gristmill.stages.figures import Report, StageFigures, TokenCounts
from gristmill.stages.flow import Dataset, Flow, Rows
from gristmill.stages.sample import chances
from gristmill.stages.stage import CannotRun, Global
from gristmill.stages.tokens.byte_level import ByteLevel
from gristmill.stages.tokens.encoding import Encoded, TextEncoder, encoder_of
from gristmill.stages.tokens.figures import tokenizer_figures
from gristmill.stages.tokens.tally import GROUPS, Checked, added_up, facts_of, rows_of
from gristmill.stages.tokens.training import LEAST, SPECIALS, trained
from gristmill.stages.tokens.vocabulary import (
    FILES,
    Ids,
    TokenizerVocabulary,
    check,
    demanded,
    given,
    ids_of,
    may_be_converted,
    seems_a_path,
    tokenizer_from,
)

TRAIN = "train"
MOST_OF_ONE = 100_000  # bytes that a document gives to the sample, so that a book does not outweigh pages
CHECKED = 2000  # documents, about, whose ids are turned back into text
SAMPLE, CHECK = (
    0x73616D706C65,
    0x636865636B,
)  # added to the seed: draws of their own, independent of a `sample` or a `mix` with that seed


class Tokenize(Global):
    """Encode the documents: `token_ids` (little-endian uint16 if the vocabulary fits in it, else uint32), `tokens` and
    `bytes_per_token`.

    `tokens` counts `bos` and `eos` where they are asked for; `bytes_per_token`, bytes of UTF-8 for a token of the text,
    does not. A text that is empty, or of which the tokenizer's normalizer leaves nothing, is dropped (`no_tokens`).
    Nothing is cut off or padded, and a special token that stands in a text is encoded as the text it is; a document
    that would get one all the same (by a normalizer that makes one of other characters) is dropped (`special_token`).
    `train` makes a byte-level BPE of this corpus; a hub id or a path takes a tokenizer that is there. The report has
    bytes per token by language and source, and on a sample of about 2,000 documents how many come back as the text they
    were.
    """

    tokenizer: Annotated[
        str,
        PathRole(words=(TRAIN,), is_name=lambda name: not seems_a_path(name), files=FILES),
        Field(description="`train`, a hub id, a folder, or the path of a tokenizer.json"),
    ] = TRAIN
    revision: Annotated[str | None, Field(description="commit, tag or branch of a hub id; a commit never changes")] = (
        None
    )
    vocab_size: Annotated[
        int,
        Field(
            description="of a tokenizer that is trained; specials and the 256 bytes among them", ge=LEAST, le=1 << 20
        ),
    ] = 32_768
    sample_bytes: Annotated[
        Bytes,
        Field(
            description=f"text to train on: documents drawn by uid, of a long one the first {MOST_OF_ONE:,} bytes", ge=1
        ),
    ] = 256_000_000
    digits: Annotated[
        int,
        Field(
            description="longest group of digits in a trained tokenizer; GPT-4 has 3, nanochat 2, Llama 2 has 1",
            ge=1,
            le=3,
        ),
    ] = 2
    bos: Annotated[bool, Field(description="put the beginning-of-text token before each document")] = False
    eos: Annotated[bool, Field(description="put the end-of-text token behind each document")] = True
    bos_token: Annotated[
        str | None, Field(description="which; null: what the tokenizer says, or <|begin_of_text|> of a trained one")
    ] = None
    eos_token: Annotated[
        str | None, Field(description="which; null: what the tokenizer says, or <|endoftext|> of a trained one")
    ] = None
    pad_token: Annotated[
        str | None,
        Field(description="which; null: what the tokenizer says (or that of the end), or <|pad|> of a trained one"),
    ] = None
    seed: Annotated[int, Field(description="another seed trains on, and checks, another sample", ge=0)] = 0

    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "token_ids": pa.large_binary(),
        "tokens": pa.int32(),
        "bytes_per_token": pa.float32(),
    }
    reads_text: ClassVar[bool] = True
    expect_drops: ClassVar[float] = 0.05

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.tokenizer == TRAIN:
            if self.revision is not None:
                raise ValueError("revision is for a hub id; a tokenizer that is trained has none")
            if len(set(self.named().values())) < len(SPECIALS):
                raise ValueError("bos_token, eos_token and pad_token of a trained tokenizer must be different")
            return self
        for name in ("vocab_size", "sample_bytes", "digits"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is for `tokenizer: {TRAIN}`; {self.tokenizer} is as it is")
        if seems_a_path(self.tokenizer) and not Path(self.tokenizer).expanduser().exists():
            raise ValueError(f"tokenizer: there is no file or folder {self.tokenizer}")
        return self

    def prepare(self) -> None:
        """Compile: a tokenizer of bytes is checked on a text of all kinds of pieces."""
        from tokenizers import Tokenizer, models, pre_tokenizers  # slow to import

        ids = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        tokenizer = Tokenizer(models.BPE(ids, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        ByteLevel(tokenizer)

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        return (
            () if self.tokenizer != TRAIN and may_be_converted(self.tokenizer) else ("huggingface_hub", "transformers")
        )

    def check(self) -> None:
        """Before any work: CannotRun where the tokenizer is not there, or lacks what is asked of it. Nothing is
        fetched."""
        if self.tokenizer != TRAIN:
            check(self.tokenizer, self.revision, self.named(), self.around)

    def check_recipe(self, context: RecipeContext) -> list[Complaint]:
        try:
            self.check()
        except (CannotRun, OSError) as error:
            return [Complaint(str(error))]
        return []

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        return StageFigures("Tokens", tokenizer_figures(report)) if "tokenizer" in report else None

    @classmethod
    def token_counts(cls, report: Report) -> TokenCounts | None:
        rows = report.get("bytes_per_token_by_source") or {}
        held = {
            str(name): float(counts["bytes_per_token"])
            for name, counts in rows.items()
            if counts.get("bytes_per_token")
        }
        return TokenCounts({str(name): int(counts["tokens"]) for name, counts in rows.items()}, held) if rows else None

    def named(self) -> dict[str, str | None]:
        """Special tokens by what they are for, as the recipe, or the default of a trained tokenizer, names them."""
        wanted = {"bos": self.bos_token, "eos": self.eos_token, "pad": self.pad_token}
        return {role: token or (SPECIALS[role] if self.tokenizer == TRAIN else None) for role, token in wanted.items()}

    @property
    def around(self) -> tuple[str, ...]:
        return tuple(role for role in ("bos", "eos") if getattr(self, role))

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        rows = self.vocabulary_rows(docs, flow)
        vocabulary = TokenizerVocabulary.of(rows if isinstance(rows, pa.Table) else flow.gather(rows))
        ids = demanded(vocabulary, tokenizer_from(vocabulary.tokenizer_text, vocabulary.name), self.around)
        by = encoder_of(vocabulary.tokenizer_text).by  # kernels are compiled here, once, and not in each worker
        marked = flow.mark(self.encode, docs, columns=("uid", "text"), broadcast=rows)
        read = ("uid", "source", "language", "text", "token_ids", "tokens")
        check = flow.map(
            self.tally, marked, columns=read, by="all", buckets=1, broadcast=self.beside_tally(vocabulary, docs.rows)
        )
        counts = flow.gather(flow.combine(self.add_up, check, by="all"))
        flow.report("tokenizer", self.facts(vocabulary, ids) | {"encoded_by": by})
        for name, value in facts_of(counts, len(self.around)).items():
            flow.report(name, value)
        flow.run.share("tokenizer_json", vocabulary.tokenizer_text)
        return marked

    def facts(self, vocabulary: TokenizerVocabulary, ids: Ids) -> dict[str, Any]:
        return {
            "name": vocabulary.name, "hash": vocabulary.hash, "vocab_size": ids.size, "dtype": ids.dtype.name,
            "bos_id": ids.bos, "eos_id": ids.eos, "pad_id": ids.pad, "around": list(self.around),
            **{f"{role}_token": token for role, token in vocabulary.specials.items()},
        }  # fmt: skip

    # --- which tokenizer ---------------------------------------------------------------------------------------------

    def vocabulary_rows(self, docs: Dataset, flow: Flow) -> pa.Table | Rows:
        """One row with the tokenizer, found here and now, so that all tasks have the same."""
        if self.tokenizer != TRAIN:
            return given(self.tokenizer, self.revision, self.named()).table()
        weights = flow.map(self.weigh, docs, columns=("uid", "text"), by="key", buckets=1)
        chosen = flow.combine(self.lowest, weights, by="key")
        if not chosen.count:
            return self.learnt(iter(())).table()
        texts = flow.map(self.texts, docs, columns=("uid", "text"), by="all", buckets=1, broadcast=chosen)
        return flow.reduce(self.train, texts, by="all")

    def weigh(self, docs: pa.Table) -> pa.Table:
        """The documents of a batch that may come into the sample, by their draw, with the bytes they would give."""
        size = np.minimum(sizes(texts_in(docs)), MOST_OF_ONE)
        has = size > 0
        return self.lowest([pa.table({"key": self.draw(docs, SAMPLE)[has], "bytes": size[has]})])

    def lowest(self, tables: list[pa.Table]) -> pa.Table:
        """Those of the lowest draws, until they have `sample_bytes`."""
        rows = pa.concat_tables([table.select(["key", "bytes"]) for table in tables]).sort_by("key")
        size = rows["bytes"].to_numpy()
        return rows.slice(0, int(np.searchsorted(np.cumsum(size) - size, self.sample_bytes)))

    def texts(self, docs: pa.Table, chosen: pa.Table) -> pa.Table:
        """The texts of those that were chosen."""
        key = self.draw(docs, SAMPLE)
        texts = texts_in(docs)
        here = (key <= chosen["key"].to_numpy().max()) & (sizes(texts) > 0)
        capped = [
            text.encode()[:MOST_OF_ONE].decode(errors="ignore") for text in texts.filter(pa.array(here)).to_pylist()
        ]
        return pa.table(
            {"all": np.zeros(len(capped), np.uint64), "key": key[here], "text": pa.array(capped, pa.large_string())}
        )

    def train(self, texts: pa.Table) -> pa.Table:
        """The whole sample, in order of draw."""
        ordered = texts.select(["key", "text"]).take(pc.sort_indices(texts["key"]))
        return self.learnt(text for batch in ordered.to_batches(1024) for text in batch["text"].to_pylist()).table()

    def learnt(self, texts: Iterator[str]) -> TokenizerVocabulary:
        named = self.named()
        specials = [str(named[role]) for role in SPECIALS]  # in the order of their ids
        vocabulary = TokenizerVocabulary("", trained(texts, self.vocab_size, self.digits, specials), named)
        return vocabulary._replace(name=f"trained-{self.vocab_size}-{vocabulary.hash[:8]}")

    def draw(self, docs: pa.Table, of: int) -> Array:
        return chances(docs["uid"].to_numpy(), self.seed + of)

    # --- encoding ----------------------------------------------------------------------------------------------------

    def encode(self, docs: pa.Table, rows: pa.Table) -> pa.Table:
        encoder, ids = at_work(rows)
        texts = texts_in(docs)
        encoded = encoder.encode(texts)
        plain = np.diff(encoded.offsets)
        goes = (plain == 0) | encoded.special
        values, offsets = self.framed(encoded, np.where(goes, 0, plain), ids)
        lengths = np.diff(offsets)
        reason = np.where(encoded.special, "special_token", np.where(goes, "no_tokens", ""))
        per_token = sizes(texts) / np.maximum(plain, 1) * ~goes
        buffers = [None, pa.py_buffer(offsets * ids.dtype.itemsize), pa.py_buffer(values)]
        return pa.table(
            {
                "uid": docs["uid"],
                "reason": pa.array(reason, pa.string(), mask=~goes),
                "detail": pa.nulls(len(docs), pa.string()),
                "token_ids": pa.Array.from_buffers(pa.large_binary(), len(docs), buffers),
                "tokens": lengths.astype(np.int32),
                "bytes_per_token": per_token.astype(np.float32),
            }
        )

    def framed(self, found: Encoded, plain: Array, ids: Ids) -> tuple[Array, Array]:
        """The ids of the documents that stay, each between its beginning and its end."""
        stays = plain > 0
        offsets = np.concatenate([[0], np.cumsum(plain + stays * len(self.around))]).astype(np.int64)
        values, body = np.empty(offsets[-1], ids.dtype), np.ones(offsets[-1], bool)
        for role, place in (("bos", offsets[:-1][stays]), ("eos", offsets[1:][stays] - 1)):
            if role in self.around:
                values[place], body[place] = getattr(ids, role), False
        values[body] = found.ids[np.repeat(plain > 0, np.diff(found.offsets))]
        return values, offsets

    # --- for the report ----------------------------------------------------------------------------------------------

    def beside_tally(self, vocabulary: TokenizerVocabulary, documents: int) -> pa.Table:
        """The tokenizer, and up to which draw a document is checked: a power of two, so that a file more does not check
        all anew."""
        below = (2**64 - 1) >> max(0, (documents // CHECKED).bit_length() - 1)
        return vocabulary.table().append_column("below", pa.array([below], pa.uint64()))

    def tally(self, docs: pa.Table, beside: pa.Table) -> pa.Table:
        """What a batch has of each source and language; of the documents that are checked, which do not come back as
        they were."""
        encoder, ids = at_work(beside)
        stored = docs.select(["text", "token_ids"])
        checked = self.draw(docs, CHECK) <= np.uint64(beside["below"][0].as_py())
        restored = np.zeros(len(docs), bool)
        for row in np.flatnonzero(checked).tolist():
            text, content = (stored[name][row].as_py() for name in ("text", "token_ids"))
            plain = np.frombuffer(content, ids.dtype)[int(self.bos) : -1 if self.eos else None]
            restored[row] = encoder.tokenizer.decode(plain.tolist(), skip_special_tokens=False) == text
        return rows_of(docs, sizes(texts_in(docs)), Checked(checked, restored))

    def add_up(self, tables: list[pa.Table]) -> pa.Table:
        return added_up([table.select(GROUPS) for table in tables])


def at_work(rows: pa.Table) -> tuple[TextEncoder, Ids]:
    vocabulary = TokenizerVocabulary.of(rows)
    encoder = encoder_of(vocabulary.tokenizer_text)
    return encoder, ids_of(vocabulary, encoder.tokenizer, encoder.size)


def texts_in(docs: pa.Table) -> pa.ChunkedArray:
    """A null is an empty text."""
    return pc.fill_null(docs["text"].cast(pa.large_string()), "")


def sizes(texts: pa.ChunkedArray) -> Array:
    """Bytes of each text."""
    return pc.binary_length(texts).to_numpy().astype(np.int64)  # type: ignore[no-any-return]
