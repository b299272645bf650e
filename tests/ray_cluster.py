"""A Ray cluster of a head and two more nodes on this machine, alone in namespaces of its own: it sees loopback only,
and all of its processes end with it."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.parts import program, required

ROOT = Path(__file__).resolve().parent.parent
ADDRESS = "127.0.0.1:6399"
STORE = str(80 * 1024**2)  # bytes of each node's object store; Ray takes no less
ATTEMPTS = 3
LONGEST_S = 240.0  # for any command, on a machine that is busy with other things

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "error",
    "RAY_enable_worker_prestart": "0",
    "RAY_worker_niceness": "0",  # by default 15: beside other tests its processes would hardly run
    "PYTHONDONTWRITEBYTECODE": "",
    "OMP_NUM_THREADS": "1",
    # A token of its own: whether there is one in ~/.ray decides otherwise what the head asks of the other nodes.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "only-for-the-tests",
}


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up. `first` is the first process of its namespaces, as seen from outside."""

    first: int
    folder: Path

    def command(self, *words: str) -> list[str]:
        """A command that runs inside."""
        return [program("nsenter"), "-t", str(self.first), "-m", "-n", "-p", *words]

    def python(self, *words: str) -> list[str]:
        """A Python of this environment that runs inside."""
        return self.command(sys.executable, *words)

    def run(self, words: Sequence[str]) -> str:
        """Run a command inside to its end; what it printed."""
        ended = subprocess.run(words, env=surroundings(), cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S)
        assert ended.returncode == 0, ended.stderr[-3000:]
        return ended.stdout

    def kill(self, *processes: int) -> None:
        """Kill processes inside, by their numbers there."""
        subprocess.run(self.command("kill", "-9", *map(str, processes)), check=True)

    def children(self, process: int) -> list[int]:
        """The children of a process, by their numbers inside."""
        found = subprocess.run(self.command("pgrep", "-P", str(process)), capture_output=True, text=True)
        return [int(word) for word in found.stdout.split()]


def surroundings(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of every process of the cluster."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, **QUIET, "PYTHONPATH": path, **(more or {})}


@contextmanager
def ray_cluster() -> Iterator[Cluster]:
    """Start the cluster, and end every process of it."""
    apart = [program("unshare"), "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        reason = "a Ray cluster of its own needs namespaces: run the tests as root."
        pytest.fail(reason) if required() else pytest.skip(reason)
    for attempt in range(ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix="ray"))  # sockets have short names: not below pytest's folder
        holder = subprocess.Popen([*apart, "sh", "-c", f"{program('ip')} link set lo up && exec sleep 1000000"])
        try:
            try:
                cluster = Cluster(only_child(holder.pid), folder)
                start_nodes(cluster)
            except AssertionError:  # a node of Ray has 30 s to start, which a very busy machine does not give it
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            yield cluster
            return
        finally:
            holder.kill()  # the namespace's first process goes with it, and all others with that one
            holder.wait()
            shutil.rmtree(folder, ignore_errors=True)


def start_nodes(cluster: Cluster) -> None:
    """Start the head and two more nodes, one after the other: together, two would choose the same names for sockets."""
    ray = str(Path(sys.executable).with_name("ray"))
    common = ["--num-cpus=1", f"--object-store-memory={STORE}"]
    port = ADDRESS.rpartition(":")[2]
    head = ["--node-ip-address=127.0.0.1", "--head", f"--port={port}", "--include-dashboard=false"]
    cluster.run(cluster.python(ray, "start", *head, f"--temp-dir={cluster.folder}", *common))
    for _ in range(2):
        cluster.run(cluster.python(ray, "start", f"--address={ADDRESS}", *common))


def only_child(process: int) -> int:
    """The child of a process, as soon as there is one and it has begun its own command."""
    file = Path(f"/proc/{process}/task/{process}/children")
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        if (found := file.read_text().split()) and Path(f"/proc/{found[0]}/comm").read_text().strip() == "sleep":
            return int(found[0])
        time.sleep(0.01)
    raise TimeoutError("unshare started nothing")
