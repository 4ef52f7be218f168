#!/usr/bin/env python3
"""Semantic deduplication on planted paraphrases and planted templates, beside SemDeDup on the same vectors and clusters.
One JSON line a result.

    python -m benchmarks.dedup.semantic [--data ../shared/data] [--passages 3000] [--planted 100]

Passages of 80 to 160 words are cut from books, encyclopedia articles and the main texts of web pages. To some of them a
paraphrase is planted: words replaced by synonyms (`synonyms`), clauses and sentences in another order (`order`), both
(`both`), or each word that a small table has replaced by its German one (`translation`). Templates are planted beside
them: weather reports, product pages, licenses and files of code, of one form each, with other numbers and names; and
notices whose facts are words in lower case (`lower case`), which the second look cannot see. Recall: the share of
paraphrases of which one of the two goes. Wrong: documents that go and are no paraphrase, by kind.

Vectors are those of `corpus_embed`, fitted to these documents, and those of a made static model whose tables give
synonyms and translations nearly the same vector, as a good model would. SemDeDup (Abbas et al. 2023): in each cluster,
in order of the cosine with its centre, what is within epsilon of one before it goes. There is no second look at texts
in it. `threshold` is the cosine, 1 - epsilon.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.stages import CorpusEmbed, Embed, SemanticClusters, SemanticDedup
from gristmill.stages.local_flow import LocalDocuments, LocalFlow


def listed(words: str) -> list[str]:
    return words.split()


THRESHOLDS = (0.8, 0.85, 0.9, 0.95, 0.98)
SYNONYMS = dict(
    pair.split("/")
    for pair in listed("""big/large small/little begin/start began/started end/finish house/dwelling quick/fast quickly/rapidly
    said/stated say/state show/display shows/displays showed/displayed make/produce made/produced help/assist use/employ
    used/employed find/discover found/discovered get/obtain got/obtained keep/retain give/provide gave/provided
    think/believe thought/believed see/observe saw/observed old/ancient new/recent good/fine bad/poor many/numerous
    often/frequently always/constantly also/additionally but/however because/since about/regarding near/close
    people/persons man/fellow men/fellows woman/lady women/ladies child/kid children/kids road/street town/village
    job/task work/labour story/tale book/volume war/conflict king/monarch land/territory sea/ocean hill/mound
    forest/woods river/stream ship/vessel friend/companion enemy/foe fear/dread joy/delight sad/unhappy happy/glad
    angry/furious tired/weary rich/wealthy beautiful/lovely strange/odd great/grand strong/powerful weak/feeble
    difficult/hard easy/simple important/significant main/principal whole/entire part/portion kind/type way/manner
    place/spot time/moment answer/reply ask/inquire asked/inquired buy/purchase bought/purchased sell/vend need/require
    needs/requires want/desire wanted/desired try/attempt tried/attempted build/construct built/constructed
    change/alter changed/altered choose/select chosen/selected happen/occur happened/occurred increase/grow
    increased/grew allow/permit allowed/permitted stop/cease stopped/ceased speak/talk spoke/talked look/glance
    looked/glanced walk/stroll walked/strolled run/dash ran/dashed come/arrive came/arrived go/proceed went/proceeded
    seem/appear seemed/appeared live/dwell lived/dwelt die/perish died/perished rest/remainder enough/sufficient
    almost/nearly several/various before/prior during/throughout under/beneath over/above between/among only/merely
    perhaps/maybe usually/generally finally/eventually immediately/instantly""")
)
GERMAN = dict(
    pair.split("/")
    for pair in listed("""the/die a/ein an/ein of/von and/und to/zu in/in is/ist was/war were/waren are/sind be/sein he/er she/sie
    it/es they/sie we/wir you/ihr his/sein her/ihr their/deren that/dass this/dies these/diese those/jene with/mit for/für
    on/auf at/bei by/durch from/aus as/als or/oder not/nicht no/kein but/aber had/hatte has/hat have/haben which/welche
    who/wer when/wann where/wo there/dort here/hier one/eins two/zwei three/drei all/alle some/einige many/viele more/mehr
    most/meist other/andere new/neu old/alt good/gut great/groß small/klein long/lang first/erste last/letzte man/mann
    men/männer woman/frau people/leute child/kind children/kinder house/haus town/stadt city/stadt king/könig war/krieg
    land/land sea/meer river/fluss water/wasser fire/feuer day/tag night/nacht year/jahr years/jahre time/zeit life/leben
    hand/hand head/kopf eye/auge eyes/augen word/wort words/wörter book/buch work/arbeit world/welt way/weg said/sagte
    made/machte came/kam went/ging saw/sah found/fand gave/gab took/nahm could/konnte would/würde should/sollte will/wird
    can/kann may/mag must/muss before/vor after/nach under/unter over/über between/zwischen into/hinein out/hinaus up/auf
    down/hinab again/wieder also/auch only/nur very/sehr much/viel then/dann than/als now/jetzt so/so if/wenn because/weil
    never/nie always/immer name/name part/teil place/ort end/ende north/norden south/süden west/westen east/osten""")
)
WORD = re.compile(r"[A-Za-zÀ-ÿ]+")
CITIES = listed("Bonn Mainz Kiel Ulm Jena Trier Worms Fulda Hagen Siegen Bremen Essen Lübeck Passau Gera Emden")
FAMILIES = listed("Miller Novak Sato Okoye Larsen Rossi Dubois Kowalski Petrov Haddad Silva Tanaka Nilsson Varga Kim")
BRANDS = listed("Veltron Kasano Brixley Ottomar Zephyra Halden Norwick Palmyra Quillon Ristova Tamsin Ulmark")
LOWER = {
    "fish": listed("cod trout salmon eel perch carp pike herring"),
    "taste": listed("salty mild sweet smoky sour bitter fresh rich"),
    "when": listed("spring summer autumn winter"),
    "pot": listed("copper iron clay steel glass tin"),
}


def replaced(text: str, table: dict[str, str], chance: float, dice: random.Random) -> str:
    """Words in lower case that the table has; one with a capital may be a name."""

    def other(match: re.Match[str]) -> str:
        new = table.get(match.group())
        return match.group() if new is None or dice.random() > chance else new

    return WORD.sub(other, text)


def reordered(text: str, dice: random.Random) -> str:
    """Sentences in another order, and clauses of some around their comma: `After the war, he left.` to `He left after
    the war.`"""
    sentences = re.split(r"(?<=[.!?])\s+", text)
    for place, sentence in enumerate(sentences):
        halves = re.fullmatch(r"([A-Z][^,;:\"]{8,60}), ([^,;:\"]{8,})([.!?])", sentence)
        if halves:
            first, second, stop = halves.groups()
            keep = len(first) > 1 and first.split()[0] in ("I",)
            sentences[place] = (
                f"{second[0].upper()}{second[1:]} {first if keep else first[0].lower() + first[1:]}{stop}"
            )
    dice.shuffle(sentences)
    return " ".join(sentences)


def paraphrase(kind: str, text: str, dice: random.Random) -> str:
    if kind == "translation":
        return replaced(text, GERMAN, 1, dice)
    if kind in ("synonyms", "both"):
        text = replaced(text, SYNONYMS | {b: a for a, b in SYNONYMS.items()}, 0.9, dice)
    return reordered(text, dice) if kind in ("order", "both") else text


def template(kind: str, dice: random.Random) -> str:
    city, other = dice.sample(CITIES, 2)
    name, brand = f"{dice.choice(FAMILIES)}", dice.choice(BRANDS)
    n = [dice.randrange(1, 90) for _ in range(12)]
    if kind == "weather":
        return (
            f"Weather for {city}. The morning begins with light clouds and a temperature of {n[0]} degrees. By noon the "
            f"air warms to {n[0] + 6} degrees, with a wind of {n[1]} km/h from the west. The chance of rain is {n[2]} "
            f"percent, and up to {n[3]} mm may fall in the evening. Towards {other} it stays dry, with {n[4]} hours of sun. "
            "Drivers should expect wet roads and take care. The outlook for the coming days is changeable."
        )
    if kind == "product":
        return (
            f"The {brand} {n[0]}{n[1]} is a kitchen machine for the whole family. It has a motor of {n[2]}0 watts, a bowl "
            f"of {n[3] / 10} litres and {n[4] % 9 + 2} speeds. It weighs {n[5] / 10} kg and comes with a guarantee of "
            f"{n[6] % 5 + 1} years. All parts can be washed in the machine. Customers give it {n[7] % 50 / 10} of 5 stars. "
            f"Order it now for {n[8]}.{n[9]:02d} euros; delivery takes {n[10] % 9 + 1} days and is free of charge."
        )
    if kind == "license":
        return (
            f"Copyright (c) {1950 + n[0]} {name}. Permission is hereby granted to any person who obtains a copy of this "
            "work to use it without restriction, to copy it, to change it, to publish it and to sell copies of it, on the "
            "condition that this notice stands in all copies. The work is provided as it is, without a warranty of any "
            "kind. In no event shall the authors be liable for any claim or damage that arises from the work or its use."
        )
    if kind == "code":
        return (
            f"def limit_{n[0]}(values):\n    total = {n[1]}\n    for value in values:\n        if value > {n[2]}:\n"
            f"            total += value * {n[3]}\n        elif value < {n[4]}:\n            total -= value + {n[5]}\n"
            f"    return min(total, {n[6]}{n[7]})\n\n\nMOST = {n[8]}\nNAMES = ['{name}', '{city}']\nif __name__ == '__main__':\n"
            f"    print(limit_{n[0]}(range(MOST)))\n"
        )
    fish, taste, when, pot = (dice.choice(LOWER[name]) for name in ("fish", "taste", "when", "pot"))
    also, later = dice.choice(LOWER["fish"]), dice.choice(LOWER["when"])
    return (
        f"this dish is made of {fish} and is best in {when}. clean the fish, cut it into pieces and let it rest in a bowl. "
        f"heat butter in a {pot} pan and fry the pieces until they are brown. the taste is {taste}. those who like it less "
        f"so may take {also}, which is sold from {later} on. serve it hot with bread and a salad of the season."
    )


def passages(data: Path, count: int, dice: random.Random) -> list[str]:
    texts = pq.read_table(data / "prose.parquet", columns=["text"])["text"].to_pylist()
    main = pq.read_table(data / "rule_verdicts.parquet").to_pylist()
    texts += [row["text"] for row in main if row["kind"] == "main"]
    cut: list[str] = []
    for text in texts:
        sentences = re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text[:400_000]))
        run: list[str] = []
        for sentence in sentences:
            run.append(sentence)
            words = sum(len(each.split()) for each in run)
            if words > 160:
                run = []
            elif words >= 80:
                cut.append(" ".join(run))
                run = []
    cut = list(dict.fromkeys(cut))
    dice.shuffle(cut)
    return cut[:count]


def made_model(folder: Path, texts: list[str]) -> str:
    """A static model: each word has a vector, weighted by how rare it is; of synonyms and of translations nearly one."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    counts: Counter[str] = Counter()
    for text in texts:
        counts.update({word.lower() for word in re.findall(r"\w+", text)})
    words = ["[UNK]", *sorted(counts)]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    dice = np.random.default_rng(3)
    vectors = {word: dice.normal(size=256) for word in words}
    for table in (SYNONYMS, GERMAN):
        for word, other in table.items():
            if word in vectors and other in vectors:
                vectors[other] = vectors[word] + 0.3 * dice.normal(size=256)
    rows = [vectors[word] * np.log((1 + len(texts)) / (1 + counts[word])) for word in words]
    save_file({"embeddings": np.array(rows, np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "model2vec"}', encoding="utf-8")
    return str(folder)


def semdedup(table: pa.Table, threshold: float) -> set[int]:
    """The uids of those that go."""
    gone: set[int] = set()
    vectors = np.array(table["embedding"].to_pylist(), np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cluster, middle = table["cluster"].to_numpy(), table["cluster_similarity"].to_numpy()
    uid = table["uid"].to_numpy()
    for name in np.unique(cluster):
        own = np.flatnonzero(cluster == name)
        own = own[np.lexsort((uid[own], -middle[own]))]
        cosine = np.triu(vectors[own] @ vectors[own].T, 1)
        gone |= set(uid[own[cosine.max(axis=0, initial=0) >= threshold]].tolist())
    return gone


def judged(gone: set[int], kinds: list[str], pair: list[int], uids: list[int]) -> dict[str, object]:
    """`pair` numbers the two of a paraphrase alike, 0 for none."""
    of_pair: dict[int, list[bool]] = {}
    wrong: Counter[str] = Counter()
    for kind, number, uid in zip(kinds, pair, uids, strict=True):
        if number:
            of_pair.setdefault(number, []).append(uid in gone)
        elif uid in gone:
            wrong[kind] += 1
    found: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    kind_of = {number: kind for kind, number in zip(kinds, pair, strict=True) if number}
    both = 0
    for number, goes in of_pair.items():
        whole[kind_of[number]] += 1
        found[kind_of[number]] += sum(goes) == 1
        both += sum(goes) == 2
    recall = {kind: round(found[kind] / whole[kind], 3) for kind in sorted(whole)}
    return {"recall": recall, "wrong": dict(sorted(wrong.items())), "both_of_a_pair_went": both}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--passages", type=int, default=3000)
    parser.add_argument("--planted", type=int, default=100, help="of each kind of paraphrase and of template")
    given = parser.parse_args()
    dice = random.Random(7)
    texts = passages(given.data, given.passages, dice)
    kinds, pair = ["passage"] * len(texts), [0] * len(texts)
    for kind in ("synonyms", "order", "both", "translation"):
        for place in dice.sample(
            [n for n, number in enumerate(pair) if not number and kinds[n] == "passage"], given.planted
        ):
            other = paraphrase(kind, texts[place], dice)
            if other != texts[place]:
                kinds[place], pair[place] = kind, place + 1
                texts, kinds, pair = [*texts, other], [*kinds, kind], [*pair, place + 1]
    for kind in ("weather", "product", "license", "code", "lower case"):
        made = list(dict.fromkeys(template(kind, dice) for _ in range(given.planted)))
        texts, kinds, pair = texts + made, kinds + [kind] * len(made), pair + [0] * len(made)
    uids = dice.sample(range(1, 1 << 62), len(texts))
    columns = {"url": pa.nulls(len(texts), pa.string()), "date": pa.nulls(len(texts), pa.string())}
    source = pa.array(["a"] * len(texts)).dictionary_encode()
    docs = pa.table({"uid": pa.array(uids, pa.uint64()), "text": texts, "source": source, **columns})
    print(json.dumps({"what": "documents", **Counter(kinds)}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model = made_model(Path(folder), texts)
        for vectors, stage in (("corpus_embed", CorpusEmbed()), ("a made static model", Embed(model_path=model))):
            clustered = SemanticClusters(clusters=max(1, len(texts) // 500))(stage(docs))
            for threshold in THRESHOLDS:
                theirs = semdedup(clustered, threshold)
                flow = LocalFlow()
                kept = SemanticDedup(threshold=threshold).run(LocalDocuments([clustered]), flow).table()
                ours = set(uids) - set(kept["uid"].to_pylist())
                loose = SemanticDedup(threshold=threshold, shared_words=0)(clustered)
                for who, gone in (
                    ("semantic_dedup", ours),
                    ("semantic_dedup, shared_words: 0", set(uids) - set(loose["uid"].to_pylist())),
                    ("SemDeDup", theirs),
                ):
                    facts = judged(gone, kinds, pair, uids)
                    print(json.dumps({"what": who, "vectors": vectors, "threshold": threshold, "gone": len(gone), **facts}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
