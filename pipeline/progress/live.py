"""The live view of a run as lines of text: bars of legs and stages, speed, drops by reason, memory, time left.

A function of the facts of a run and the size of the terminal. No line is wider than that, and there are no more lines
than fit. Names and reasons may hold anything; what would steer a terminal is shown as an escape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gristmill.pipeline.formatting import as_bytes, as_number, as_seconds, plain
from gristmill.pipeline.progress.facts import ProgressFacts
from gristmill.pipeline.store.run_records import NodeProgress

WIDEST, NARROWEST = 110, 30
LONGEST_NAME = 24
REASONS = 5
AROUND = 10  # lines beside those of legs and stages
BAR, HALF, REST, ASCII_BAR, ASCII_REST = "━", "╸", "─", "#", "-"


def view(facts: ProgressFacts, now: float, width: int, height: int, ascii_only: bool = False) -> Text:
    """All lines, `now` being the time of day in seconds."""
    width = max(NARROWEST, min(width, WIDEST) - 1)  # some terminals wrap a line that ends in their last column
    lines = [headline(facts, now, width)]
    lines += bars(facts, now, width, max(3, height - AROUND), ascii_only)
    if height > len(lines) + AROUND:
        lines.append(Text())
    lines += [Text(line) for line in (speed(facts, width), workers(facts, width)) if line]
    lines += drops(facts, width, max(0, min(REASONS, height - len(lines) - 3)))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines[: max(1, height - 1)])


def headline(facts: ProgressFacts, now: float, width: int) -> Text:
    elapsed = elapsed_in_words(now - facts["started"])
    left = facts["seconds_left"]
    after = f"  {elapsed}" + ("" if left is None else f", {in_words(left)} left")
    return Text.assemble((cut(plain(facts["name"]), width - cell_len(after)), "bold"), after)


def elapsed_in_words(seconds: float) -> str:
    """In whole seconds, for tenths would only flicker."""
    return f"{max(0, round(seconds))} s" if seconds < 99.5 else as_seconds(seconds)


def in_words(seconds: float) -> str:
    """Time left, as fine as it is known."""
    if seconds < 5:
        return "a few seconds"
    if seconds < 100:
        return f"about {5 * round(seconds / 5)} s"
    if seconds < 600:
        return f"about {seconds / 60:.1f} min"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 100 else f"about {minutes // 60} h {minutes % 60:02d} min"


def bars(facts: ProgressFacts, now: float, width: int, most: int, ascii_only: bool) -> list[Text]:
    """A line for each leg and global stage; of more than fit, those around the ones at work."""
    nodes, hidden = around(facts["nodes"], most)
    names = [plain(node["name"]) for node in nodes]
    doing = [doing_of(node) for node in nodes]
    times = [time_of(node, now) for node in nodes]
    of_name = min(LONGEST_NAME, width // 3, max(map(cell_len, names), default=0))
    of_doing, of_time = max(map(cell_len, doing), default=0), max(map(cell_len, times), default=0)
    of_bar = max(0, min(40, width - of_name - of_doing - of_time - 6))
    lines = []
    for node, name, what, took in zip(nodes, names, doing, times, strict=True):
        state = node["state"]
        style = {"running": "bold cyan", "done": "green"}.get(state, "dim")
        bar = bar_of(node, of_bar, ascii_only) if of_bar > 3 else ""
        line = Text.assemble((fit(name, of_name), style if state == "running" else "dim" if state != "done" else ""))
        line.append("  ").append(bar, style).append("  ").append(
            what.rjust(of_doing), "" if state == "running" else "dim"
        )
        line.append("  ").append(took.rjust(of_time), "dim")
        lines.append(line)
    before, after = hidden
    if before:
        lines.insert(0, Text(f"{before} done before", "dim"))
    if after:
        lines.append(Text(f"{after} to come", "dim"))
    return lines


def around(nodes: Sequence[NodeProgress], most: int) -> tuple[list[NodeProgress], tuple[int, int]]:
    """As many nodes as fit, with those at work among them, and how many stand before and after."""
    if len(nodes) <= most:
        return list(nodes), (0, 0)
    at_work = next((place for place, node in enumerate(nodes) if node["state"] != "done"), len(nodes))
    first = max(0, min(at_work - most // 3, len(nodes) - most))
    return list(nodes[first : first + most]), (first, len(nodes) - first - most)


def doing_of(node: NodeProgress) -> str:
    """`34 of 80 parts`, or the round of a global stage and its tasks."""
    if node["state"] == "waiting":
        return ""
    if node["state"] == "done":
        return f"{as_number(node['parts'] or 0)} parts"
    if node["kind"] == "leg":
        done, what = (node["decided"], "rules") if node["doing"] == "rules" else (node["done"], "parts")
        return f"{as_number(done)} of {as_number(node['parts'] or 0)} {what}"
    if not node["round_tasks"]:
        return "begins"
    return f"round {node['round']}, {as_number(node['round_done'])} of {as_number(node['round_tasks'])}"


def time_of(node: NodeProgress, now: float) -> str:
    if node["began"] is None:
        return ""
    return elapsed_in_words((node["ended"] or now) - node["began"])


def bar_of(node: NodeProgress, width: int, ascii_only: bool) -> str:
    if node["state"] == "waiting":
        return " " * width
    share = 1.0 if node["state"] == "done" else min(1.0, max(0.0, node["share"]))
    halves = int(share * width * 2)
    full, rest = (ASCII_BAR, ASCII_REST) if ascii_only else (BAR, REST)
    bar = full * (halves // 2) + (HALF if halves % 2 and not ascii_only else "")
    return bar + rest * (width - len(bar))


def speed(facts: ProgressFacts, width: int) -> str:
    read = sum(
        count["kept"]
        for node in facts["nodes"]
        if node["source"]
        for count in facts["stages"].get(node["source"], {}).values()
    )
    recently = facts["recently"]
    seconds = recently["seconds"]
    line = f"{as_number(read)} documents read"
    if seconds >= 1 and recently["documents"]:
        line += f"; at work {as_number(recently['documents'] / seconds)}/s, {as_bytes(recently['bytes'] / seconds)}/s"
    return cut(line, width)


def workers(facts: ProgressFacts, width: int) -> str:
    if not facts["workers"]:
        return "workers start; kernels that this machine does not have are compiled, once"[:width]
    memory = facts["memory"]
    number = memory["workers"] if memory else facts["workers"]
    line = f"{as_number(number)} worker{'s' if number != 1 else ''}"
    if memory and memory["largest"]:
        of = f" of {as_bytes(memory['limit'])}" if memory["limit"] else ""
        line += f", memory {as_bytes(memory['largest'])}{of}" + (" (the largest)" if number > 1 else "")
    for number, what in ((facts["deaths"], "died"), (len(facts["alarms"]), "alarms")):
        line += f", {as_number(number)} {what}" if number else ""
    dashboard = facts["dashboard"]
    return cut(line + (f", {plain(dashboard)}" if dashboard and cell_len(line + dashboard) + 2 <= width else ""), width)


def drops(facts: ProgressFacts, width: int, most: int) -> list[Text]:
    """What was dropped so far, the most frequent reasons first."""
    counts: Counter[str] = Counter()
    for stage, by_source in facts["stages"].items():
        for count in by_source.values():
            for reason, number in count["dropped"].items():
                counts[f"{stage}: {reason}"] += number
            if count["quarantined"]:
                counts[f"{stage}: quarantined"] += count["quarantined"]
    if not counts or not most:
        return []
    wide = len(as_number(counts.total()))
    rows = [(as_number(number), reason) for reason, number in counts.most_common(most)]
    more = len(counts) - len(rows)
    head = f"{as_number(counts.total())} dropped" + (
        f", the rest for {more} other reason{'s' * (more > 1)}" if more else ""
    )
    return [
        Text(cut(head, width)),
        *(Text(f"{number.rjust(wide)}  {cut(plain(reason), width - wide - 2)}", "dim") for number, reason in rows),
    ]


def cut(text: str, width: int) -> str:
    """At most so many cells wide."""
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)).rstrip() + "…" * (width > 0)


def fit(text: str, width: int) -> str:
    """Exactly so many cells wide."""
    return set_cell_size(cut(text, width), width)
