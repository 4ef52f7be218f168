"""The drawings of the design pages: `python docs/site/drawings.py` writes docs/pictures/design/*.svg.

A drawing is a list of shapes on a grid of pixels, 560 wide, so that its words can be read on a phone. Colours follow the
reader's light or dark scheme; text is text. tests/docs/test_drawings.py holds the files against this module and sees to
it that words fit in their boxes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "pictures" / "design"
WIDE = 560
SIZE, SMALL, LINE = 15, 13, 19  # of letters, and from one line to the next
LETTER = 0.56  # of its size, how wide a letter is on average; fonts differ
PADDING = 8
STYLE = """<style>
text{font:15px system-ui,sans-serif;fill:#1f2328}.small{font-size:13px;fill:#4d555e}.bold{font-weight:600}
.box{fill:#fff;stroke:#6e7781}.main{fill:#d5efe9;stroke:#00695c}.file{fill:#f1f3f5;stroke:#6e7781;stroke-dasharray:4 3}
.bad{fill:#fbe3dd;stroke:#b3401f}.area{fill:none;stroke:#afb8c1}.arrow{fill:none;stroke:#4d555e;stroke-width:1.5}
.tip{fill:#4d555e}.bar{fill:#5fb3a5;stroke:none}.rest{fill:#d0d7de;stroke:none}.line{stroke:#b3401f;stroke-width:2}
@media (prefers-color-scheme:dark){text{fill:#e6e9ee}.small{fill:#b1bac4}.box{fill:#22262e;stroke:#8b949e}
.main{fill:#12433c;stroke:#5fd0c4}.file{fill:#2b3038;stroke:#8b949e}.bad{fill:#4a241a;stroke:#ff9d8f}
.area{stroke:#57606a}.arrow{stroke:#b1bac4}.tip{fill:#b1bac4}.bar{fill:#2f8f80}.rest{fill:#444c56}.line{stroke:#ff9d8f}}
</style>"""


@dataclass(frozen=True)
class Box:
    """Words in a frame. The first line is in bold if there are more; a `|` begins a new line."""

    x: float
    y: float
    wide: float
    high: float
    words: str = ""
    kind: str = "box"  # box, main (what the page is about), file, bad, area (others lie in it), bar, rest

    def svg(self) -> str:
        round_ = 0 if self.kind in ("bar", "rest") else 6
        frame = f'<rect class="{self.kind}" x="{self.x:g}" y="{self.y:g}" width="{self.wide:g}" height="{self.high:g}" rx="{round_}"/>'
        lines = self.words.split("|") if self.words else []
        if self.kind == "area":
            return frame + "".join(
                Words(self.x + PADDING, self.y + SIZE + 5 + LINE * at, line, small=True).svg()
                for at, line in enumerate(lines)
            )
        top = self.y + self.high / 2 - LINE * len(lines) / 2 + LINE * 0.73
        return frame + "".join(
            Words(
                self.x + self.wide / 2, top + LINE * at, line, "middle", small=at > 0, bold=at == 0 and len(lines) > 1
            ).svg()
            for at, line in enumerate(lines)
        )

    def too_wide(self) -> list[str]:
        room = self.wide - PADDING
        sizes = [SMALL if at or self.kind == "area" else SIZE for at in range(len(self.words.split("|")))]
        return [
            line
            for line, size in zip(self.words.split("|"), sizes, strict=True)
            if len(line) * size * LETTER > room and self.words
        ]


@dataclass(frozen=True)
class Words:
    x: float
    y: float
    words: str
    anchor: str = "start"
    small: bool = False
    bold: bool = False

    def svg(self) -> str:
        classes = " ".join(name for name, on in (("small", self.small), ("bold", self.bold)) if on)
        return (
            f'<text x="{self.x:g}" y="{self.y:g}"'
            + (f' class="{classes}"' if classes else "")
            + (f' text-anchor="{self.anchor}"' if self.anchor != "start" else "")
            + f">{escape(self.words)}</text>"
        )

    def too_wide(self) -> list[str]:
        long = len(self.words) * (SMALL if self.small else SIZE) * LETTER
        left = self.x - {"start": 0, "middle": long / 2, "end": long}[self.anchor]
        return [self.words] if left < 0 or left + long > WIDE else []


@dataclass(frozen=True)
class Arrow:
    """A line through points, with a tip at its end."""

    points: tuple[tuple[float, float], ...]
    tip: bool = True
    kind: str = "arrow"

    def svg(self) -> str:
        (x0, y0), (x, y) = self.points[-2:]
        length = max(((x - x0) ** 2 + (y - y0) ** 2) ** 0.5, 1)
        dx, dy = (x - x0) / length, (y - y0) / length
        line = " ".join(
            f"{a:g},{b:g}" for a, b in (*self.points[:-1], (x - 6 * dx, y - 6 * dy) if self.tip else (x, y))
        )
        corners = (
            (x, y),
            (x - 9 * dx - 4.5 * dy, y - 9 * dy + 4.5 * dx),
            (x - 9 * dx + 4.5 * dy, y - 9 * dy - 4.5 * dx),
        )
        tip = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
        return f'<polyline class="{self.kind}" points="{line}"/>' + (
            f'<polygon class="tip" points="{tip}"/>' if self.tip else ""
        )

    def too_wide(self) -> list[str]:
        return []


Shape = Box | Words | Arrow


@dataclass(frozen=True)
class Drawing:
    title: str
    high: float
    shapes: tuple[Shape, ...]

    def svg(self) -> str:
        body = "\n".join(shape.svg() for shape in self.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {self.high:g}" width="{WIDE}"'
            f' height="{self.high:g}" role="img" aria-label="{escape(self.title)}">\n'
            f"<title>{escape(self.title)}</title>\n{STYLE}\n{body}\n</svg>\n"
        )


def arrow(*points: tuple[float, float], tip: bool = True) -> Arrow:
    return Arrow(points, tip)


def note(x: float, y: float, words: str, anchor: str = "start") -> Words:
    return Words(x, y, words, anchor, small=True)


def chain(x: float, y: float, wide: float, high: float, gap: float, words: Iterable[str]) -> list[Shape]:
    """Boxes in a row, with arrows between them."""
    shapes: list[Shape] = []
    for at, each in enumerate(words):
        left = x + at * (wide + gap)
        shapes.append(Box(left, y, wide, high, each))
        if at:
            shapes.append(arrow((left - gap, y + high / 2), (left, y + high / 2)))
    return shapes


def mill() -> Drawing:
    return Drawing(
        "From raw crawl dumps to a verdict",
        300,
        (
            Box(10, 34, 120, 50, "raw crawl|WARC, PDF, ...", "file"),
            *chain(160, 34, 110, 50, 22, ("extract|pages to text", "filter|by rules", "dedup|exact and near")),
            arrow((130, 59), (160, 59)),
            arrow((479, 84), (479, 125)),
            Box(424, 125, 110, 50, "judge|scores"),
            *(Box(x, 125, 110, 50, words) for x, words in ((292, "mix|weights"), (160, "order|curriculum"))),
            Box(10, 125, 120, 50, "pack|training rows"),
            arrow((424, 150), (402, 150)),
            arrow((292, 150), (270, 150)),
            arrow((160, 150), (130, 150)),
            arrow((70, 175), (70, 220)),
            Box(10, 220, 120, 50, "token shards|and their card", "file"),
            arrow((130, 245), (160, 245)),
            Box(160, 220, 177, 50, "ablation|with it and without", "main"),
            arrow((337, 245), (367, 245)),
            Box(367, 220, 177, 50, "verdict|adopt, reject, or open", "main"),
            arrow((544, 245), (552, 245), (552, 12), (215, 12), (215, 34)),
            note(348, 28, "another recipe", "middle"),
        ),
    )


def documents() -> Drawing:
    return Drawing(
        "in + made = kept + dropped + quarantined",
        230,
        (
            Box(10, 85, 110, 60, "documents|in"),
            arrow((120, 115), (185, 115)),
            Box(185, 75, 150, 80, "a stage|adds some: made", "main"),
            arrow((335, 115), (400, 115)),
            Box(400, 85, 150, 60, "next stage|kept"),
            arrow((335, 92), (365, 92), (365, 40), (400, 40)),
            Box(400, 15, 150, 50, "rejects|with every reason", "file"),
            arrow((335, 138), (365, 138), (365, 190), (400, 190)),
            Box(400, 165, 150, 50, "quarantine|with the error", "bad"),
            note(10, 200, "checked for every part:"),
            Words(10, 220, "in + made = kept + dropped + quarantined", bold=True),
        ),
    )


def stages() -> Drawing:
    return Drawing(
        "A segment measures first and decides afterwards",
        330,
        (
            Box(10, 10, 540, 120, "a segment: one batch of 32 MB stays in cache", "area"),
            *chain(24, 50, 156, 60, 22, ("Rewrite|extract, repair", "Annotate|text_signals", "Annotate|language")),
            arrow((458, 110), (458, 160)),
            Box(380, 160, 156, 60, "signals|stored, of all", "file"),
            arrow((102, 110), (102, 160)),
            Box(24, 160, 156, 60, "documents|stored, with text", "file"),
            arrow((458, 220), (458, 250)),
            Box(202, 250, 334, 60, "Rule: limits on signals|a new threshold runs this alone", "main"),
            arrow((202, 280), (180, 280)),
            Box(24, 250, 156, 60, "verdicts|keep, or reasons", "file"),
            note(202, 185, "dropped documents"),
            note(202, 203, "are measured too"),
        ),
    )


def global_stages() -> Drawing:
    shapes: list[Shape] = [
        Words(85, 20, "parts", "middle", bold=True),
        Words(285, 20, "buckets", "middle", bold=True),
        Words(480, 20, "parts", "middle", bold=True),
    ]
    for at, name in enumerate("ABC"):
        y = 35 + 75 * at
        shapes += [
            Box(10, y, 150, 50, f"part {name}|map: rows by hash"),
            Box(405, y, 145, 50, f"part {name}|verdicts", "file"),
        ]
        shapes.append(Box(215, y, 140, 50, f"bucket {at}|reduce", "main"))
        shapes += [arrow((160, y + 25), (215, 35 + 75 * to + 25)) for to in range(3)]
        shapes += [arrow((355, y + 25), (405, 35 + 75 * to + 25)) for to in range(3)]
    shapes += [
        note(10, 265, "one file a task, cut by bucket"),
        note(285, 285, "one task reads its bucket of every file", "middle"),
        note(550, 265, "each part gets its own rows", "end"),
    ]
    return Drawing("map, reduce, join", 300, tuple(shapes))


def shards() -> Drawing:
    shapes: list[Shape] = [
        note(10, 18, "places: uniform over training, from order, else a hash"),
        arrow((10, 62), (550, 62)),
    ]
    for at, (x, wide) in enumerate(((14, 52), (72, 90), (168, 60), (234, 70), (310, 100), (416, 46), (468, 76))):
        shapes.append(Box(x, 30, wide, 24, str(at + 1)))
    for at, x in enumerate((10, 286)):
        shapes += [Box(x, 76, 264, 36, f"window {at}: one shard", "main"), arrow((x + 132, 112), (x + 132, 140))]
    rows = (((90, "2"), (70, "4"), (60, "3")), ((52, "1"),))
    for left, window in ((10, rows), (286, (((100, "5"), (76, "7"), (46, "6")),))):
        for row, pieces in enumerate(window):
            x, y = left, 145 + 42 * row
            for wide, name in pieces:
                shapes.append(Box(x, y, wide, 32, name))
                x += wide
            shapes.append(Box(x, y, left + 264 - x, 32, "", "rest"))
    shapes += [
        note(10, 242, "rows of L tokens; grey is padding"),
        note(550, 205, "seq_lens 100, 76, 46", "end"),
        note(550, 224, "doc_uids of 5, 7, 6", "end"),
        note(550, 243, "no bound is inferred from eos", "end"),
    ]
    return Drawing("Documents by place, windows, rows", 256, tuple(shapes))


def engine() -> Drawing:
    return Drawing(
        "A task is done once",
        330,
        (
            Box(180, 10, 200, 56, "driver|reads no documents", "main"),
            arrow((280, 66), (280, 104)),
            Box(180, 104, 200, 56, "fingerprint known?|its files whole?"),
            arrow((180, 132), (130, 132)),
            note(155, 124, "yes", "middle"),
            Box(10, 104, 120, 56, "done|nothing to do"),
            arrow((280, 160), (280, 204)),
            note(290, 186, "no"),
            Box(140, 204, 280, 56, "workers|by Dask, a bounded number in flight"),
            arrow((420, 232), (480, 232), (480, 160)),
            Box(410, 104, 140, 56, "journal|files, checksums", "file"),
            arrow((410, 132), (380, 132)),
            arrow((210, 260), (210, 292), (250, 292)),
            Box(250, 272, 170, 46, "files of the run", "file"),
        ),
    )


def inputs() -> Drawing:
    return Drawing(
        "Files become parts",
        300,
        (
            Box(10, 10, 170, 130, "a source's folder", "area"),
            *(
                Box(24, y, 142, 22, words, "file")
                for y, words in ((42, "a.jsonl, 2 MB"), (70, "b.jsonl, 1 MB"), (98, "c.jsonl, 3 MB"))
            ),
            Box(10, 160, 170, 60, "d.warc.gz|4 GB", "file"),
            Box(10, 240, 170, 46, "notes.docx", "bad"),
            arrow((180, 75), (240, 75)),
            Box(240, 45, 150, 60, "hash of contents|kept by stamp"),
            arrow((390, 75), (420, 75)),
            Box(420, 45, 130, 60, "one part|for small files", "main"),
            arrow((180, 190), (420, 160)),
            arrow((180, 190), (420, 196)),
            arrow((180, 190), (420, 232)),
            *(
                Box(420, y, 130, 28, words, "main")
                for y, words in ((146, "part, span 0"), (182, "part, span 1"), (218, "part, span 2"))
            ),
            arrow((180, 266), (240, 266)),
            note(246, 262, "no source takes this ending:"),
            note(246, 280, "named, and an alarm if many"),
        ),
    )


def workers() -> Drawing:
    return Drawing(
        "A death is narrowed down to a document",
        290,
        (
            Box(10, 10, 170, 60, "fork server|Dask, stages, prepare", "main"),
            *(
                Box(x, 10, 100, 60, words, kind)
                for x, words, kind in ((240, "worker", "box"), (345, "worker", "box"), (450, "worker|dies", "bad"))
            ),
            arrow((180, 40), (240, 40)),
            note(210, 32, "fork", "middle"),
            arrow((500, 70), (500, 110)),
            Box(380, 110, 170, 60, "its breadcrumb|task, batch, stage", "file"),
            arrow((380, 140), (330, 140)),
            Box(160, 110, 170, 60, "a child|same batch, row by row"),
            arrow((160, 140), (120, 140), (120, 215), (160, 215)),
            note(10, 182, "dies twice"),
            note(10, 200, "on one row"),
            Box(160, 190, 170, 50, "quarantine|that document", "bad"),
            arrow((245, 170), (245, 180), (455, 180), (455, 190)),
            Box(380, 190, 170, 50, "the part is done|all other rows"),
            note(10, 275, "workers watch the driver: kill -9 of a run leaves none of them"),
        ),
    )


def results() -> Drawing:
    columns = (
        (10, "to read", (("report.html", "main"), ("run.json", "main"), ("summary/", "box"))),
        (195, "results", (("write/", "main"), ("shards/LENGTH/", "main"), ("rejects/", "box"))),
        (380, "for the next run", (("partitions/", "file"), ("shuffle/", "file"), ("journal/", "file"))),
    )
    shapes: list[Shape] = []
    for x, title, names in columns:
        shapes.append(Box(x, 10, 170, 170, title, "area"))
        shapes += [Box(x + 14, 44 + 43 * at, 142, 34, name, kind) for at, (name, kind) in enumerate(names)]
    shapes += [
        note(380, 200, "what stays: by keep"),
        note(195, 200, "kept when a stage leaves"),
        note(10, 200, "one file, offline"),
    ]
    return Drawing("The folder of a run", 212, tuple(shapes))


def looking() -> Drawing:
    heights = (12, 26, 48, 70, 82, 76, 58, 40, 26, 14, 8)
    bars = [
        Box(284 + 22 * at, 210 - high, 18, high, "", "rest" if at < 3 else "bar") for at, high in enumerate(heights)
    ]
    return Drawing(
        "A slider moves a limit over counts that are stored",
        270,
        (
            Box(10, 10, 160, 60, "Rule.limits|min_words: 50"),
            Box(196, 10, 160, 60, "stored signals|words", "file"),
            Box(390, 10, 160, 60, "survey tasks|255 bins a limit", "main"),
            arrow((356, 40), (390, 40)),
            arrow((90, 70), (90, 92), (470, 92), (470, 70)),
            Box(10, 116, 230, 110, "report.html|exact for one slider,|estimated for several,|with standard error"),
            arrow((550, 40), (556, 40), (556, 170), (530, 170)),
            *bars,
            Arrow(((349, 114), (349, 216)), False, "line"),
            note(349, 250, "min_words", "middle"),
            note(284, 232, "dropped"),
            note(524, 232, "kept", "end"),
        ),
    )


def extraction() -> Drawing:
    return Drawing(
        "From bytes to main text",
        230,
        (
            Box(10, 10, 150, 60, "bytes|and HTTP charset", "file"),
            arrow((160, 40), (196, 40)),
            Box(196, 10, 168, 60, "segment|one pass, linear"),
            arrow((364, 40), (400, 40)),
            Box(400, 10, 150, 60, "flat tree|of blocks"),
            arrow((475, 70), (475, 120)),
            Box(400, 120, 150, 60, "features|of each block"),
            arrow((400, 150), (364, 150)),
            Box(196, 120, 168, 60, "two small forests|main text or not", "main"),
            arrow((196, 150), (160, 150)),
            Box(10, 120, 150, 60, "text|plain or Markdown", "file"),
            note(280, 210, "the choice with the highest expected word-F1", "middle"),
        ),
    )


def training() -> Drawing:
    shapes: list[Shape] = [
        Box(10, 70, 110, 60, "plan|sets, seeds"),
        Box(170, 10, 170, 80, "control", "area"),
        Box(170, 110, 170, 80, "an arm", "area"),
        Box(400, 70, 150, 60, "pairs by seed|and by cluster", "main"),
        Box(400, 170, 150, 60, "a verdict|by intervals", "main"),
    ]
    for y in (38, 138):
        shapes += [Box(184 + 48 * at, y, 42, 40, f"s{at}") for at in range(3)]
        shapes += [arrow((120, 100), (170, y + 12)), arrow((340, y + 12), (400, 100))]
    shapes += [
        arrow((475, 130), (475, 170)),
        note(10, 225, "same weights, tokens, order and schedule"),
        note(10, 243, "in the control and in every arm"),
    ]
    return Drawing("Control and arms, seed by seed", 256, tuple(shapes))


def kernels() -> Drawing:
    return Drawing(
        "A kernel and its reference",
        250,
        (
            Box(10, 20, 150, 70, "Arrow column|data and offsets,|not copied", "file"),
            arrow((160, 55), (206, 55)),
            Box(206, 20, 150, 70, "kernel|numba or Triton,|without the GIL", "main"),
            arrow((356, 55), (400, 55)),
            Box(400, 20, 150, 70, "array|allocated before", "file"),
            arrow((85, 90), (85, 165), (206, 165)),
            Box(206, 130, 150, 70, "reference|plain Python,|same file"),
            arrow((356, 165), (475, 165), (475, 90)),
            note(486, 132, "equal"),
            note(282, 230, "cached under a hash of all sources, numba and Python", "middle"),
        ),
    )


def dependencies() -> Drawing:
    extras = ("train", "gpu", "cluster", "llm", "pdf", "explore", "datatrove", "harness", "sklearn")
    return Drawing(
        "Core and extras",
        250,
        (
            Box(10, 10, 540, 110, "extras: what a recipe asks for, named when it is missing", "area"),
            *(Box(24 + 105 * (at % 5), 40 + 38 * (at // 5), 96, 30, name) for at, name in enumerate(extras)),
            Box(10, 135, 540, 54, "core install|every CPU stage, without torch and scipy", "main"),
            Box(10, 204, 540, 36, "Linux, Python 3.11 or newer"),
        ),
    )


ALL = (
    mill, documents, stages, global_stages, shards, engine, inputs, workers, results, looking, extraction, training,
    kernels, dependencies,
)  # fmt: skip


def drawings() -> dict[str, Drawing]:
    return {each.__name__: each() for each in ALL}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, drawing in drawings().items():
        (FOLDER / f"{name}.svg").write_text(drawing.svg(), encoding="utf-8")
        for words in [each for shape in drawing.shapes for each in shape.too_wide()]:
            print(f"{name}: too wide: {words}")
