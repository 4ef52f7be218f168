"""The cluster files that the docs hand out: what Dask's operator, dask-jobqueue and the command line take."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

from gristmill.pipeline.engine.cluster import settings_in
from gristmill.pipeline.processes import WORKER_ENVIRONMENT
from tests.pipeline.crawls import inside

CLUSTERS = Path(__file__).parents[3] / "docs" / "clusters"
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((CLUSTERS / "kubernetes.yaml").read_text()))


def containers(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    spec = manifest["spec"]
    pods = [spec[part]["spec"] for part in ("scheduler", "worker", "template") if part in spec]
    return [container for pod in pods for container in pod["containers"]]


def test_the_manifests_are_a_cluster_workers_with_a_gpu_and_a_run() -> None:
    assert [manifest["kind"] for manifest in MANIFESTS] == ["DaskCluster", "DaskWorkerGroup", "Job"]
    cluster, group, _ = MANIFESTS
    assert group["spec"]["cluster"] == cluster["metadata"]["name"]
    ports = {port["name"] for port in cluster["spec"]["scheduler"]["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in cluster["spec"]["scheduler"]["service"]["ports"]} == ports
    started = [container for manifest in MANIFESTS for container in containers(manifest)]
    assert [container["args"][:2] for container in started] == [
        ["dask", "scheduler"],
        ["dask", "worker"],
        ["dask", "worker"],
        ["gristmill", "run"],
    ]
    wants = [container["resources"]["limits"].get("nvidia.com/gpu") for container in started]
    assert wants == [None, None, "1", None] and "GPU=1" in started[2]["args"]


def test_the_run_that_they_start_is_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    args = MANIFESTS[-1]["spec"]["template"]["spec"]["containers"][0]["args"][1:]
    inside(monkeypatch, capsys, *args).one_line(2, "/crawl/recipe.yaml: no such file")


@pytest.mark.skipif(importlib.util.find_spec("dask_kubernetes") is None, reason="dask-kubernetes is not installed")
def test_the_operators_own_schema_takes_them() -> None:
    """`pip install --no-deps dask-kubernetes` is enough for its schema."""
    import jsonschema

    [package] = importlib.util.find_spec("dask_kubernetes").submodule_search_locations or []  # type: ignore[union-attr]
    checked = []
    for path in Path(package).rglob("crds/*.yaml"):
        definition = yaml.safe_load(path.read_text())
        schema = closed(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
        for manifest in MANIFESTS:
            if manifest["kind"] == definition["spec"]["names"]["kind"]:
                jsonschema.validate({"spec": manifest["spec"]}, schema)
                checked.append(manifest["kind"])
    assert sorted(checked) == ["DaskCluster", "DaskWorkerGroup"]


def closed(schema: Any) -> Any:
    """As the API server takes it with strict validation: a field that the schema does not name is an error."""
    if isinstance(schema, list):
        return [closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(value) for name, value in schema.items()}
    if "properties" in inner and "additionalProperties" not in inner:
        inner["additionalProperties"] = inner.pop("x-kubernetes-preserve-unknown-fields", False)
    return inner


def test_the_image_has_what_local_workers_find_set() -> None:
    text = (CLUSTERS / "Dockerfile").read_text()
    assert WORKER_ENVIRONMENT and all(f"{name}={value}" in text for name, value in WORKER_ENVIRONMENT.items())


def test_the_slurm_file_has_settings_of_dask_jobqueue() -> None:
    jobqueue = pytest.importorskip("dask_jobqueue", reason="dask-jobqueue comes with the extra `cluster`")
    kind, jobs, settings = settings_in(CLUSTERS / "slurm.yaml")
    known = {
        name
        for of in (jobqueue.SLURMCluster, jobqueue.slurm.SLURMJob, jobqueue.core.JobQueueCluster, jobqueue.core.Job)
        for name in inspect.signature(of.__init__).parameters
    }
    assert (kind, jobs) == ("slurm", 20) and settings and set(settings) <= known
