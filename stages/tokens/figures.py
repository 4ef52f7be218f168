"""Figures of tokens and of the rows that they are packed into, and the card of the shards: what `tokenize` and `pack`
told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gristmill.shards.card import Facts as CardFacts, dataset_card
from gristmill.stages.edits.made import REPHRASE
from gristmill.stages.figures import LICENSE, Block, FactList, Report, Table, as_ratio, relative
from gristmill.stages.formatting import as_bytes, as_number, as_percent, as_share

OVERFLOW = 31  # of the lengths of documents: the last group has no end


def tokenizer_figures(report: Report) -> list[Block]:
    tokenizer, trip = report["tokenizer"], report["round_trip"]
    pairs = [
        ("tokenizer", str(tokenizer["name"])),
        ("hash", str(tokenizer["hash"])),
        ("vocabulary", f"{as_number(tokenizer['vocab_size'])} ids, stored as {tokenizer['dtype']}"),
        *((f"{role} token", special(tokenizer, role)) for role in ("bos", "eos", "pad")),
        ("tokens", as_number(report["tokens"])),
        ("bytes per token", as_ratio(report["bytes_per_token"])),
        (
            "round trip",
            f"{as_number(trip['restored'])} of {as_number(trip['checked'])} documents "
            f"({as_share(trip['restored'], trip['checked'])}) "
            "come back from their ids as the text they were",
        ),
    ]
    if trip["changed"]:
        pairs.append(
            ("do not come back", ", ".join(map(str, trip["changed"])) + " (gristmill inspect OUT --uid shows them)")
        )
    blocks: list[Block] = [FactList("", pairs)]
    for key in ("language", "source"):
        if report.get(f"bytes_per_token_by_{key}"):
            blocks.append(per_token(key, report[f"bytes_per_token_by_{key}"]))
    return blocks


def special(tokenizer: Report, role: str) -> str:
    token, number = tokenizer.get(f"{role}_token"), tokenizer.get(f"{role}_id")
    if number is None:
        return "none"
    where = {"bos": "before each document", "eos": "behind each document"}.get(role)
    use = "" if where is None else f", {where if role in tokenizer['around'] else 'not added to documents'}"
    return f"{'' if token is None else f'{token} '}(id {number}){use}"


def per_token(key: str, found: Mapping[str, Mapping[str, Any]]) -> Table:
    given = list(found.items())
    rows = [
        (name, as_number(of["documents"]), as_number(of["tokens"]), as_ratio(of["bytes_per_token"]))
        for name, of in given
    ]
    bars = relative([of["bytes_per_token"] or 0.0 for _, of in given])
    return Table.of(
        f"Bytes per token, by {key}", (key, "documents", "tokens", "bytes per token"), rows, 1, bars
    ).first()


def packing_figures(report: Report) -> list[Block]:
    packing = report["packing"]
    pairs = [
        ("tokens", as_number(packing["tokens"])),
        ("windows", as_number(packing["windows"]) + (", each packed on its own" if packing["windows"] > 1 else "")),
        ("folder", f"{packing['folder']}/"),
        ("license", str(packing["license"])),
    ]
    blocks: list[Block] = [FactList("", pairs), sets(packing["sets"])]
    if any(packing["document_lengths"]):
        blocks.append(lengths(packing["document_lengths"]))
    given = sorted(packing["sources"].items(), key=lambda item: (-item[1]["tokens"], item[0]))
    rows = [
        (
            str(name),
            as_number(of["documents"]),
            as_number(of["tokens"]),
            as_percent(of["tokens"] / max(1, packing["tokens"])),
        )
        for name, of in given
    ]
    bars = relative([of["tokens"] for _, of in given])
    blocks.append(
        Table.of(
            "What rows hold of each source, copies counted",
            ("source", "documents", "tokens", "share"),
            rows,
            1,
            bars,
        ).first()
    )
    return blocks


def sets(given: Sequence[Report]) -> Table:
    cells = any("cell" in row_set for row_set in given)
    rows = [
        (
            *((str(row_set.get("cell", "")),) if cells else ()),
            as_number(row_set["row_length"]),
            str(row_set["packer"]),
            as_number(row_set["rows"]),
            as_percent(row_set["fill"]),
            as_number(row_set["padding"]),
            as_number(row_set["cut"]),
            as_percent(row_set["rows"] / row_set["fewest_rows"] - 1) if row_set["fewest_rows"] else "–",
            as_number(row_set["shards"]),
            as_bytes(row_set["bytes"]),
        )
        for row_set in given
    ]
    head = (
        *(("cell",) if cells else ()),
        "row length",
        "packer",
        "rows",
        "fill",
        "padding",
        "cut",
        "more rows than needed",
        "shards",
        "size",
    )
    note = (
        "More rows than needed: over the least that any packer could do with here that cuts only documents "
        "longer than a row. Cut: documents in several pieces."
    )
    return Table.of("Rows", head, rows, 3 if cells else 2, note=note).first()


def lengths(counts: Sequence[int]) -> Table:
    """Documents by the power of two that their tokens reach."""
    filled = [k for k, count in enumerate(counts) if count]
    groups = range(filled[0], filled[-1] + 1)
    rows = [(length_group(k), as_number(counts[k]), as_share(counts[k], sum(counts))) for k in groups]
    return Table.of(
        "Documents by length, copies counted",
        ("tokens", "documents", "share"),
        rows,
        1,
        relative([counts[k] for k in groups]),
    )


def length_group(k: int) -> str:
    low, high = (1 << k) >> 1, (1 << k) - 1
    return f"{low:,} or more" if k == OVERFLOW else f"{low:,}" if high <= low else f"{low:,} to {high:,}"


def card_of_shards(packing: Report, shared: Report, record: Report) -> str:
    """README.md of what a `pack` stage wrote, out of run.json and what the stages before it told."""
    tokenizer, mix = shared.get("tokenizer", {}), shared.get("mix", {})
    mixed = (
        {source["source"]: source for source in mix.get("sources", [])}
        if mix.get("by", ["source"]) == ["source"]
        else {}
    )
    sources = [
        {
            "name": name,
            **counts,
            "license_stated": stated_licenses(record, name),
            **({"weight": mixed[name]["weight"], "epochs": mixed[name]["epochs"]} if name in mixed else {}),
        }
        for name, counts in packing["sources"].items()
    ]
    facts: dict[str, Any] = {
        "title": record["name"],
        "license": packing["license"],
        "sources": sources,
        "stages": [
            {name: stage[name] for name in ("name", "docs_in", "kept", "dropped", "quarantined")}
            for stage in record["stages"]
        ],
        "synthetic": synthetic_of(record),
        "tokenizer": {
            "name": tokenizer.get("name", ""),
            "hash": tokenizer.get("hash", ""),
            "vocabulary": tokenizer.get("vocab_size", 0),
            **{role: tokenizer.get(f"{role}_id") for role in ("bos", "eos", "pad")},
        },
        "packing": packing["sets"],
        "recipe": yaml.safe_dump(without_nulls(record["recipe"]), sort_keys=False, allow_unicode=True),
        "versions": record["versions"],
        "command": "gristmill run RECIPE",
    }
    return dataset_card(CardFacts(**facts))  # type: ignore[typeddict-item]


def synthetic_of(record: Report) -> list[dict[str, Any]]:
    """What stages `rephrase` wrote."""
    return [
        {
            "stage": entry["name"],
            "model": entry["settings"].get("model") or entry["settings"].get("model_path") or "",
            "styles": entry["settings"].get("styles", []),
            "documents": entry["made"],
            "share": entry.get("noted", {}).get("rephrase_bytes_made", 0) / max(1, entry["text_bytes"]),
        }
        for entry in record["stages"]
        if entry.get("stage") == REPHRASE and entry.get("made")
    ]


def stated_licenses(record: Report, source: str) -> dict[str, int]:
    """Documents of a source by the license that they state, as the last stage that looked counted them."""
    counted: dict[str, int] = {}
    for stage in record["stages"]:
        noted = stage.get("sources", {}).get(source, {}).get("noted", {})
        named = {name.removeprefix(LICENSE): count for name, count in noted.items() if name.startswith(LICENSE)}
        counted = named or counted
    return counted


def without_nulls(data: Any) -> Any:
    """Settings that nobody made say nothing."""
    if isinstance(data, dict):
        return {name: without_nulls(value) for name, value in data.items() if value is not None}
    return [without_nulls(value) for value in data] if isinstance(data, list) else data
