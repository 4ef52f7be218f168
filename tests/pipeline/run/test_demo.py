"""`gristmill demo` from nothing to token shards; and what holds shards against documents sees what is wrong with them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.demo.check_shards import check_shards
from gristmill.pipeline.demo.crawl import ROW_LENGTH

pytestmark = pytest.mark.run


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo") / "out"
    done = subprocess.run(
        [sys.executable, "-m", "gristmill.pipeline.cli.app", "demo", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "run", done.stdout


def test_everything_is_as_planted_down_to_the_token_shards(demo: tuple[Path, str]) -> None:
    out, said = demo
    found, of = re.findall(r"(\d+) of (\d+) facts of the crawl came out as they were planted", said)[0]
    assert found == of and int(of) >= 37 and "not so" not in said
    assert said.count("  gristmill ") == 3
    assert (out / "report.html").is_file() and (out / "shards" / "README.md").is_file()


def test_shards_that_do_not_hold_what_was_written_are_seen(demo: tuple[Path, str]) -> None:
    out, _ = demo
    assert all(finding.ok for finding in check_shards(out, ROW_LENGTH))
    path = next((out / "write").glob("*.parquet"))
    content, table = path.read_bytes(), pq.ParquetFile(path).read()
    try:
        texts = table["text"].to_pylist()
        pq.write_table(
            table.set_column(table.schema.get_field_index("text"), "text", [[texts[0] + "!", *texts[1:]]]), path
        )
        assert [finding.ok for finding in check_shards(out, ROW_LENGTH)] == [True, True, False]
        pq.write_table(table.slice(0, len(table) - 1), path)
        assert [finding.ok for finding in check_shards(out, ROW_LENGTH)] == [True, True, False]
    finally:
        path.write_bytes(content)
    shard = next((out / "shards" / str(ROW_LENGTH)).glob("*.arrow"))
    content = shard.read_bytes()
    try:
        shard.write_bytes(content[:9000] + bytes([content[9000] ^ 1]) + content[9001:])
        assert not check_shards(out, ROW_LENGTH)[0].ok
    finally:
        shard.write_bytes(content)
