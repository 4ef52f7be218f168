"""`gristmill.open_run`: what a run left behind, as an object that answers what the commands answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from rich.console import Group
from rich.text import Text

from gristmill.pipeline.door.views import View, render_signal
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import nearest, one_line, plain
from gristmill.pipeline.look import overview, stage_view, tune as tuning
from gristmill.pipeline.look.history import history
from gristmill.pipeline.look.run_folder import NotFound, RunFolder
from gristmill.pipeline.look.show_history import render_history
from gristmill.pipeline.screen import address

if TYPE_CHECKING:
    from gristmill.pipeline.look.find import Found

SHOWN = 200  # characters of a passage that is found


class Run:
    """A run's folder: counts, documents that stayed and that went, histories, other thresholds. It may still go on."""

    def __init__(self, out: str) -> None:
        self.out = out

    @property
    def _folder(self) -> RunFolder:
        """As it is now."""
        return RunFolder(self.out)

    @property
    def record(self) -> dict[str, Any]:
        """run.json."""
        return self._folder.record.to_json()

    @property
    def alarms(self) -> list[str]:
        return list(self._folder.record.alarms)

    @property
    def funnel(self) -> View:
        """Documents, text and tokens that are left after each stage, times, drops and alarms."""
        seen = overview.overview(self._folder)
        return View(overview.plain(seen), overview.render(seen))

    def stage(self, name: str, reason: str | None = None, limit: int = 10) -> View:
        """What a stage dropped and why, with samples."""
        view = stage_view.stage_view(self._folder, name, reason, limit)
        return View(view.as_data(), stage_view.render_stage(view))

    def history(self, uid: str | int | None = None, url: str | None = None, id: str | None = None) -> View:
        """All that happened to a document."""
        story = history(self._folder, uid=uid, url=url, id=id)
        return View(asdict(story), render_history(story))

    def tune(self, *settings: str, samples: int = 5, where: str = "") -> View:
        """What other thresholds would keep and drop, from stored signals: `run.tune("gopher_quality.min_words=80")`."""
        answer = tuning.tune(self._folder, list(settings), samples, where=where)
        return View(answer, tuning.render(answer))

    def signal(self, name: str) -> View:
        """How a signal is distributed over the documents that rules saw, and where rules cut it. Sources with rules of
        their own have histograms of their own."""
        from gristmill.pipeline.report_data.histograms import side_by_side

        surveys = self._folder.surveys
        known = sorted({known for survey in surveys for known in survey.signals})
        if name not in known:
            raise NotFound(f"this run has no histogram of {one_line(name)!r}{nearest(name, known)}")
        having = side_by_side([survey for survey in surveys if name in survey.signals])
        data = [{"sources": survey.sources, **asdict(survey.signals[name])} for survey in having]
        titles = [name] if len(having) == 1 else [f"{name}, of {', '.join(survey.sources)}" for survey in having]
        return View(data, Group(*(render_signal(name, *each) for each in zip(having, titles, strict=True))))

    def kept(self, sink: str | None = None, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """The documents that a sink (`write` unless named) has written, one after the other."""
        folder = self._folder
        sinks = [stage.name for stage in folder.record.sinks]
        files = {name: parquet_in(folder, name) for name in sinks}
        name = sink or next((name for name in sinks if files[name]), "write")
        if name not in sinks:
            raise RecipeError(f"no stage {one_line(name)!r} of this run writes documents{nearest(name, sinks)}")
        for batch in folder.batches(files[name], columns):
            yield from batch.to_pylist()

    def dropped(self, stage: str, reason: str | None = None) -> Iterator[dict[str, Any]]:
        """The documents that a stage dropped, with `reason` and `detail`; as many as the recipe's `rejects` keep."""
        folder = self._folder
        paths = [file.path for file in folder.rejects([folder.stage(stage).name])]
        where = None if reason is None else pc.field("reason") == reason
        for batch in folder.batches(paths, where=where):
            yield from batch.to_pylist()

    @property
    def estimate(self) -> View:
        """What the whole input would come to, of a run on a part of it (`limit`, `sample`)."""
        from gristmill.pipeline.run.estimate import estimate, workers_of

        record = self._folder.record
        if not record.done or not any("estimate" in facts for facts in record.inputs.values()):
            raise RecipeError(f"{self.out}: not a finished run on a part of its input (limit, sample)")
        guess = estimate(record, workers_of(record))
        return View(guess.as_json(), Text(guess.in_words()))

    def find(self, text: str, limit: int = 10, note: Callable[[str], None] = lambda line: None) -> View:
        """Documents whose token shards hold a passage, and the records that they came from. Case and white space do not
        count; `limit` documents of each set of shards. The first call indexes the shards, below the run's folder, and
        `note` is told of it."""
        from gristmill.pipeline.look.find import find_in_run

        found = list(find_in_run(self._folder, text, limit, note))
        lines = [line for each in found for line in passage_lines(each)]
        return View([each.plain() for each in found], Group(*(lines or [Text("no document of these shards holds it")])))

    def report(self) -> str:
        """Write report.html again, and return its path."""
        from gristmill.pipeline.report.build import build_report

        folder = self._folder
        folder.store.write("report.html", build_report(folder).encode("utf-8", "replace"))
        return folder.store.at("report.html")

    def compare(self, other: Run | str | Path, to: str | Path | None = None) -> View:
        """What differs between this run and another, document by document. Also written as a page: compare.html in the
        other's folder, or the file `to`."""
        from gristmill.pipeline.compare.compare import compare, plain
        from gristmill.pipeline.compare.sections import page_of, render

        second = RunFolder(other.out if isinstance(other, Run) else str(other))
        comparison = compare(self._folder, second)
        page = page_of(comparison).encode("utf-8", "replace")
        if to is None:
            second.store.write("compare.html", page)
            where = address(second.out, "compare.html")
        else:
            Path(to).write_bytes(page)
            where = Path(to).resolve().as_uri()
        return View(plain(comparison), Group(render(comparison), Text(f"compare: {where}", overflow="fold")))

    def summarize(self, law: str = "eu", documents: str | None = None, synthetic: Sequence[str] = ()) -> View:
        """Write the public summary of training content, by the template of a law: eu is the AI Act's Article 53(1)(d).
        `documents`: the stage whose files are counted, the last `write` unless given; `synthetic`: sources that hold
        synthetic data."""
        from gristmill.pipeline.summary.files import render, write_summary

        made, paths = write_summary(self._folder, law, documents, synthetic)
        lines = (Text(f"wrote: {address(self.out, path)}") for path in paths)
        return View(made.plain(), Group(render(made), *lines))

    def forget(
        self,
        what: Sequence[str] | str | Path | None = None,
        *,
        with_copies: bool = False,
        skip_inputs: bool = False,
        dry_run: bool = False,
        note: Callable[[str], None] = lambda line: None,
    ) -> View:
        """Take documents out of the run, its shards and exports; the receipt. `what` is a list of uids, urls, hosts,
        e-mail addresses or hashes of texts, or a file with one on each line; without it an unfinished takedown goes on.

        `with_copies` also forgets documents with the same text, and those that a stage dropped as duplicates of
        these. `skip_inputs` does not read the inputs again for what `personal_data` has masked. `dry_run` only says
        what would be forgotten. `note` is told what is done.
        """
        from gristmill.pipeline.forget.receipt import in_words
        from gristmill.pipeline.forget.request import read_request, request_of
        from gristmill.pipeline.forget.takedown import forget

        request = None
        if isinstance(what, str | Path):
            request = read_request(Path(what))
        elif what is not None:
            request = request_of(what, "forget")
        receipt = forget(
            self.out, request, with_copies=with_copies, skip_inputs=skip_inputs, dry_run=dry_run, note=note
        )
        end = "\nthere was nothing to do: this run has none of it, and its list names it already"
        end = f"\nreceipt: {receipt['receipt']}" if "receipt" in receipt else end
        return View(receipt, Text(plain(in_words(receipt) + ("" if dry_run else end))))

    def __repr__(self) -> str:
        return f"Run({self.out!r}, {self._folder.record.status or 'going on'})"

    def _repr_html_(self) -> str:
        return self.funnel._repr_html_()


def passage_lines(found: Found) -> list[Text]:
    """A document that holds a passage, and the record that it came from."""
    record = ", ".join(found.files[:3]) + (" or others of its part" if len(found.files) > 3 else "")
    where = f", byte {found.offset:,}" if found.offset is not None else ""
    held = found.passage if len(found.passage) <= SHOWN else f"{found.passage[:SHOWN]} [...] "
    return [
        Text.assemble((found.uid, "bold"), plain(f"  {found.source}  {found.url or ''}")),
        Text(plain(f"  in {found.set}/{found.shard}")),
        Text(plain(f"  read from {record or 'a file that is not on record'}{where}")),
        Text(plain(f"  ...{found.before}{held}{found.after}..."), style="dim"),
    ]


def parquet_in(folder: RunFolder, path: str) -> list[str]:
    """Also what sinks of an unfinished run wrote, which no manifest names yet."""
    return [f"{path}/{name}" for name in folder.names(path) if name.endswith(".parquet")]


def open_run(out: str | Path) -> Run:
    """The run in a folder, which may still go on."""
    run = Run(str(out))
    _ = run.record  # raises where there is no run
    return run
