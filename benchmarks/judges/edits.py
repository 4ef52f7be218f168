#!/usr/bin/env python3
"""Does the check of rephrasings pass what is faithful and find what is not? A made-up model behind an endpoint says 300
passages again in all styles, and 300 times changes one number, name or negation of what it said.

    python -m benchmarks.judges.edits [--data FOLDER] [--count 300] [--show 5]

The model is a rewriter by rules that know nothing of the check: synonyms, contractions, sentences split, joined and
dropped, numbers in words and in digits. Passages are of known-good prose and of the reviewed main text of web pages
(`prose.parquet`, `pages.parquet`). One JSON line a result; `--show` prints some that went wrong. Exits 1 where less than
95 % of the faithful are accepted, or less than 95 % of changed numbers and names refused.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.stages import Rephrase
from gristmill.stages.edits.faithful import check
from gristmill.stages.edits.prompts import STYLES, StyleName
from tests.classifiers.llm.llm_server import LanguageServer, chat_reply, prompt_of

DATA = Path("../shared/data")
LEAST = 0.95
SENTENCES = re.compile(r"(?<=[a-z0-9)\"”][.!?]) +(?=[A-Z\"“])")
SYNONYMS = {
    "however": "nevertheless", "began": "started", "large": "big", "small": "little", "also": "in addition",
    "because": "since", "many": "numerous", "often": "frequently", "about": "roughly", "although": "though",
    "while": "whereas", "used": "employed", "made": "produced", "shows": "demonstrates", "help": "assist", "get": "obtain",
    "near": "close to", "after": "following", "before": "prior to", "upon": "on", "said": "stated", "whole": "entire",
    "built": "constructed", "find": "discover", "need": "require", "important": "significant", "great": "considerable",
    "several": "a number of", "began to": "set out to", "received": "was given", "first": "initial", "quickly": "rapidly",
}  # fmt: skip
LONG = {"don't": "do not", "can't": "cannot", "it's": "it is", "isn't": "is not", "didn't": "did not", "won't": "will not",
        "doesn't": "does not", "wasn't": "was not", "you're": "you are", "we're": "we are"}  # fmt: skip
SMALL_WORDS = "two three four five six seven eight nine ten eleven twelve"
SMALL = SMALL_WORDS.split()
FILLERS = re.compile(
    r"\b(?:very|quite|really|simply|indeed|certainly|of course|perhaps|rather|actually|just)\b ?", re.I
)
PRONOUNS = {"he", "she", "it", "they", "we", "i", "you"}
LOWERED = {"the", "a", "an", "this", "these", "that", "those", "in", "on", "at", "it", "they", "he", "she", "we", "you",
           "for", "from", "with", "when", "if", "as", "there", "after", "his", "her", "its", "their", "our"}  # fmt: skip
OTHER_NAMES = (
    "Belgium Hamburg Quentin Ottawa Rodriguez Vivian Nakamura Bristol Fernandez Toshiba Wellington Oslo Kowalski Denise "
    "Tucson Lindqvist Mozambique Harriet Zurich Petrov Cornelius Jakarta Montoya Sheffield Gwendolyn Okafor Lisbon Barnaby"
)


def passages(data: Path, count: int, rng: random.Random) -> list[str]:
    """Half prose, half pages: whole sentences, 600 to 2,400 characters."""
    prose = pq.read_table(data / "prose.parquet", columns=["text"])["text"].to_pylist()
    column = pq.read_table(data / "pages.parquet", columns=["main_content"])["main_content"]
    pages = [text for text in column.to_pylist() if text and len(text) > 1500]
    found: list[str] = []
    for texts, share in ((prose, count // 2), (pages, count - count // 2)):
        taken: list[str] = []
        while len(taken) < share:
            text = rng.choice(texts)
            at = rng.randrange(max(1, len(text) - 3000))
            piece = " ".join(text[at : at + rng.randint(900, 2700)].split())
            sentences = SENTENCES.split(piece)[1:-1]
            if len(sentences) >= 4 and sum(map(len, sentences)) >= 600:
                taken.append(" ".join(sentences))
        found += taken
    return found


def reworded(sentence: str, rng: random.Random) -> str:
    """The same in other words; nothing is added."""
    for short, long in LONG.items():
        sentence = re.sub(rf"\b{short}\b", long, sentence)
    for word, other in SYNONYMS.items():
        if rng.random() < 0.7:
            sentence = re.sub(rf"(?<![A-Z\w'’-]){word}(?![\w'’-])", other, sentence)
    if rng.random() < 0.5:
        for value, word in enumerate(SMALL, 2):
            sentence = re.sub(rf"\b{word}\b(?! (?:hundred|thousand|million|and|or))(?!-)", str(value), sentence)
    if rng.random() < 0.5:
        sentence = FILLERS.sub("", sentence)
    sentence = re.sub(r"(\d),(\d{3})\b(?!,)", r"\1\2", sentence) if rng.random() < 0.3 else sentence
    head, _, tail = sentence.partition(", ")
    if (
        rng.random() < 0.3
        and tail.endswith(".")
        and head.split()[:1]
        and head.split()[0] in ("When", "If", "In", "After", "For")
    ):
        first = tail.split()[0]
        if "," not in tail and first.lower() in LOWERED | PRONOUNS:
            return f"{tail[0].upper()}{tail[1:-1]} {head[0].lower()}{head[1:]}."
    if rng.random() < 0.4 and "; " in sentence:
        one, _, other = sentence.partition("; ")
        return f"{one}. {other[0].upper()}{other[1:]}"
    return sentence


def lowered(sentence: str) -> str:
    first = sentence.split(" ", 1)[0]
    return sentence[0].lower() + sentence[1:] if first.lower() in LOWERED else sentence


def topic(sentence: str) -> str:
    """Of what a question asks."""
    phrase = re.search(r"\b(?:the|this|a|an) (?:[a-z]+ ){1,2}?[a-z]{4,}", sentence)
    return phrase[0] if phrase else "this"


def answer(style: StyleName, passage: str, rng: random.Random) -> str:
    sentences = SENTENCES.split(passage)
    again = [reworded(sentence, rng) for sentence in sentences]
    if style == "summary":
        return " ".join(again[:: max(2, len(again) // 4)])
    if style == "distilled":
        return " ".join(re.sub(r" \([^()]*\)", "", FILLERS.sub("", sentence)) for sentence in again)
    if style == "question_answer":
        chosen = sorted(rng.sample(range(len(again)), min(len(again), 5)))
        asked = (
            "What is said about {}?",
            "What should one know of {}?",
            "How is {} described?",
            "Why does {} matter here?",
        )
        return "\n\n".join(
            f"Question: {rng.choice(asked).format(topic(sentences[i]))}\nAnswer: {again[i]}" for i in chosen
        )
    if style == "tutorial":
        opening = ("Note that", "Keep in mind that", "Next, remember that", "Then observe that")
        return "What follows explains it point by point.\n\n" + "\n".join(
            f"{number}. {rng.choice(opening)} {lowered(sentence)}" for number, sentence in enumerate(again, 1)
        )
    cut = max(1, len(again) // 2)
    return " ".join(again[:cut]) + "\n\n" + " ".join(again[cut:])


# --- one thing changed


def other_number(text: str, rng: random.Random) -> str | None:
    places = [
        match for match in re.finditer(r"(?<![\d.,\w])\d+(?:[.,]\d+)*(?![\d\w])", text) if match[0] not in ("0", "1")
    ]
    places = [
        match for match in places if not (text[: match.start()].rpartition("\n")[2] == "" and text[match.end()] == ".")
    ]
    if not places:
        return None
    match = rng.choice(places)
    digits = list(match[0])
    at = rng.choice([place for place, sign in enumerate(digits) if sign.isdigit()])
    digits[at] = rng.choice([sign for sign in "23456789" if sign != digits[at]])
    return text[: match.start()] + "".join(digits) + text[match.end() :]


def other_name(text: str, rng: random.Random) -> str | None:
    places = list(re.finditer(r"(?<=[a-z,] )(?!I\b)[A-Z][a-z]{2,}\b", text))
    if not places:
        return None
    match = rng.choice(places)
    return text[: match.start()] + rng.choice(OTHER_NAMES.split()) + text[match.end() :]


def other_negation(text: str, rng: random.Random) -> str | None:
    places = list(re.finditer(r"\b(?:is|are|was|were|has|had|can|could|will|would|does|did)\b(?! not\b)", text))
    gone = list(re.finditer(r"\bnot ", text))
    if gone and (not places or rng.random() < 0.5):
        match = rng.choice(gone)
        return text[: match.start()] + text[match.end() :]
    if not places:
        return None
    match = rng.choice(places)
    return f"{text[: match.end()]} not{text[match.end() :]}"


CHANGES = {"number": other_number, "name": other_name, "negation": other_negation}


def tell(what: str, **facts: Any) -> None:
    print(json.dumps({"what": what, **facts}), flush=True)


def through_the_stage(style: StyleName, texts: Sequence[str], answers: Sequence[str]) -> tuple[int, Counter[str]]:
    """A batch of passages by an endpoint that gives these answers: documents made, and what was noted."""
    said = dict(zip((" ".join(text.split()) for text in texts), answers, strict=True))

    def reply(path: str, body: dict[str, Any]) -> dict[str, Any]:
        shown = prompt_of(body).split("]\n", 1)[1].rsplit("\n[END", 1)[0]
        return chat_reply(said[" ".join(shown.split())])

    batch = pa.record_batch({"uid": pa.array(range(len(texts)), pa.uint64()), "text": pa.array(texts)})
    with LanguageServer(reply) as server:
        done = Rephrase(model="m", endpoint=server.url, styles=[style], most_failures=1.0, name=style).checked(batch)
    made = 0 if done.made is None else len(done.made.batch)
    noted = Counter(done.noted)
    refused = sum(count for name, count in noted.items() if "refused" in name)
    if not noted["rephrase_asked"] == len(texts) == noted["rephrase_accepted"] + refused == made + refused:
        raise SystemExit(f"counts do not balance: {dict(noted)}, {made} made of {len(texts)}")
    return made, noted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    texts = passages(options.data, options.count, rng)
    rng.shuffle(texts)
    styles: tuple[StyleName, ...] = get_args(StyleName)
    pairs = [(styles[i % len(styles)], text) for i, text in enumerate(texts)]
    faithful = [(style, text, answer(style, text, rng)) for style, text in pairs]
    accepted, reasons, negations = 0, Counter[str](), 0
    for style in styles:
        own = [(text, said) for of, text, said in faithful if of == style]
        made, noted = through_the_stage(style, [text for text, _ in own], [said for _, said in own])
        accepted += made
        reasons.update({name.partition(":")[2]: count for name, count in noted.items() if "refused" in name})
        negations += noted["rephrase_negations_changed"]
        tell("faithful", style=style, given=len(own), accepted=made)
    tell(
        "faithful, all styles", given=len(faithful), accepted=accepted, share=round(accepted / len(faithful), 4),
        refused=dict(reasons), sentences_told_as_negations_changed=negations,
    )  # fmt: skip
    shares, shown, start, looked_at = {"faithful": accepted / len(faithful)}, 0, time.perf_counter(), 0
    for kind, change in CHANGES.items():
        given, refused, told, missed = 0, 0, 0, list[str]()
        for style, text, said in rng.sample(faithful, len(faithful)) * 2:
            changed = change(said, rng)
            rules = STYLES[style]
            if given == options.count // 3 or changed is None or changed == said:
                continue
            before = check(text, said, rules.bounds, rules.instructions)
            if before.reason:
                continue  # refused for another reason
            found = check(text, changed, rules.bounds, rules.instructions)
            looked_at += 2
            given += 1
            refused += bool(found.reason)
            told += found.negations > before.negations or found.negations < before.negations
            if not found.reason and kind != "negation":
                missed.append(changed)
        shares[kind] = refused / max(1, given)
        told_too = {"counted": told, "share_counted": round(told / max(1, given), 4)} if kind == "negation" else {}
        tell(f"one {kind} changed", given=given, refused=refused, share=round(shares[kind], 4), **told_too)
        for changed in missed[: options.show]:
            print("   missed:", changed[:600])
    tell("checks a second, one core", checks=looked_at, a_second=round(looked_at / (time.perf_counter() - start), 1))
    for style, text, said in faithful if options.show else ():
        found = check(text, said, STYLES[style].bounds, STYLES[style].instructions)
        if found.reason and shown < options.show:
            shown += 1
            print(f"   {style}, {found.reason}: {said[:700]}\n      of: {text[:500]}")
    if min(shares["faithful"], shares["number"], shares["name"]) < LEAST:
        raise SystemExit(f"below {LEAST:.0%}: {shares}")


if __name__ == "__main__":
    main()
