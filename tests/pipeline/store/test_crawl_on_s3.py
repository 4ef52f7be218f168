"""A dump of Common Crawl on S3 (a server of this machine): by range, each range of the same version of its object."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.inputs.files import find_files
from gristmill.pipeline.recipe import recipe as recipes
from tests.pipeline.inputs.false_crawl import Crawl, make_crawl
from tests.pipeline.inputs.test_common_crawl import INDEX, read, recipe_of
from tests.pipeline.store.object_store import settings

pytestmark = pytest.mark.run

s3fs = pytest.importorskip("s3fs")
pytest.importorskip("moto")


def on_s3(crawl: Crawl, bucket: str) -> str:
    fs = fsspec.filesystem("s3")
    fs.mkdir(bucket)
    fs.put(f"{crawl.root}/", f"{bucket}/", recursive=True)
    return f"s3://{bucket}"


def test_a_dump_on_s3_is_that_of_a_folder(tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings(endpoint).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    crawl = make_crawl(tmp_path / "crawl", files=2, records=8)
    root = on_s3(crawl, "commoncrawl")
    for number, more in enumerate(("", f"{INDEX}, gap: 0")):
        folder = tmp_path / str(number)
        folder.mkdir()
        far, near = read(folder, root, more), read(folder, crawl.root, more)
        assert far.rows == near.rows and len(far.rows) > 3 and not far.damaged
    assert far.listing.asked[0] == 4  # two lists, two footers
    folder = tmp_path / "changed"
    folder.mkdir()
    find_files(recipes.load(recipe_of(folder, root)).sources[0], folder, "a")  # sizes and tags are known now
    fsspec.filesystem("s3").pipe(f"commoncrawl/{crawl.files[0]}", (crawl.root / crawl.files[1]).read_bytes())
    with pytest.raises(RunFailed, match="another object is there now than was listed"):
        read(folder, root)
    assert len(read(folder, root).rows) == 16
