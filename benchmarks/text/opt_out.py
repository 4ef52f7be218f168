#!/usr/bin/env python3
"""Opt-outs at scale, and the test cases of protego's source package.

    python -m benchmarks.text.opt_out [--domains 5000000] [--sites 200000] [--urls 200000] [--protego protego-0.7.0/]

One JSON line a result. Domains and addresses are made from a seed; a domain list of 5 million lines is loaded, and
asked for addresses. `--protego` is the unpacked source package (`pip download --no-binary :all: --no-deps protego`):
every question that its tests put to `can_fetch` is put to `opt_out`'s reading of the same file as well, by recording
both. Nothing of that package is kept here.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from gristmill.stages import OptOut
from gristmill.stages.rights.policies import Robots

PLUGIN = "GRISTMILL_PROTEGO_CASES"
BODIES = ("User-agent: *\nDisallow: /private\n", "User-agent: GPTBot\nUser-agent: CCBot\nDisallow: /\n", "",
          "User-agent: *\nAllow: /\nCrawl-delay: 5\n\nUser-agent: ClaudeBot\nDisallow: /*.html$\n")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", type=int, default=5_000_000)
    parser.add_argument("--sites", type=int, default=100_000)
    parser.add_argument("--urls", type=int, default=200_000)
    parser.add_argument("--protego", type=Path)
    options = parser.parse_args()
    if options.protego is not None:
        cases(options.protego)
    with tempfile.TemporaryDirectory() as folder:
        speed(Path(folder), options.domains, options.sites, options.urls)


def speed(folder: Path, domains: int, sites: int, urls: int) -> None:
    chance = random.Random(1)
    listed = folder / "domains.txt"
    # a list of its own each time: no cache of an earlier run is read
    listed.write_text(
        f"# {time.time_ns()}\n" + "".join(f"site-{n * 2654435761 % 2**32:x}.example\n" for n in range(domains))
    )
    numbers = [chance.randrange(2 * domains) for _ in range(urls)]
    asked = [f"https://www.site-{n * 2654435761 % 2**32:x}.example/a/{n}.html" for n in numbers]
    rows = {"url": pa.array(asked), "date": pa.array(["2024-01-01"] * urls)}
    rule = OptOut(domains_file=str(listed), reservations=(), by_language=False)
    small = folder / "small.txt"  # kernels are compiled
    small.write_text("a.example\n")
    OptOut(domains_file=str(small), reservations=(), by_language=False)(pa.table(rows).slice(0, 10))
    start = time.perf_counter()
    rule.prepare()
    load = time.perf_counter() - start
    start = time.perf_counter()
    kept = len(rule(pa.table(rows)))
    took = time.perf_counter() - start
    wrong = kept - sum(n >= domains for n in numbers)
    say("a list of domains", domains=domains, load_seconds=load, urls_a_second=urls / took, wrong=wrong)

    files = folder / "sites.jsonl"
    with files.open("w") as out:
        for n in range(sites):
            body = BODIES[n % len(BODIES)] + f"Sitemap: https://h{n}.example/s.xml\n" * (n % 3 == 0)
            out.write(json.dumps({"host": f"h{n}.example", "date": "2024-01-01", "body": body}) + "\n")
    rule = OptOut(site_files=str(files), reservations=("robots_txt",), by_language=False)
    start = time.perf_counter()
    rule.prepare()
    load = time.perf_counter() - start
    rows["url"] = pa.array([f"https://h{chance.randrange(sites)}.example/{n}.html" for n in range(urls)])
    start = time.perf_counter()
    kept = len(rule(pa.table(rows)))
    took = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    say(
        "robots.txt of sites", sites=sites, load_seconds=load, urls_a_second=urls / took, kept=kept / urls, peak_mb=peak
    )


def cases(folder: Path) -> None:
    """Runs the package's own tests with every answer of `can_fetch` held against ours."""
    with tempfile.NamedTemporaryFile("w+", suffix=".jsonl") as log:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "benchmarks.text.opt_out",
            "-p",
            "no:cacheprovider",
            str(folder / "tests"),
        ]
        environment = {**os.environ, PLUGIN: log.name, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        subprocess.run(command, env=environment, check=False, cwd=folder, stdout=subprocess.DEVNULL)
        answers = [json.loads(line) for line in log.read().splitlines()]
    equal = sum(theirs == ours for _, _, theirs, ours in answers)
    for body, question, theirs, ours in answers:
        if theirs != ours:
            print(json.dumps({"differs": question, "protego": theirs, "opt_out": ours, "body": body[:200]}))
    say("questions of protego's tests", asked=len(answers), equal=equal)


def record_answers(path: str) -> None:
    """In the process of pytest: `can_fetch` also asks us, and writes both answers down."""
    from protego import Protego

    parse, can_fetch = Protego.parse.__func__, Protego.can_fetch  # type: ignore[attr-defined]
    bodies: dict[int, str] = {}

    def parsed(kind: type[Protego], content: str) -> Protego:
        made: Protego = parse(kind, content)
        bodies[id(made)] = content
        made._kept = made  # type: ignore[attr-defined]  # so that no other takes its id
        return made

    def asked(self: Protego, url: str, user_agent: str) -> bool:
        theirs: bool = can_fetch(self, url, user_agent)
        body = bodies.get(id(self))
        if body is not None and not asking:
            asking.append(1)
            ours = Robots(body, (user_agent,), True).forbids(url) is None
            asking.clear()
            with Path(path).open("a") as out:
                out.write(json.dumps([body, [url, user_agent], theirs, ours]) + "\n")
        return theirs

    asking: list[int] = []
    Protego.parse = classmethod(parsed)  # type: ignore[assignment, method-assign]
    Protego.can_fetch = asked  # type: ignore[method-assign]


def say(what: str, **facts: object) -> None:
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in facts.items()}
    print(json.dumps({"what": what, "machine": platform.machine(), **rounded}), flush=True)


if PLUGIN in os.environ and importlib.util.find_spec("protego"):
    record_answers(os.environ[PLUGIN])
if __name__ == "__main__":
    main()
