"""An S3 server for this room's tests, and s3fs without clients of earlier tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pipeline.store.object_store import Proxy, proxy_before, s3_server, settings


@pytest.fixture(scope="package")
def endpoint() -> Iterator[str]:
    pytest.importorskip("moto")
    with s3_server() as address:
        yield address


@pytest.fixture
def proxied(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the server, which s3:// leads to, with an empty bucket `mill` behind it."""
    s3fs = pytest.importorskip("s3fs")
    with proxy_before(endpoint) as proxy:
        for name, value in settings(proxy.address).items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        fs = s3fs.S3FileSystem()
        if fs.exists("mill"):
            fs.rm("mill", recursive=True)
        fs.call_s3("create_bucket", Bucket="mill")
        s3fs.S3FileSystem.clear_instance_cache()
        proxy.met.clear()
        yield proxy
        s3fs.S3FileSystem.clear_instance_cache()
