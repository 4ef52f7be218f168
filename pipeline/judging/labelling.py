"""Labels of a language model for a sample of texts, by a taxonomy, as a table to train judges on: what it would cost
first, every answer kept, a share asked twice, and what was not labelled with its reason.

The second time a text is put with the labels in the contrary order, or to another model: how well both agree bounds
what a judge can learn.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from gristmill.classifiers.llm.account import Account
from gristmill.classifiers.llm.cache import AnswerCache, answer_all
from gristmill.classifiers.llm.model import Answer, LanguageModel, LanguageModelError
from gristmill.classifiers.metrics import confusion, kappa
from gristmill.classifiers.rating.sample import BYTES_A_TOKEN, cut_texts
from gristmill.classifiers.rating.taxonomy import NONE, ByTaxonomy, Labelled, TaxonomyError, taxonomy_of
from gristmill.classifiers.teaching.passages import text_hashes
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.formatting import as_number
from gristmill.pipeline.inputs.columns import LABELLED_BY, as_words, files_of, texts_in
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.judging.asking import AskingPlan, kept_answers
from gristmill.pipeline.recipe import plans
from gristmill.pipeline.recipe.plans import LoadedPlan, Paths
from gristmill.stages.inputs import InputFile
from gristmill.stages.judge.back_end import BackEnd

EXAMPLE = "recipes/judges/labels.yaml"
CARRIED = ("uid", "id", "url", "source", "language")  # columns that stay beside a text
REASONED_TOKENS = 80  # of a usual answer, for the estimate
SHOWN, EXCERPT = 3, 160


class LabelPlan(AskingPlan):
    """Labels of a language model for a sample of texts."""

    model: BackEnd
    out: Annotated[str | None, Field(description="folder for labels.parquet, left_out.parquet and the account")] = None
    texts: Annotated[Paths, Field(description="Parquet, JSON lines, CSV or text files")]
    taxonomy: Annotated[str, Field(description="topic or format (24 labels each), or a YAML file of your own")]
    reading: Annotated[
        Literal["at_once", "reasoned"], Field(description="at_once: probabilities of all labels after one pass")
    ] = "at_once"
    most: Annotated[int, Field(ge=2, description="texts labelled, drawn by hash")] = 10_000
    max_tokens: Annotated[int, Field(ge=16, description="limit of a reasoned answer")] = 512
    twice: Annotated[float, Field(ge=0, le=1, description="share asked again, with labels in the contrary order")] = 0.1
    second_model: Annotated[BackEnd | None, Field(description="asked instead that second time")] = None


def load(path: Path) -> LoadedPlan[LabelPlan]:
    return plans.load(path, LabelPlan, EXAMPLE)


@dataclass(frozen=True)
class LabelJob:
    """A plan with its texts drawn, and how it asks about them."""

    plan: LabelPlan
    folder: Path
    asking: ByTaxonomy
    table: pa.Table

    @classmethod
    def of(cls, loaded: LoadedPlan[LabelPlan], out: str | Path | None) -> LabelJob:
        """RecipeError says where the plan is wrong."""
        plan, where = loaded.plan, loaded.where
        if plan.second_model and not plan.twice:
            raise loaded.wrong(("second_model",), "is asked for the share of `twice`, which is 0")
        file = loaded.place(plan.taxonomy)
        try:
            taxonomy = taxonomy_of(str(file) if file.is_file() else plan.taxonomy)
        except TaxonomyError as error:
            raise loaded.wrong(("taxonomy",), str(error)) from error
        asking = ByTaxonomy(taxonomy, plan.reading, plan.max_tokens)
        table = draw(files_of(plan.texts, where("texts")), plan.text, plan.most, plan.seed, where("text"))
        return cls(plan, Path(loaded.out(out)), asking, table)

    @property
    def expected(self) -> str:
        """What asking takes, in words."""
        texts, again = cut_texts(self.table["text"].to_pylist(), self.plan.cut), twice_of(self.table, self.plan)
        sizes = np.array([_bytes_of(self.asking, text) for text in texts], np.float64) / BYTES_A_TOKEN
        answers = (len(texts) + int(again.sum())) * (1 if self.asking.reading == "at_once" else REASONED_TOKENS)
        account = Account(prompt_tokens=int(sizes.sum() + sizes[again].sum()), completion_tokens=answers)
        prices = self.plan.costs
        cost = f"; about {account.cost(prices):,.4g} without what a prefix cache spares" if prices else ""
        return (
            f"texts to label: {len(texts):,}, {again.sum():,} of them twice; about {as_number(account.prompt_tokens)}"
            f" tokens of prompts and {as_number(answers)} of answers{cost}"
        )

    def carry_out(self, seen: Callable[[int], None] = lambda answers: None) -> LabelFindings:
        """Ask, and write labels.parquet, left_out.parquet and the account into the folder."""
        try:
            findings = label_texts(self.table, self.asking, self.plan, self.folder / "answers", seen)
        except (LanguageModelError, ValueError) as error:
            raise RunFailed(str(error)) from error
        save(findings, self.folder)
        return findings


def draw(files: Sequence[InputFile], text: str, most: int, seed: int, named_by: str = "text") -> pa.Table:
    """At most so many different texts that are not blank: those of the lowest hashes, so that another order of files
    draws the same."""
    best: pa.Table | None = None
    for table in _hashed(files, text, seed, named_by):
        merged = table if best is None else pa.concat_tables([best, table], promote_options="permissive")
        hashes = merged["_hash"].to_numpy()
        _, first = np.unique(hashes, return_index=True)
        best = merged.take(pa.array(first[:most]))
    if best is None or not len(best):
        raise RecipeError("no texts: the files hold none")
    return best.drop_columns(["_hash"])


def twice_of(table: pa.Table, how: LabelPlan) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The texts that are asked a second time, by a hash of each."""
    return text_hashes(table["text"], how.seed + 1).astype(np.float64) / 2**64 < how.twice


@dataclass(frozen=True)
class LabelFindings:
    table: pa.Table  # texts with a label
    left_out: pa.Table  # the others, with a reason
    facts: JSONObject


def label_texts(
    table: pa.Table,
    asking: ByTaxonomy,
    how: LabelPlan,
    answers: Path,
    seen: Callable[[int], None],
) -> LabelFindings:
    model = how.model.opened()
    other = how.second_model.opened() if how.second_model else None
    account, second_account = Account(), Account()
    again = twice_of(table, how)
    texts = cut_texts(table["text"].to_pylist(), how.cut)
    second_asking = replace(asking, turned=other is None)
    with kept_answers(answers, seen) as cache:
        first = _asked(model, asking, texts, account, cache)
        gate(first, how.most_failures)
        rows = np.flatnonzero(again).tolist()
        second = _asked(other or model, second_asking, [texts[row] for row in rows], second_account, cache)
        gate(second, how.most_failures)
    labels = [each.label for each, _ in first]
    seconds: list[str | None] = [None] * len(table)
    for row, (each, _) in zip(rows, second, strict=True):
        seconds[row] = None if each.failure else each.label or NONE
    chances = np.array([each.chance for each, _ in first], np.float32)
    rows_with = table.append_column("label", pa.array(labels, pa.string()))
    rows_with = rows_with.append_column("chance", pa.array(chances, mask=np.isnan(chances)))
    rows_with = rows_with.append_column("second", pa.array(seconds, pa.string()))
    has_label = pc.is_valid(rows_with["label"])
    reasons = pa.array([each.failure or (NONE if each.label is None else None) for each, _ in first], pa.string())
    left_out = rows_with.append_column("reason", reasons).filter(pc.invert(has_label)).drop_columns(["label"])
    unread = Counter(each.failure for each, _ in first if each.failure)
    facts: JSONObject = {
        "taxonomy": asking.taxonomy.name,
        "labels": list(asking.taxonomy.names),
        "model": model.name,
        "reading": asking.reading,
        "cut": how.cut,
        "texts": len(table),
        "labelled": sum(label is not None for label in labels),
        "none": len(table) - sum(label is not None for label in labels) - unread.total(),
        "unread": dict(sorted(unread.items())),
        "counts": dict(Counter(label for label in labels if label is not None).most_common()),
        "account": account.as_dict(how.costs),
        "second_account": second_account.as_dict(how.costs),
    }
    if rows:
        pairs = [(first[row][0], each) for row, (each, _) in zip(rows, second, strict=True)]
        facts["agreement"] = agreement_of(pairs, asking.labels, other.name if other else "labels in the contrary order")
    return LabelFindings(rows_with.filter(has_label), left_out, facts)


def agreement_of(pairs: Sequence[tuple[Labelled, Labelled]], labels: Sequence[str], by: str) -> JSONObject:
    """Of texts whose both answers could be read: how often both say the same, Cohen's kappa, the same by label of the
    first answer, and the pairs that differ most often."""
    both = [(a.label or NONE, b.label or NONE) for a, b in pairs if not (a.failure or b.failure)]
    places = {label: i for i, label in enumerate(labels)}
    first, second = (np.array([places[pair[side]] for pair in both], np.int64) for side in (0, 1))
    agreed = kappa(confusion(first, second, len(labels))) if both else math.nan
    same = Counter(a for a, b in both if a == b)
    apart = Counter(f"{a} / {b}" for a, b in both if a != b)
    of_label = Counter(a for a, _ in both)
    return {
        "by": by,
        "texts": len(both),
        "same": sum(same.values()) / len(both) if both else None,
        "kappa": agreed if math.isfinite(agreed) else None,
        "same_by_label": {label: same[label] / count for label, count in of_label.most_common()},
        "apart": dict(apart.most_common(20)),
    }


def gate(read: Sequence[tuple[Labelled, Answer]], most: float) -> None:
    """One unreadable answer is a text without a label; many are a model or a prompt that does not work."""
    failed = [(each, answer) for each, answer in read if each.failure]
    if len(failed) <= max(1.0, most * len(read)):
        return
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in Counter(each.failure for each, _ in failed).most_common())
    examples = "".join(
        f"\n  {each.failure}: {(answer.detail or answer.text)[-EXCERPT:]!r}" for each, answer in failed[:SHOWN]
    )
    raise RunFailed(
        f"{len(failed):,} of {len(read):,} answers could not be read ({kinds}), more than {most:.1%}. Some of them:{examples}"
    )


def save(findings: LabelFindings, out: Path) -> None:
    """`labels.parquet`, which says of itself how it was made; `left_out.parquet`; `account.json`."""
    out.mkdir(parents=True, exist_ok=True)
    noted = json.dumps(findings.facts)
    pq.write_table(
        findings.table.replace_schema_metadata({LABELLED_BY: noted}), out / "labels.parquet", compression="zstd"
    )
    pq.write_table(findings.left_out, out / "left_out.parquet", compression="zstd")
    (out / "account.json").write_text(json.dumps(findings.facts, indent=1) + "\n", encoding="utf-8")


def _asked(
    model: LanguageModel, asking: ByTaxonomy, texts: Sequence[str], account: Account, cache: AnswerCache
) -> list[tuple[Labelled, Answer]]:
    answers = dict(answer_all(model, [asking.request(text) for text in texts], account, cache))
    return [(asking.read(answers[row]), answers[row]) for row in range(len(texts))]


def _bytes_of(asking: ByTaxonomy, text: str) -> int:
    request = asking.request(text)
    return len((request.shared + request.own).encode("utf-8", "replace"))


def _hashed(files: Sequence[InputFile], text: str, seed: int, named_by: str) -> Iterator[pa.Table]:
    """Texts that are not blank, with a hash each."""
    for _, _, table in texts_in(files, text, CARRIED, named_by):
        columns = {"text": table[text]}
        for name in CARRIED:
            if name in table.column_names and name != text:
                is_uid = name == "uid" and pa.types.is_uint64(table[name].type)
                columns[name] = table[name] if is_uid else as_words(table[name])
        whole = pa.table(columns)
        whole = whole.filter(pc.fill_null(pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(whole["text"])), 0), False))
        yield whole.append_column("_hash", pa.array(text_hashes(whole["text"], seed)))
