"""The dataset card of a set of token shards: README.md as a hub shows it, from the facts of a run.

`dataset_card` takes a plain dict (`Facts`); missing facts are left out of the card, and nothing is made up. Texts in it
may come from anywhere (shards/card_text.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import yaml

from gristmill.shards.card_text import fenced, front_matter, link, number, one_line, plain, share, table

FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)^---\r?\n", re.DOTALL | re.MULTILINE)
SIZES = (  # of the hub: rows below this
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
    (10**8, "10M<n<100M"),
    (10**9, "100M<n<1B"),
    (10**10, "1B<n<10B"),
    (10**11, "10B<n<100B"),
    (10**12, "100B<n<1T"),
)
# What the hub knows by name; any other license is `other`, with a name of its own.
LICENSES = """
    afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bsd bsd-2-clause bsd-3-clause bsl-1.0 c-uda cc cc0-1.0 cc-by-2.0
    cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0
    cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cdla-permissive-1.0
    cdla-permissive-2.0 cdla-sharing-1.0 ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 gfdl gpl gpl-2.0 gpl-3.0
    isc lgpl lgpl-2.1 lgpl-3.0 lppl-1.3c mit mpl-2.0 ms-pl mulanpsl-2.0 ncsa odbl odc-by ofl-1.1 open-mdw openrail
    osl-3.0 pddl postgresql unknown unlicense wtfpl zlib
"""


MOST_LICENSES = 8  # of a source, by name


class SourceFacts(TypedDict, total=False):
    """One source of documents. `documents` and `tokens` are those in the shards, with copies."""

    name: str
    url: str
    license_source: str  # what the source declares
    license_stated: Mapping[str, int]  # documents by the license that their page states, where a rule looked
    documents: int
    tokens: int
    weight: float  # of all tokens, as the mix asked for
    epochs: float  # how often the source's own tokens are repeated


class StageFacts(TypedDict, total=False):
    """One stage of the run, as in run.json."""

    name: str
    docs_in: int
    kept: int
    dropped: Mapping[str, int]  # by reason
    quarantined: int


class Synthetic(TypedDict):
    """What a model wrote, as the stage that asked it counted."""

    stage: str
    model: str
    styles: Sequence[str]
    documents: int
    share: float  # of the text that left the stage


class Tokenizer(TypedDict, total=False):
    name: str
    hash: str
    vocabulary: int
    bos: int | None
    eos: int | None
    pad: int
    bytes_per_token: Mapping[str, float]  # by language


class Packing(TypedDict, total=False):
    """Rows of one length. `path` is the pattern of its shards, relative to the card's folder."""

    row_length: int
    path: str
    rows: int
    tokens: int  # without padding
    padding: int
    documents: int
    pieces: int
    shards: int
    bytes: int
    packer: str
    seed: int
    fingerprint: str


class Facts(TypedDict, total=False):
    """The facts of a card. Languages are BCP 47 codes, as the hub expects."""

    title: str
    summary: str
    license: str
    license_url: str
    languages: Sequence[str]
    tags: Sequence[str]
    task_categories: Sequence[str]
    sources: Sequence[SourceFacts]
    stages: Sequence[StageFacts]
    synthetic: Sequence[Synthetic]
    tokenizer: Tokenizer
    packing: Sequence[Packing]
    recipe: str  # as resolved, YAML
    versions: Mapping[str, str]
    fingerprint: str
    command: str


def dataset_card(facts: Facts) -> str:
    """README.md, front matter and all."""
    parts = [
        f"# {plain(facts.get('title') or 'Token shards')}",
        plain(facts.get("summary") or "Packed token sequences for pretraining, made with Gristmill."),
        _size(facts),
        _license(facts),
        _sources(facts.get("sources", ())),
        _synthetic(facts.get("synthetic", ())),
        _funnel(facts.get("stages", ())),
        _tokenizer(facts.get("tokenizer", {})),
        _packing(facts.get("packing", ())),
        _loading(facts),
        _again(facts),
    ]
    return front_matter(_front(facts)) + "\n" + "\n\n".join(part for part in parts if part) + "\n"


def config_of(path: str) -> str:
    """By the folder of a set: its row length, behind its cell where there are several."""
    return path.removesuffix("/*.arrow").replace("/", "-")


def configs(packing: Sequence[Packing]) -> list[dict[str, Any]]:
    """What a hub's viewer opens: one configuration for each row length, the first of them by default."""
    entries: list[dict[str, Any]] = [
        {"config_name": config_of(rows["path"]), "data_files": [{"split": "train", "path": rows["path"]}]}
        for rows in packing
        if "row_length" in rows and "path" in rows
    ]
    if entries:
        entries[0]["default"] = True
    return entries


def with_configs(card: str, entries: list[dict[str, Any]]) -> str:
    """The same card for files elsewhere. A card without front matter gets one."""
    match = FRONT_MATTER.match(card)
    front = yaml.safe_load(match[1]) if match else {}
    if not isinstance(front, dict):
        raise ValueError("the front matter of the card is no mapping of names to values")
    return front_matter({**front, "configs": entries}) + card[match.end() if match else 0 :]


def size_category(rows: int) -> str:
    return next((name for below, name in SIZES if rows < below), "n>1T")


def _front(facts: Facts) -> dict[str, Any]:
    """In the hub's own terms. Rows of one length are one form of the same tokens; the form with the most rows gives the
    size."""
    license_name = one_line(facts.get("license", "unknown")) or "unknown"
    listed = license_name.lower() in LICENSES.split()
    front: dict[str, Any] = {
        "pretty_name": facts.get("title") or "Token shards",
        "license": license_name.lower() if listed else "other",
    }
    if not listed:
        front["license_name"] = license_name
    if facts.get("license_url"):
        front["license_link"] = facts["license_url"]
    if facts.get("languages"):
        front["language"] = list(facts["languages"])
    front["task_categories"] = list(facts.get("task_categories", ["text-generation"]))
    rows = [packing["rows"] for packing in facts.get("packing", ()) if "rows" in packing]
    if rows:
        front["size_categories"] = [size_category(max(rows))]
    front["tags"] = ["gristmill", "pretraining", "tokenized", *facts.get("tags", ())]
    if configs(facts.get("packing", ())):
        front["configs"] = configs(facts.get("packing", ()))
    return front


def _size(facts: Facts) -> str:
    packings = [rows for rows in facts.get("packing", ()) if "tokens" in rows]
    if not packings:
        return ""
    lengths = ", ".join(number(rows["row_length"]) for rows in packings)
    return f"Tokens: {number(max(rows['tokens'] for rows in packings))}, in rows of {lengths}."


def _license(facts: Facts) -> str:
    if not one_line(facts.get("license", "")):
        return "## License\n\nNot stated. Do not assume one: the sources below keep theirs."
    license = link(facts["license"], facts.get("license_url", ""))
    return f"## License\n\nLicense: {license}. The texts keep the licenses of their sources."


def _synthetic(written: Sequence[Synthetic]) -> str:
    if not written:
        return ""
    rows = [
        [
            plain(one["stage"]),
            plain(one["model"]),
            plain(", ".join(one["styles"])),
            number(one["documents"]),
            share(one["share"], 1),
        ]
        for one in written
    ]
    head = ["stage", "model", "styles", "documents:", "share of the text there:"]
    note = "Written by a model from documents of the sources; the share is of the text that left the stage."
    return f"## Synthetic text\n\n{note}\n\n{table(head, rows)}"


def _sources(sources: Sequence[SourceFacts]) -> str:
    if not sources:
        return ""
    tokens = sum(source.get("tokens", 0) for source in sources)
    rows = [
        [
            link(source.get("name", ""), source.get("url", "")),
            plain(source.get("license_source", "not stated")),
            number(source.get("documents", "–")),
            number(source.get("tokens", "–")),
            share(source.get("tokens", 0), tokens),
            share(source["weight"], 1) if "weight" in source else "–",
            number(source.get("epochs", "–")),
        ]
        for source in sources
    ]
    header = ["source", "its license", "documents:", "tokens:", "share of tokens:", "weight asked for:", "epochs:"]
    if any(source.get("license_stated") for source in sources):
        header.append("licenses that pages state")
        rows = [[*row, _stated_licenses(source)] for row, source in zip(rows, sources, strict=True)]
    return "## Sources and mix\n\n" + table(header, rows)


def _stated_licenses(source: SourceFacts) -> str:
    """The most frequent ones, with their shares of the documents that the rule on licenses kept."""
    counts = sorted(source.get("license_stated", {}).items(), key=lambda item: (-item[1], item[0]))
    whole = sum(count for _, count in counts)
    named = [f"{plain(name)} {number(count)} ({share(count, whole)})" for name, count in counts[:MOST_LICENSES]]
    return ", ".join([*named, *([f"{len(counts) - MOST_LICENSES} more"] if len(counts) > MOST_LICENSES else [])]) or "–"


def _funnel(stages: Sequence[StageFacts]) -> str:
    if not stages:
        return ""
    rows = []
    for stage in stages:
        came = stage.get("docs_in", 0)
        reasons = sorted(stage.get("dropped", {}).items(), key=lambda item: (-item[1], item[0]))
        dropped = ", ".join(
            f"{plain(reason)} {number(count)} ({share(count, came)})" for reason, count in reasons if count
        )
        rows.append(
            [
                plain(stage.get("name", "")),
                number(came),
                number(stage.get("kept", 0)),
                share(stage.get("kept", 0), came),
                dropped or "–",
                number(stage.get("quarantined", 0)),
            ]
        )
    intro = (
        "Documents through each stage, in order. A document that is dropped counts once, under the first reason that "
        "held."
    )
    return f"## Filters and deduplication\n\n{intro}\n\n" + table(
        ["stage", "documents in:", "kept:", "kept share:", "dropped, by reason", "quarantined:"], rows
    )


def _tokenizer(tokenizer: Tokenizer) -> str:
    if not tokenizer:
        return ""
    rows = [["name", plain(tokenizer.get("name", "not stated"))]]
    if tokenizer.get("hash"):
        rows.append(["hash", plain(tokenizer["hash"])])
    if "vocabulary" in tokenizer:
        rows.append(["vocabulary", number(tokenizer["vocabulary"])])
    tokens = (("bos", tokenizer.get("bos")), ("eos", tokenizer.get("eos")), ("pad", tokenizer.get("pad")))
    rows.append(["special tokens", ", ".join(f"{name} {'none' if token is None else token}" for name, token in tokens)])
    if tokenizer.get("bytes_per_token"):
        measured = sorted(tokenizer["bytes_per_token"].items())
        rows.append(
            ["bytes per token", ", ".join(f"{plain(language)} {number(value)}" for language, value in measured)]
        )
    return "## Tokenizer\n\n" + table(["what", "value"], rows)


def _packing(packing: Sequence[Packing]) -> str:
    if not packing:
        return ""
    rows = []
    for each in packing:
        slots = each.get("tokens", 0) + each.get("padding", 0)
        rows.append(
            [
                number(each.get("row_length", "–")),
                plain(each.get("packer", "–")),
                number(each.get("rows", "–")),
                share(each.get("tokens", 0), slots),
                f"{number(each.get('padding', 0))} ({share(each.get('padding', 0), slots)})",
                number(each.get("documents", "–")),
                number(each["pieces"] - each["documents"]) if "pieces" in each and "documents" in each else "–",
                number(each.get("shards", "–")),
                number(each.get("bytes", "–")),
            ]
        )
    intro = (
        "A row is one training sequence. `seq_lens` holds the lengths of the documents in it, in order; what they "
        "leave is padding. "
        "Boundaries are stored: do not infer them from a token."
    )
    header = ["row length:", "packer", "rows:", "fill:", "padding tokens:", "documents:", "cuts:", "shards:", "bytes:"]
    return f"## Packing\n\n{intro}\n\n" + table(header, rows)


def _loading(facts: Facts) -> str:
    usable = [rows for rows in facts.get("packing", ()) if "row_length" in rows and "path" in rows]
    if not usable:
        return ""
    path, config = usable[0]["path"], config_of(usable[0]["path"])
    folder = path.rpartition("/")[0] or "."
    ours = (
        "from gristmill import Loader, open_shards\n\n"
        f"for batch in Loader(open_shards({json.dumps(folder)}), batch_rows=64, epochs=1):\n    "
        "print(batch.input_ids.shape)"
    )
    theirs = (
        "from datasets import load_dataset\n\n"
        f'rows = load_dataset("arrow", data_files={json.dumps(path)}, split="train")\n'
        f'# from a hub: load_dataset("OWNER/NAME", {json.dumps(config)}, split="train")'
    )
    trl = (
        "from datasets import load_dataset\nfrom trl import SFTConfig\n\n"
        'rows = load_dataset("parquet", data_files="trl/*.parquet", split="train")  # what `gristmill export` writes '
        "for trl\n"
        'config = SFTConfig(packing=False, padding_free=True, dataset_kwargs={"skip_prepare_dataset": True})'
    )
    blocks = (("Gristmill", ours), ("datasets", theirs), ("TRL", trl))
    return "## Loading\n\n" + "\n\n".join(f"With {name}:\n\n{fenced(lines, 'python')}" for name, lines in blocks)


def _again(facts: Facts) -> str:
    parts = []
    rows = [[plain(name), plain(version)] for name, version in sorted(facts.get("versions", {}).items())]
    if facts.get("fingerprint"):
        rows.insert(0, ["fingerprint of the run", plain(facts["fingerprint"])])
    for each in facts.get("packing", ()):
        if each.get("fingerprint"):
            rows.insert(
                0,
                [
                    f"fingerprint of rows of {number(each['row_length'])}, seed",
                    f"{plain(each['fingerprint'])}, {number(each.get('seed', '–'))}",
                ],
            )
    if rows:
        parts.append(table(["what", "value"], rows))
    if facts.get("command"):
        parts.append(fenced(facts["command"], "sh"))
    if facts.get("recipe"):
        parts.append("The recipe as it was resolved:\n\n" + fenced(facts["recipe"], "yaml"))
    return "## Made again\n\n" + "\n\n".join(parts) if parts else ""
