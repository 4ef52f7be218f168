"""What a run reports about its input files: those that no source reads, that are read twice, that vanished since the
last run, that changed while it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gristmill.pipeline.formatting import as_bytes, as_money, one_line
from gristmill.pipeline.inputs.files import by_ending, changed_since, endings_in_words
from gristmill.pipeline.inputs.portion import Inputs
from gristmill.pipeline.store.counts import LONGEST_PATH, NAMED, few, files, shortened
from gristmill.pipeline.store.run_records import FetchRecord, InputRecord

Facts = Mapping[str, InputRecord]  # `inputs` of run.json: by source


def facts_of(inputs: Mapping[str, Inputs], gone: Mapping[str, Sequence[str]]) -> dict[str, InputRecord]:
    """The entry of each source in run.json; `gone` has the paths that the last run read and this one cannot find."""
    facts: dict[str, InputRecord] = {}
    for name, taken in inputs.items():
        facts[name] = {"files": len(taken.files), "bytes": taken.bytes}
        if taken.passed_over:
            size = sum(taken.passed_over.values())
            facts[name] |= {
                "passed_over": {"files": len(taken.passed_over), "bytes": size, "endings": by_ending(taken.passed_over)}
            }
        if taken.fetch is not None:
            facts[name] |= {"fetch": taken.fetch}
        if paths := gone.get(name):
            facts[name] |= {
                "gone": {"files": len(paths), "named": [shortened(path, LONGEST_PATH) for path in paths[:NAMED]]}
            }
    return facts


def fetches_of(facts: Facts) -> list[str]:
    """One line for each source that is fetched: what that takes."""
    return [fetch_in_words(name, entry["fetch"]) for name, entry in facts.items() if "fetch" in entry]


def fetch_in_words(name: str, fetch: FetchRecord) -> str:
    """crawl: 50 files at https://...: at most 50 requests and 4,266,388 bytes (4.3 MB) to fetch, 0.10 USD"""
    gap = f", over gaps of {fetch['gap']:,} bytes" if fetch["gap"] is not None else ""
    cost = fetch["cost"]
    money = f", {as_money(cost['amount'], cost['currency'])}" if cost else ""
    cached = f"; {as_bytes(fetch['cached_bytes'])} more are in the cache" if fetch["cached_bytes"] else ""
    return one_line(
        f"{name}: {files(fetch['files'])} at {fetch['root']}: at most {fetch['requests']:,} requests and "
        f"{fetch['bytes']:,} bytes ({as_bytes(fetch['bytes'])}) to fetch{gap}; {fetch['listing_requests']:,} requests and "
        f"{as_bytes(fetch['listing_bytes'])} went into the list{money}{cached}"
    )


def notes_of(facts: Facts) -> list[str]:
    """One line for each source with files passed over, and one for each with files gone."""
    lines = []
    for name, entry in facts.items():
        if over := entry.get("passed_over"):
            lines.append(f"{name}: {files(over['files'])} passed over: {endings_in_words(over['endings'])}")
        if gone := entry.get("gone"):
            are = "is" if gone["files"] == 1 else "are"
            lines.append(
                f"{name}: {files(gone['files'])} of the last run {are} gone: {few(gone['named'], gone['files'])}"
            )
    return lines


def notes_beside(alarms: Sequence[str], facts: Facts) -> list[str]:
    """The notes that no alarm repeats."""
    return [note for note in notes_of(facts) if not any(alarm.startswith(note) for alarm in alarms)]


def alarms_of_inputs(inputs: Mapping[str, Inputs]) -> list[str]:
    """Alarms that are known before any work is done."""
    return [*mostly_passed_over(inputs), *read_twice(inputs)]


def mostly_passed_over(inputs: Mapping[str, Inputs]) -> list[str]:
    """One for each source in whose folders more is passed over than read, in files or in bytes."""
    alarms = []
    for name, taken in inputs.items():
        sharing = [
            other
            for other in inputs.values()
            if other is taken or not taken.passed_over.keys().isdisjoint(other.passed_over)
        ]
        count, size = sum(len(other.files) for other in sharing), sum(other.bytes for other in sharing)
        if len(taken.passed_over) > count or sum(taken.passed_over.values()) > size:
            [note] = notes_of(facts_of({name: taken}, {}))
            alarms.append(
                f"{note}; that is more than is read ({files(count)}). "
                "Add a source that reads them, or name the wanted files by a glob"
            )
    return alarms


def read_twice(inputs: Mapping[str, Inputs]) -> list[str]:
    """One for each two sources that read the same files, and for each source that reads files under two names."""
    first: dict[str, tuple[str, str]] = {}  # file identity -> the source and path that come first
    twice: dict[tuple[str, str], list[str]] = {}
    for name, taken in inputs.items():
        for file in taken.files:
            source, path = first.setdefault(file.identity, (name, file.path))
            if (source, path) != (name, file.path):
                twice.setdefault((source, name), []).append(file.path)
    return [
        f"{source} and {name} both read {listed(paths)}: each document comes twice"
        if source != name
        else f"{name} reads {listed(paths)} under another name too: each document comes twice"
        for (source, name), paths in twice.items()
    ]


def alarms_of_changes(inputs: Mapping[str, Inputs]) -> list[str]:
    """One for each source whose files were written to while they were read: the result may hold parts of both
    versions."""
    alarms = []
    for name, taken in inputs.items():
        changed = changed_since(taken.read)
        if changed:
            alarms.append(
                f"{name}: {listed(changed)} changed while the run went on; the same command reads what is new"
            )
    return alarms


def listed(paths: Sequence[str]) -> str:
    return few([shortened(path, LONGEST_PATH) for path in paths[:NAMED]], len(paths))
