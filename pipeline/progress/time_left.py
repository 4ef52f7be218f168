"""How long a run will still take: a function of its plan, of what happened so far and when, and of what stages usually
take (`usual`), or took in an earlier run.

Of a leg at work, seconds for a byte are those of its finished tasks. What has not begun is foreseen from the documents
that will come to it, at what such stages usually take, times the speed of this machine: how long stages took here
beside what they usually take. The work left is divided among the workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gristmill.pipeline.progress.events import Event, NodeShape, StageShape
from gristmill.pipeline.progress.usual import END, END_A_PART, HOME_TASK, START, TASK, Known, Usual, usual_of

LATE = 6.0  # seconds after which workers that have not come do so at a time that nobody knows
HOMES = 64  # tasks of a round that goes home to documents, at most, of few parts
SLOWEST, FASTEST = 6.0, 0.5  # what a machine may be, beside the one that `usual` was measured on
PAGES = 2.0  # the same of stages whose time for a document differs more by its size
UNSURE_SECONDS = 4.0  # of work: as much has to be seen before a machine's speed counts half
BUSY = 0.95  # share of their time in which workers are at tasks
DECIDE = 1e-6  # seconds for a document and rule
PARTIAL = 0.5  # of a task in flight, done
LAST_ROUND = 0.1  # of a global stage's work for documents: as much is kept back for the round that marks them
REWORKS = ("drop", "mark", "rewrite")  # rounds that leave documents


@dataclass
class Round:
    """The tasks of one kind of a node, or of one round."""

    tasks: int = 0
    size: int = 0
    done: int = 0
    done_size: int = 0
    anew: int = 0
    anew_size: int = 0
    seconds: float = 0.0  # of those that were done anew
    documents: int = 0
    text_bytes: int = 0

    def take(self, event: Event) -> None:
        if event.what == "expected":
            self.tasks += event.tasks
            self.size += event.size
            return
        self.done += event.tasks
        self.done_size += event.size
        self.documents += event.documents
        self.text_bytes += event.text_bytes
        if event.anew:
            self.anew += event.tasks
            self.anew_size += event.size
            self.seconds += event.seconds

    @property
    def share(self) -> float:
        """Done of it, by bytes where tasks have some."""
        return min(1.0, self.done_size / self.size) if self.size else self.done / self.tasks if self.tasks else 0.0

    @property
    def work_left(self) -> float | None:
        """Seconds of workers, at the pace of those that were done; None: none was."""
        if self.done >= self.tasks:
            return 0.0
        if not self.anew:
            return None
        by_task = self.seconds / self.anew * (self.tasks - self.done)
        return by_task if not self.anew_size else self.seconds / self.anew_size * max(0, self.size - self.done_size)


@dataclass(frozen=True)
class Stream:
    """Documents between two nodes: how many, the bytes of their texts, and in how many parts."""

    documents: float = 0.0
    text_bytes: float = 0.0
    parts: float = 0.0

    def times(self, share: float) -> Stream:
        return Stream(self.documents * share, self.text_bytes * share, self.parts)

    def __add__(self, other: Stream) -> Stream:
        return Stream(self.documents + other.documents, self.text_bytes + other.text_bytes, self.parts + other.parts)


@dataclass
class NodeState:
    """What is known of a node by now."""

    shape: NodeShape
    began_at: float | None = None
    ended_at: float | None = None
    parts: int = 0
    rounds: dict[tuple[str, int], Round] = field(default_factory=dict)

    def round(self, kind: str, number: int = 0) -> Round:
        return self.rounds.setdefault((kind, number), Round())

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.rounds.values())

    @property
    def anew(self) -> int:
        return sum(each.anew for each in self.rounds.values())


class TimeLeft:
    """A run as it is seen so far. It has no clock: events and questions say when they are."""

    def __init__(self, nodes: Iterable[NodeShape], known: Known | None = None, workers: int = 1) -> None:
        """`workers`: as many are expected."""
        self.nodes = {shape.name: NodeState(shape) for shape in nodes}
        self.known: Mapping[str, Usual] = known.stages if known else {}
        self.workers = workers
        self.connected: float | None = None

    def take(self, event: Event) -> None:
        if event.what == "connected":
            self.workers, self.connected = max(1, event.workers), event.at
            return
        node = self.nodes[event.node]
        if event.what == "began":
            node.began_at, node.parts = event.at if node.began_at is None else node.began_at, event.tasks
        elif event.what == "ended":
            node.ended_at = event.at
        else:
            node.round(event.kind, event.round).take(event)

    def left(self, now: float) -> float | None:
        """Seconds, `now` seconds after the run began. None: nothing has begun yet, or workers are late: kernels are
        being compiled, or jobs stand in a queue."""
        if all(node.began_at is None for node in self.nodes.values()):
            return None
        if self.connected is None and now > LATE and not all(node.ended for node in self.nodes.values()):
            return None
        streams, speed = self.streams(), self.speed()
        work = wall = 0.0
        for name, node in self.nodes.items():
            if not node.ended:
                work += self.work_left(node, streams, speed)
                wall += self.wall_left(node, streams[name][0], speed, now)
        in_flight = self.in_flight()
        wall += (END + END_A_PART * max((node.parts for node in self.nodes.values()), default=0)) * max(1.0, speed)
        if self.connected is None and work:
            wall += max(0.5, START - now)
        return wall + max(0.0, work - in_flight) / (self.workers * BUSY)

    def shares(self) -> dict[str, float]:
        """By node, how much of its work is done."""
        streams, speed = self.streams(), self.speed()
        found = {}
        for name, node in self.nodes.items():
            left = 0.0 if node.ended or node.began_at is None else self.work_left(node, streams, speed)
            found[name] = 1.0 if node.ended else node.seconds / (node.seconds + left) if node.seconds else 0.0
        return found

    # --- documents ----------------------------------------------------------------------------------------------------

    def streams(self) -> dict[str, tuple[Stream, Stream]]:
        """What comes to each node and what leaves it, as far as it is known, and foreseen beyond."""
        found: dict[str, tuple[Stream, Stream]] = {}
        for name, node in self.nodes.items():
            into = sum((found[feed][1] for feed in node.shape.feeds if feed in found), Stream())
            if node.parts:
                into = Stream(into.documents, into.text_bytes, node.parts)
            out = self.after_global(node, into) if node.shape.is_global else self.after_leg(node, into)
            if node.shape.reads:
                into = Stream(out[0].documents, out[0].text_bytes, into.parts)
            found[name] = into, out[1]
        return found

    def after_leg(self, node: NodeState, into: Stream) -> tuple[Stream, Stream]:
        """What its works leave, and what its rules leave of that."""
        work, rules = node.round("leg"), node.round("decide")
        if work.share:
            worked = Stream(work.documents / work.share, work.text_bytes / work.share, into.parts)
        elif node.shape.reads:
            files = usual_of(node.shape.works[0].stage)
            worked = Stream(work.size / files.bytes_a_document, work.size * files.text, into.parts)
        else:
            worked = into.times(self.kept_by(node.shape.works))
        if rules.share:
            return worked, Stream(rules.documents / rules.share, rules.text_bytes / rules.share, into.parts)
        return worked, worked.times(self.kept_by(node.shape.decides))

    def after_global(self, node: NodeState, into: Stream) -> tuple[Stream, Stream]:
        done = [each for (kind, _), each in node.rounds.items() if kind in REWORKS and each.share]
        if done and node.ended:
            return into, Stream(done[-1].documents, done[-1].text_bytes, into.parts)
        return into, into if node.ended else into.times(self.kept_by(node.shape.works))

    def kept_by(self, stages: Sequence[StageShape]) -> float:
        return math.prod(self.usual(stage).kept for stage in stages)

    # --- work ---------------------------------------------------------------------------------------------------------

    def usual(self, stage: StageShape) -> Usual:
        return self.known.get(stage.name) or usual_of(stage.stage)

    def usual_work(self, node: NodeState, into: Stream) -> float:
        """Seconds of workers that a node usually takes."""
        shape, parts = node.shape, max(1.0, into.parts)
        if shape.is_global:
            of_tasks = self.passes(shape) * min(parts, HOMES) * HOME_TASK
        else:
            of_tasks = parts * (1 + bool(shape.decides)) * TASK
        known = all(self.usual(stage).whole for stage in shape.works)
        seconds = 0.0 if known else of_tasks
        for stage in shape.works:
            usual = self.usual(stage)
            seconds += into.documents * usual.per_document + into.text_bytes / 1e6 * usual.per_megabyte
            seconds += node.round("leg").size / 1e6 * usual.per_megabyte_read if shape.reads else 0.0
        return seconds + into.documents * DECIDE * len(shape.decides)

    def is_known(self, stage: StageShape) -> bool:
        return stage.name in self.known or usual_of(stage.stage) != Usual()

    def passes(self, shape: NodeShape) -> int:
        return max(1, usual_of(shape.works[0].stage).passes)

    def speed(self) -> float:
        """How many times longer than usual stages take here: of all that was worked on anew, as it is known by now."""
        streams = self.streams()
        seen = usual = 0.0
        for name, node in self.nodes.items():
            stages = [*node.shape.works, *node.shape.decides]
            if not node.anew or (node.shape.is_global and not node.ended) or not all(map(self.is_known, stages)):
                continue
            share = 1.0 if node.ended else node.round("leg").share
            done = sum(each.done for each in node.rounds.values())
            usually = self.usual_work(node, streams[name][0]) * share * node.anew / max(1, done)
            most = PAGES if any(usual_of(stage.stage).by_size for stage in stages) else SLOWEST
            seen += min(max(node.seconds, usually / most), usually * most)
            usual += usually
        if not usual:
            return 1.0
        ratio = min(SLOWEST, max(FASTEST, seen / usual))
        return float(ratio ** (seen / (seen + UNSURE_SECONDS)))

    def work_left(self, node: NodeState, streams: Mapping[str, tuple[Stream, Stream]], speed: float) -> float:
        """Seconds of workers."""
        into = streams[node.shape.name][0]
        usual = self.usual_work(node, into) * speed
        if node.shape.is_global:
            return self.global_left(node, into, usual, speed)
        work, rules = node.round("leg"), node.round("decide")
        of_rules = (into.parts * TASK + into.documents * DECIDE * len(node.shape.decides)) * speed
        if not node.shape.decides:
            of_rules = 0.0
        elif rules.tasks:
            left = rules.work_left
            of_rules = of_rules if left is None else left
        if rules.tasks:
            return of_rules
        left = work.work_left if work.tasks else None
        return (max(0.0, usual - of_rules) * (1 - work.share) if left is None else left) + of_rules

    def global_left(self, node: NodeState, into: Stream, usual: float, speed: float) -> float:
        """Of its usual work, what it takes for documents is done as seconds are spent, and what it takes for tasks as
        rounds go by."""
        passes = self.passes(node.shape)
        homes = min(max(1.0, into.parts), HOMES)
        a_pass = 0.0 if self.usual(node.shape.works[0]).whole else homes * HOME_TASK * speed
        wide = max((each.tasks for each in node.rounds.values()), default=0)
        done = sum(each.share for each in node.rounds.values() if each.tasks > wide / 4)
        together = sum(each.seconds for each in node.rounds.values() if each.tasks > 1)
        for_documents = max(0.0, usual - passes * a_pass)
        spent = max(0.0, together - done * a_pass)
        begun_to_end = any(kind in REWORKS for kind, _ in node.rounds)
        left = max(for_documents - spent, 0.0 if begun_to_end else LAST_ROUND * for_documents)
        begun = sum(each.work_left or 0.0 for each in node.rounds.values())
        return max(begun, left + max(0.0, passes - done) * a_pass)

    def wall_left(self, node: NodeState, into: Stream, speed: float, now: float) -> float:
        """Seconds that more workers do not shorten, of a global stage: a round ends before the next begins, and some
        have one task."""
        if not node.shape.is_global or self.usual(node.shape.works[0]).whole:
            return 0.0
        usual = usual_of(node.shape.works[0].stage)
        seconds = usual.wall + usual.wall_per_megabyte * min(into.text_bytes / 1e6, usual.wall_megabytes)
        return max(0.0, seconds * speed - self.alone(node, now))

    def alone(self, node: NodeState, now: float) -> float:
        """Seconds in which a global stage has had less to do than there are workers."""
        if not node.shape.is_global or node.began_at is None:
            return 0.0
        together = sum(each.seconds for each in node.rounds.values() if each.tasks >= self.workers)
        end = now if node.ended_at is None else node.ended_at
        return max(0.0, end - node.began_at - together / self.workers / BUSY)

    def in_flight(self) -> float:
        """Seconds of work that tasks have behind them that are not finished."""
        at_work = [each for node in self.nodes.values() for each in node.rounds.values() if each.anew < each.tasks]
        waiting = sum(each.tasks - each.done for each in at_work)
        anew, seconds = sum(each.anew for each in at_work), sum(each.seconds for each in at_work)
        if not waiting or not anew:
            return 0.0
        return min(self.workers, waiting) * PARTIAL * seconds / anew


def time_left(
    nodes: Iterable[NodeShape], events: Iterable[Event], now: float, known: Known | None = None, workers: int = 1
) -> float | None:
    """Seconds that a run will still take, after these events."""
    run = TimeLeft(nodes, known, workers)
    for event in events:
        run.take(event)
    return run.left(now)
