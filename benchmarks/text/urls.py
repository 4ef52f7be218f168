#!/usr/bin/env python3
"""Url rules: how long lists take to load, what memory they take, how many urls a second pass them. One JSON line a
result.

    python -m benchmarks.text.urls [--domains N] [--urls N] [--datatrove PYTHON]

Domains and urls are made from a seed that is printed. Each measurement runs in a process of its own, with the kernels
compiled before. With the Python of an environment that has DataTrove, its URLFilter judges the same urls by the lists
that it carries, and ours by the same lists. Seconds are CPU seconds of the process, so that a busy machine does not
count; `wall` is beside them.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import psutil
import pyarrow as pa

SEED = 7

PEER = """
import json, sys, time, logging
from datatrove.pipeline.filters.url_filter import URLFilter
from datatrove.data import Document
import resource
urls = open(sys.argv[1]).read().split("\\n")
documents = [Document(text="", id=str(i), metadata={"url": url}) for i, url in enumerate(urls)]
before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
rule = URLFilter()
rule.download_data()
loaded = time.process_time() - started
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
rule.filter(documents[0])
started = time.process_time()
verdicts = [rule.filter(document) for document in documents]
seconds = time.process_time() - started
print(json.dumps({"load": loaded, "rss": grown, "seconds": seconds, "dropped": sum(v is not True for v in verdicts)}))
"""


def made_domains(count: int) -> list[str]:
    rng = random.Random(SEED)
    ends = ["com", "net", "org", "ru", "co.uk", "info", "xyz"]
    return [f"{rng.getrandbits(48):x}-site{i % 97}.{ends[i % 7]}" for i in range(count)]


def made_urls(count: int, domains: list[str]) -> list[str]:
    rng = random.Random(SEED + 1)
    hosts = [rng.choice(domains) if i % 20 == 0 else f"news{rng.getrandbits(32):x}.example.org" for i in range(count)]
    return [
        f"https://www.{host}/2024/0{i % 9 + 1}/The-Quiet-Morning-{i}.html?page={i % 7}" for i, host in enumerate(hosts)
    ]


def child(task: str, **what: object) -> dict:
    """One measurement in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.text.urls", "--child", json.dumps({"task": task, **what})],
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure(task: str, settings: dict, urls: str | None = None) -> dict:
    from gristmill.stages import UrlRules
    from gristmill.stages.text.url_lists import url_lists

    with tempfile.TemporaryDirectory() as small:
        path = Path(small) / "small"
        path.write_text("small.example\n")
        UrlRules(
            **dict.fromkeys(
                ("blocked_domains_file", "blocked_words_file", "soft_words_file", "blocked_substrings_file"), str(path)
            )
        ).prepare()
    rule = UrlRules(**settings)
    process = psutil.Process()
    before, own, cpu, wall = process.memory_info().rss, status("RssAnon"), time.process_time(), time.perf_counter()
    lists = url_lists(rule.wanted())
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    result: dict = {"cpu": cpu, "wall": wall, "peak": status("VmHWM") - before}
    if task == "judge":
        column = pa.array(Path(urls).read_text().split("\n"))  # type: ignore[arg-type]
        batches = [pa.record_batch({"url": column.slice(i, 8192)}) for i in range(0, len(column), 8192)]
        seconds = []
        for _ in range(4):
            started = time.process_time()
            dropped = sum(int((~rule.apply(batch).verdict.kept).sum()) for batch in batches)
            seconds.append(time.process_time() - started)
        result |= {"seconds": seconds[1:], "dropped": dropped, "urls": len(column)}
    lists.sites.sum()  # every page of the table is touched
    return result | {"private": status("RssAnon") - own, "shared": lists.sites.nbytes + lists.words.nbytes}


def status(field: str) -> int:
    """Bytes, as the kernel counts them for this process; RssAnon leaves mapped files out."""
    return int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0]) * 1024


def line(what: str, sizes: dict, values: list[float], **more: object) -> None:
    versions = {name: version(name) for name in ("numba", "pyarrow", "numpy")}
    machine = f"{platform.machine()} {platform.system()} {os.cpu_count()} CPUs"
    row = {
        "what": what,
        "machine": machine,
        "versions": versions,
        "sizes": sizes,
        "median": round(statistics.median(values), 3),
    }
    print(json.dumps(row | {"spread": [round(min(values), 3), round(max(values), 3)]} | more), flush=True)


def loading(folder: Path, count: int, times: int) -> dict:
    domains = made_domains(count)
    listed = folder / "domains"
    listed.write_text("\n".join(domains))
    os.sync()
    sizes = {"domains": count, "bytes": listed.stat().st_size, "seed": SEED}
    settings = {"blocked_domains_file": str(listed)}
    built = []
    for _ in range(times):
        listed.write_text(listed.read_text() + "\nanother.example")  # no table of these contents lies in the cache
        built.append(child("load", settings=settings))
    line("load domains from text, CPU s", sizes, [b["cpu"] for b in built], wall=[round(b["wall"], 2) for b in built],
         peak_mb=round(max(b["peak"] for b in built) / 1e6))  # fmt: skip
    again = [child("load", settings=settings) for _ in range(times)]
    line("load them again in another process, CPU s", sizes, [b["cpu"] for b in again],
         wall=[round(b["wall"], 2) for b in again],
         private_mb=round(max(b["private"] for b in again) / 1e6, 1), shared_mb=round(again[0]["shared"] / 1e6, 1))  # fmt: skip
    return settings | {"domains": domains}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", type=int, default=4_500_000)
    parser.add_argument("--urls", type=int, default=400_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--datatrove", help="Python of an environment that has DataTrove")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(**json.loads(arguments.child))))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["GRISTMILL_CACHE"] = name  # tables of the benchmark go with it
        child("load", settings={"require_host": True})  # compiles
        settings = loading(folder, arguments.domains, arguments.times)
        urls = folder / "urls"
        urls.write_text("\n".join(made_urls(arguments.urls, settings.pop("domains"))))
        done = child("judge", settings=settings, urls=str(urls))
        sizes = {"urls": done["urls"], "bytes": urls.stat().st_size, "dropped": done["dropped"]}
        line("urls past the domains, million a CPU s", sizes, [done["urls"] / s / 1e6 for s in done["seconds"]])
        if arguments.datatrove:
            beside_datatrove(arguments.datatrove, folder, urls, arguments.urls)


def beside_datatrove(python: str, folder: Path, urls: Path, count: int) -> None:
    import tarfile

    where = subprocess.run(
        [
            python,
            "-c",
            "import datatrove, importlib.metadata as m; print(datatrove.__path__[0], m.version('datatrove'))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    home, peer_version = where.stdout.split()
    assets = Path(home) / "assets"
    with tarfile.open(next(assets.glob("url_filterblacklists*.tar.gz"))) as tar:
        for name, to in (("domains", "domains"), ("urls", "urls_of_list")):
            (folder / to).write_bytes(tar.extractfile(name).read())  # type: ignore[union-attr]
    listed = (folder / "domains").read_text().split()
    urls.write_text("\n".join(made_urls(count, listed)))
    settings = {
        "blocked_domains_file": str(folder / "domains"), "blocked_urls_file": str(folder / "urls_of_list"),
        "substrings_skip": "punctuation",
        "blocked_words_file": str(assets / "banned_words.txt"),
        "soft_words_file": str(assets / "soft_banned_words.txt"),
        "blocked_substrings_file": str(assets / "banned_subwords.txt"),
    }  # fmt: skip
    ours = child("judge", settings=settings, urls=str(urls))
    peer = json.loads(
        subprocess.run([python, "-c", PEER, str(urls)], capture_output=True, text=True, check=True).stdout.splitlines()[
            -1
        ]
    )
    line("urls past DataTrove's lists, million a CPU s",
    {"urls": count, "domains": len(listed), "dropped": ours["dropped"]},
         [count / s / 1e6 for s in ours["seconds"]], load=round(ours["cpu"], 2),
         private_mb=round(ours["private"] / 1e6, 1),
         peer={"name": f"datatrove {peer_version}", "median": round(count / peer["seconds"] / 1e6, 4),
         "load": round(peer["load"], 2),
               "rss_mb": round(peer["rss"] / 1e6), "dropped": peer["dropped"]},
         ratio=round(peer["seconds"] / statistics.median(ours["seconds"]), 1))  # fmt: skip


if __name__ == "__main__":
    main()
