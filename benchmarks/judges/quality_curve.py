#!/usr/bin/env python3
"""How well cheap judges keep the order of a neural judge, and how fast: one JSON line a point of the curve.

    python -m benchmarks.judges.quality_curve make FOLDER [--data ../shared/data]    (once, on any machine)
    python -m benchmarks.judges.quality_curve run FOLDER [--device cuda] [--only NAME;...]
        [--judge FOLDER] [--small] [--tiny]

`make` writes passages.parquet: passages of 800 to 6,000 characters with a grade from 0 to 4 and a site. 0: lines of a
page outside its main text; 1: main text of product, service, collection and listing pages; 2: of forums and
documentation; 3: of articles; 4: books and encyclopedia articles. `run` trains a neural teacher on the grades of a half
of the sites. Students learn the teacher's scores on four fifths of the sites (fastText and the linear judge: halves or
fifths of them), and are compared with the teacher on the last fifth, which neither saw. Speed: processor time of one
core, from an Arrow column to scores, model in memory.

Points named `neural` are the teacher on the CPU, compressed: int8, int4, 2:4 sparse, half of its layers with and
without distillation. They are compared on `--neural-texts` of the texts. `--judge` keeps the teacher, or reads it.
`--small` is for a CPU: 4 layers, 192 wide, 128 tokens, trained on 1,500 passages; all points on 4,000 others.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("OMP_NUM_THREADS", "1" if {"--tiny", "--small"} & set(sys.argv) else "8")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.races import processor
from gristmill.classifiers.judge import Head, Judge
from gristmill.classifiers.teaching.distil import DistilRecipe, Train, lesson_of
from gristmill.classifiers.training_sets import held_out, labelled_texts
from gristmill.mixing.weights.spearman import spearman

LOW, HIGH = -1.0, 5.0  # beyond the grades, so that few scores lie at a bound, where they are equal
FIFTHS, HALVES = (0.2, 0.4, 0.6, 0.8), (0.5,)
GRADE_OF_TYPE = {"article": 3, "forum": 2, "documentation": 2}
VALUE = Head("quality", "regression", (), "the grade that the teacher gives", LOW, HIGH)
CLASSES = Head("quality", "classes", ("0", "1", "2", "3", "4"), "which fifth of the teacher's scores", 0, 4)
BINARY = Head("quality", "probability", ("bad", "good"), "the better half by the teacher's scores")
SHORTEST, LONGEST = 800, 6000  # characters


def make(folder: Path, data: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pages = {
        row["page"]: row
        for row in pq.read_table(data / "pages.parquet", columns=["page", "url", "page_type"]).to_pylist()
    }
    texts: dict[str, dict[str, str]] = {"page": {}, "main": {}}
    for row in pq.read_table(data / "rule_verdicts.parquet", columns=["page", "kind", "text"]).to_pylist():
        texts[row["kind"]][row["page"]] = row["text"]
    drawn, rows = np.random.default_rng(0), []
    for page, main in sorted(texts["main"].items()):
        site = urlsplit(pages[page]["url"]).hostname or page
        grade = GRADE_OF_TYPE.get(pages[page]["page_type"], 1)
        rows += [(passage, float(grade), site) for passage in passages(main, drawn)]
        lines = {line.strip() for line in main.split("\n")}
        rest = "\n".join(line for line in texts["page"].get(page, "").split("\n") if line.strip() not in lines)
        rows += [(passage, 0.0, site) for passage in passages(rest, drawn)]
    for row in pq.read_table(data / "prose.parquet").to_pylist():
        rows += [(passage, 4.0, row["work"]) for passage in passages(row["text"], drawn)[:2]]
    columns = dict(zip(("text", "grade", "site"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), folder / "passages.parquet", compression="zstd", compression_level=12)
    counts = Counter(columns["grade"])
    say(
        "made",
        passages=len(rows),
        sites=len(set(columns["site"])),
        grades={f"{g:g}": counts[g] for g in sorted(counts)},
    )


def passages(text: str, drawn: np.random.Generator) -> list[str]:
    """The text cut where words end, into lengths of which every octave has as many."""
    found, start = [], 0
    while len(text) - start >= SHORTEST:
        end = start + int(SHORTEST * (LONGEST / SHORTEST) ** drawn.random())
        if end < len(text):
            end = max(text.rfind(" ", start, end), text.rfind("\n", start, end), start + SHORTEST)
        found.append(text[start:end])
        start = end
    return found


class Curve:
    def __init__(self, args: argparse.Namespace) -> None:
        table = pq.read_table(args.folder / "passages.parquet")
        if args.tiny:
            table = table.take(pa.array(np.random.default_rng(1).permutation(len(table))[:300]))
        self.args, self.tiny = args, args.tiny
        named = labelled_texts(table.append_column("_g", table["grade"].cast(pa.int64())), label="_g", group="site")
        self.test = held_out(named, 0.2, 0)
        inside = named.take(~self.test)
        first = held_out(inside, 0.5, 1)
        self.teachers = np.zeros(len(table), np.bool_)
        self.teachers[np.flatnonzero(~self.test)[first]] = True
        self.table, self.texts = table, named.texts
        self.grades = table["grade"].to_numpy()
        self.named = named
        some = np.ones(len(table), np.bool_)
        if args.small:
            some = np.isin(np.arange(len(table)), np.random.default_rng(4).permutation(len(table))[:4000])
        self.inside, self.test = ~self.test & some, self.test & some
        self.judges: dict[str, Any] = {}  # by point
        self.full: Any = None  # the teacher's scores of the texts on which compressed ones are compared

    def teach(self) -> Any:
        """A neural judge that learned the grades of its half of the sites."""
        from benchmarks.judges.neural_judge_data import trained_tokenizer
        from gristmill.classifiers.neural.encoder import EncoderShape
        from gristmill.classifiers.neural.training import NeuralRecipe, train_neural
        from gristmill.trainer.step.optim import AdamW

        start = time.perf_counter()
        part = self.table.filter(pa.array(self.teachers)).rename_columns(["text", "quality", "site"])
        shape, tokens = ((512, 32, 3, 2, 64), 512) if self.tiny else ((16_000, 384, 6, 6, 1536), 512)
        recipe = NeuralRecipe(
            epochs=1 if self.tiny else 8, optimizer=AdamW(rate=3e-4, faster=(("heads.", 3.0),)), held_out=0.0
        )
        if self.args.small:
            shape, tokens = (8000, 192, 4, 3, 768), 128
            rows = np.random.default_rng(2).permutation(len(part))[:1500]
            part = part.take(pa.array(np.sort(rows)))
            faster = AdamW(rate=7e-4, faster=(("heads.", 3.0),))
            recipe = replace(recipe, epochs=3, optimizer=faster, update_tokens=4096, step_tokens=4096, dropout=0.0)
        tokenizer = trained_tokenizer([text[:4000] for text in part["text"].to_pylist()], shape[0])
        tokenizer = replace(tokenizer, most=tokens)
        judge = train_neural(
            part, [VALUE], tokenizer, EncoderShape("bert", *shape, tokens), recipe, device=self.args.device
        )
        say("teacher", seconds=round(time.perf_counter() - start, 1), texts=len(part), tokens=tokens, shape=list(shape))
        return judge

    def marks(self, judge: Any) -> np.ndarray:
        """The teacher's scores; of texts that nobody looks at NaN."""
        rows = self.inside | self.test
        scores = np.full(len(self.texts), np.nan)
        scores[rows] = judge.at(self.args.device).score(self.texts.filter(pa.array(rows)))["quality"]
        other = self.inside & ~self.teachers
        say(
            "teacher's scores",
            spearman_to_grades_of_its_sites=spearman(
                scores[self.inside & self.teachers], self.grades[self.inside & self.teachers]
            ),
            spearman_to_grades_of_students_other_sites=spearman(scores[other], self.grades[other]),
            spearman_to_grades_of_test_sites=spearman(scores[self.test], self.grades[self.test]),
            score_tenths=np.quantile(scores[self.test], np.arange(11) / 10).round(2).tolist(),
        )
        return scores

    def compressed(self, name: str, of: str, settings: dict[str, Any] | None, precision: str | None) -> None:
        """A judge of an earlier point compressed, or as it is where there are no settings."""
        from gristmill.classifiers.neural.compression import Compression, compress

        start, cpu = time.perf_counter(), time.process_time()
        judge = self.judges[of]
        if settings is not None:
            how = Compression(**{"held_out": 0.0, **settings})
            rows = np.random.default_rng(5).permutation(np.flatnonzero(self.inside))[: self.args.compression_texts]
            judge = compress(judge, self.named.take(np.isin(np.arange(len(self.texts)), rows)), how, self.args.device)
        self.judges[name] = judge
        took, cpu = time.perf_counter() - start, time.process_time() - cpu
        judge = judge.at("cpu", precision)
        rows = np.flatnonzero(self.test)
        rows = rows[np.random.default_rng(3).permutation(len(rows))[: self.args.neural_texts]]
        texts = self.texts.take(pa.array(rows))
        if self.full is None:
            self.full = self.judges["teacher"].at("cpu", "float32").score(texts)["quality"]
        begin = time.process_time()
        scores = judge.score(texts)["quality"]
        rates = [len(texts) / (time.process_time() - begin)]
        rates = sorted([*rates, *(rate(judge, texts) for _ in range(0 if self.tiny else 2))])
        with tempfile.TemporaryDirectory() as folder:
            judge.write(Path(folder))
            size = (Path(folder) / "weights.safetensors").stat().st_size
        say(
            name,
            spearman_to_teacher=spearman(self.full.astype(np.float64), scores.astype(np.float64)),
            spearman_to_grades=spearman(self.grades[rows], scores.astype(np.float64)),
            documents_a_second_a_core=round(rates[len(rates) // 2], 1),
            spread=[round(rates[0], 1), round(rates[-1], 1)],
            precision=judge.precision,
            layers_kept=judge.card.training.get("compression", {}).get("layers_kept"),
            tested_on=len(texts),
            compression_seconds=round(took, 1),
            compression_cpu_seconds=round(cpu, 1),
            model_bytes=size,
        )

    def point(
        self, name: str, train: Train, head: Head, form: str, parts: tuple[float, ...], marks: np.ndarray
    ) -> None:
        inside = self.inside
        cuts = tuple(np.quantile(marks[inside], parts).tolist())
        recipe = DistilRecipe(cuts=cuts, form=form, low=LOW, high=HIGH)  # type: ignore[arg-type]
        labels = [recipe.names(head)[c] for c in np.searchsorted(cuts, marks[inside], side="right")]
        lesson = lesson_of(replace(self.named.take(inside), labels=pa.array(labels)), marks[inside], head, recipe)
        start, cpu = time.perf_counter(), time.process_time()
        judge = train(lesson)
        took, cpu = time.perf_counter() - start, time.process_time() - cpu
        texts = self.texts.filter(pa.array(self.test))
        scores = judge.score(texts)["quality"]
        rates = sorted(rate(judge, texts) for _ in range(1 if self.tiny else 5))
        size = sum(len(text.encode()) for text in texts.to_pylist())
        middle = rates[len(rates) // 2]
        say(
            name,
            spearman_to_teacher=spearman(marks[self.test], scores),
            spearman_to_grades=spearman(self.grades[self.test], scores),
            documents_a_second_a_core=round(middle),
            spread=[round(rates[0]), round(rates[-1])],
            megabytes_a_second=round(middle * size / len(texts) / 1e6, 1),
            trained_on=len(lesson),
            tested_on=len(texts),
            training_seconds=round(took, 1),
            training_cpu_seconds=round(cpu, 1),
            model_bytes=weight_bytes(judge),
        )


def rate(judge: Judge, texts: pa.Array) -> float:
    start = time.process_time()
    judge.score(texts)
    return len(texts) / (time.process_time() - start)


def weight_bytes(judge: Any) -> int:
    if judge.card.kind == "fasttext":
        return len(judge.model.model.file)
    if judge.card.kind == "linear":
        return int(judge.idf.nbytes + judge.weights.nbytes)
    return int(judge.embeddings.table.nbytes + sum(array.nbytes for array in judge.perceptron))


def students(device: str, tiny: bool) -> dict[str, tuple[Train, Head, str, tuple[float, ...]]]:
    """By name: how it is trained, its head, the form in which it learns the teacher's scores, and where these are
    cut."""
    from gristmill.classifiers.fasttext.judge import preset, train_fasttext
    from gristmill.classifiers.linear.judge import LinearRecipe, train_linear
    from gristmill.classifiers.pooled.training import PooledRecipe, train_pooled

    dclm = replace(preset("dclm"), threads=1 if tiny else 8)
    dclm = replace(dclm, buckets=1000, dimensions=10) if tiny else dclm
    tuned = replace(dclm, epochs=10, learning_rate=0.5)

    def fasttext(recipe: Any, head: Head) -> Train:
        return lambda lesson: train_fasttext(lesson, head, recipe)

    def train_there(lesson: Any, recipe: PooledRecipe) -> Judge:
        try:
            return train_pooled(lesson, VALUE, recipe, device)
        except RuntimeError as error:
            if device == "cpu":
                raise
            say("not trained on the GPU, now on the CPU", error=f"{error}"[:300])
            return train_pooled(lesson, VALUE, recipe)

    def pooled(**settings: Any) -> tuple[Train, Head, str, tuple[float, ...]]:
        recipe = PooledRecipe(**settings)
        recipe = replace(recipe, bits=10, epochs=1) if tiny else recipe
        return (lambda lesson: train_there(lesson, recipe)), VALUE, "value", FIFTHS

    points = {
        "pooled 64": pooled(),
        "fasttext dclm, halves": (fasttext(dclm, BINARY), BINARY, "hard", HALVES),
        "fasttext 10 epochs at 0.5, fifths": (fasttext(tuned, CLASSES), CLASSES, "hard", FIFTHS),
        "pooled 64, first 2,000 bytes": pooled(most_bytes=2000),
        "pooled 16": pooled(width=16, hidden=32),
        "linear, fifths": (lambda lesson: train_linear(lesson, CLASSES, LinearRecipe()), CLASSES, "hard", FIFTHS),
        "pooled 64, float32": pooled(precision="float32"),
        "fasttext 10 epochs at 0.5, halves": (fasttext(tuned, BINARY), BINARY, "hard", HALVES),
        "pooled 32": pooled(width=32),
        "pooled 128": pooled(width=128, hidden=128),
        "pooled 32, 5 epochs": pooled(width=32, epochs=5),
        "pooled 32, 20 epochs": pooled(width=32, epochs=20),
        "pooled 64, 2**20 rows": pooled(bits=20),
        "pooled 32, rate 0.001": pooled(width=32, rate=0.001),
    }  # by worth: a run may be cut short
    return points


def compressions(layers: int, tiny: bool) -> dict[str, tuple[str, dict[str, Any] | None, str | None]]:
    """By name: the point that is compressed, settings (none: as it is), and the precision on the CPU."""
    whole, half = "teacher", {"layers": max(2, layers // 2), "weights": "float32"}
    distilled = "neural, half the layers, distilled"
    return {
        "neural, float32": (whole, None, "float32"),
        "neural, int8 by rounding alone": (whole, None, "int8"),
        "neural, int8": (whole, {"weights": "int8"}, None),
        "neural, int4": (whole, {"weights": "int4"}, None),
        "neural, 2:4": (whole, {"weights": "float32", "sparse": True}, None),
        "neural, 2:4, int8": (whole, {"weights": "int8", "sparse": True}, None),
        "neural, half the layers by loss": (whole, {**half, "epochs": 0.0}, None),
        distilled: (whole, {**half, "epochs": 1.0 if tiny else 3.0}, None),
        "neural, half the layers, distilled, int8": (distilled, {"weights": "int8"}, None),
    }


def run(args: argparse.Namespace) -> None:
    import torch

    where = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    names = ("torch", "numba", "numpy", "pyarrow", "floret", "scikit-learn")
    say("machine", device=where, processor=processor(), versions={name: version(name) for name in names})
    curve = Curve(args)
    wanted = [part for part in args.only.split(";") if part]

    def chosen(name: str) -> bool:
        return not wanted or any(name.startswith(part) for part in wanted)

    kept = args.scores is not None and args.scores.is_file()
    if args.judge is not None and args.judge.is_dir():
        from gristmill.classifiers.judge import load_judge

        curve.judges["teacher"] = load_judge(args.judge)
    elif not kept:
        curve.judges["teacher"] = curve.teach()
        if args.judge is not None:
            curve.judges["teacher"].save(args.judge)
    if teacher := curve.judges.get("teacher"):
        points = compressions(teacher.network.encoder.shape.layers, args.tiny)
        for name, (of, settings, precision) in points.items():
            if chosen(name):
                attempt(name, lambda n=name, o=of, s=settings, p=precision: curve.compressed(n, o, s, p))
    learned = {name: how for name, how in students(args.device, args.tiny).items() if chosen(name)}
    if not learned:
        return
    marks = pq.read_table(args.scores)["score"].to_numpy() if kept else curve.marks(curve.judges["teacher"])
    if args.scores is not None and not kept:
        pq.write_table(pa.table({"score": marks}), args.scores)
    for name, (train, head, form, parts) in learned.items():
        attempt(name, lambda n=name, t=train, h=head, f=form, p=parts: curve.point(n, t, h, f, p, marks))


def attempt(name: str, point: Callable[[], None]) -> None:
    """A point that fails says why, and the others go on."""
    try:
        point()
    except Exception as error:
        say(name, error=f"{type(error).__name__}: {error}"[:500])


def say(what: str, **facts: Any) -> None:
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in facts.items()}
    print(json.dumps({"what": what, **rounded}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("folder", type=Path)
    making.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--device", default="cpu")
    running.add_argument("--scores", type=Path, help="a file that the teacher's scores are kept in, or read from")
    running.add_argument("--only", default="", help="beginnings of names of points, separated by ;")
    running.add_argument("--judge", type=Path, help="a folder that the teacher is kept in, or read from")
    running.add_argument("--small", action="store_true", help="a teacher that a CPU can train")
    running.add_argument(
        "--neural-texts", type=int, default=600, help="texts on which compressed teachers are compared"
    )
    running.add_argument("--compression-texts", type=int, help="texts by which to compress and distil; default: all")
    running.add_argument("--tiny", action="store_true", help="a rehearsal: 300 passages, everything small")
    args = parser.parse_args()
    made: Callable[[], None] = (lambda: make(args.folder, args.data)) if args.command == "make" else (lambda: run(args))
    made()


if __name__ == "__main__":
    main()
