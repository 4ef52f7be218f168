"""A run on Slurm that loses two of its jobs and a node, held byte for byte against a local run.

A whole Slurm of two nodes on one machine, in a temporary folder: munged, slurmctld, and slurmd twice (`-N`), no
systemd; all of it ends with the script. Debian: `apt-get install slurmd slurmctld slurm-client munge`, and the extra
`cluster`. The run asks for two jobs (`--cluster`), which land on a node each. After the first parts one is cancelled.
When two jobs run again, a node is drained and its job cancelled, so that the next must find room on the other. The
parts do nothing but wait, for the run is to be long enough to lose jobs (a lost one is asked for again after 15 to
20 s).

    python -m benchmarks.pipeline.slurm [--parts 30]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import distributed

from tests.pipeline.engine.elsewhere import slow_recipe
from tests.pipeline.run.killed_runs import Case, contents, differences, ended

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "scancel")
NODES = ("n1", "n2")

CONF = """\
ClusterName=two
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory,CR_LLN
SchedulerParameters=bf_interval=1,sched_interval=1
ReturnToService=2
KillWait=5
MailProg=/bin/true
{nodes}
PartitionName=all Nodes=n1,n2 Default=YES State=UP
"""

CLUSTER = """\
type: slurm
jobs: 2
cores: 1
processes: 1
memory: 2GB
walltime: "01:00:00"
python: {python}
local_directory: {folder}/spill
log_directory: {folder}/jobs
security: true
shared_temp_directory: {folder}
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """Slurm with two idle nodes, for the time of a block; `sbatch` and the like find it by SLURM_CONF."""
    missing = [name for name in NEEDED if not shutil.which(name)]
    if missing:
        raise SystemExit(f"not found: {', '.join(missing)}; apt-get install slurmd slurmctld slurm-client munge")
    host, user = socket.gethostname().partition(".")[0], Path.home().owner()
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2 RealMemory=8000"
        for name in NODES
    )
    conf, munge = folder / "slurm.conf", folder / "munge"
    conf.write_text(CONF.format(folder=folder, host=host, user=user, port=free_port(), nodes=nodes))
    munge.mkdir(mode=0o755)
    (folder / "state").mkdir()
    (munge / "key").write_bytes(secrets.token_bytes(1024))
    (munge / "key").chmod(0o600)
    own = {f"--{what}-file={munge / what}" for what in ("key", "pid", "log", "seed")}
    daemons = [["munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *sorted(own)]]
    daemons += [["slurmctld", "-D", "-f", str(conf)]]
    daemons += [["slurmd", "-D", "-N", name, "-f", str(conf)] for name in NODES]
    os.environ["SLURM_CONF"] = str(conf)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "daemons.log").open("wb") as log:
            for command in daemons:
                processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
                time.sleep(1)
        wait_for(lambda: said("sinfo", "-hNo", "%T").split() == ["idle"] * len(NODES), "idle nodes")
        yield
    finally:
        said("scancel", "--user", user)
        with contextlib.suppress(TimeoutError):  # whoever is left then is killed with its node
            wait_for(lambda: not said("squeue", "-h"), "empty queue", 30)
        for process in reversed(processes):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def wait_for(is_so: Callable[[], bool], what: str, seconds: float = 120) -> None:
    limit = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > limit:
            raise TimeoutError(f"no {what} in {seconds:.0f} s")
        time.sleep(0.1)


def running() -> dict[str, str]:
    """Job -> node."""
    return dict(line.split() for line in said("squeue", "-ht", "running", "-o", "%i %N").splitlines())


def on_slurm(case: Case, out: Path, cluster: Path) -> dict[str, object]:
    """The run that is disturbed, and what was done to it."""
    log = out.with_name(f"{out.name}.log")
    begin = time.monotonic()
    command = [sys.executable, "-m", "gristmill.pipeline.cli.app", "run", str(case.recipe), "--out", str(out)]
    with log.open("wb") as file:
        driver = subprocess.Popen(
            [*command, "--cluster", str(cluster), "--json"], stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    deeds: list[tuple[float, str]] = []

    def wait_for_run(is_so: Callable[[], bool], what: str) -> None:
        wait_for(lambda: driver.poll() is not None or is_so(), what)
        if driver.poll() is not None:
            raise SystemExit(f"the run ended before it was disturbed:\n{log.read_text()[-2000:]}")

    def do(*command: str) -> None:
        subprocess.run(command, check=True)
        deeds.append((round(time.monotonic() - begin, 1), " ".join(command)))

    try:
        wait_for_run(lambda: len(list(out.glob("partitions/**/*.parquet"))) >= 2, "finished parts")
        nodes = running()
        do("scancel", next(job for job, node in nodes.items() if node == NODES[0]))
        wait_for_run(lambda: nodes != running() and len(running()) == 2, "job in place of the first")
        do("scontrol", "update", f"nodename={NODES[1]}", "state=drain", "reason=test")
        do("scancel", *[job for job, node in running().items() if node == NODES[1]])
        wait_for_run(lambda: list(running().values()) == [NODES[0]] * 2, "two jobs on one node")
        deeds.append((round(time.monotonic() - begin, 1), f"two jobs on {NODES[0]}"))
        ended(driver, out)
    finally:
        driver.kill()
    jobs = max(int(job) for job in re.findall(r"JobId=(\d+)", said("scontrol", "show", "jobs")))
    return {
        "seconds": round(time.monotonic() - begin, 1),
        "nodes_at_first": sorted(nodes.values()),
        "deeds": deeds,
        "jobs_in_all": jobs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, default=30, help="of 3 s each")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        case = Case(slow_recipe(folder, asked.parts, seconds=3), workers=2)
        local = case.finish(folder / "local")
        cluster = folder / "slurm.yaml"
        cluster.write_text(CLUSTER.format(python=sys.executable, folder=folder))
        with slurm(folder):
            facts = on_slurm(case, folder / "out", cluster)
        unlike = differences(folder / "local", folder / "out")
        print(
            json.dumps(
                {
                    "what": "a run on Slurm, two virtual nodes: two jobs cancelled, a node drained",
                    "machine": {"cores": os.cpu_count(), "cpu": platform.processor() or platform.machine()},
                    "versions": {
                        "slurm": said("sinfo", "--version").split()[-1],
                        "distributed": distributed.__version__,
                    },
                    "sizes": {"parts": asked.parts, "files_compared": len(contents(folder / "local"))},
                    "local_seconds": round(local, 1),
                    **facts,
                    "differences": unlike,
                    "byte_equal": not unlike,
                }
            )
        )
    if unlike:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
