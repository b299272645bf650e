"""Two daemons in processes of their own share a cluster by a Lease; when the leader is killed, the other goes on."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.daemon.postgres import new_database, postgres_server
from tests.kubernetes.test_turns import bound, check_room
from tests.kubernetes.world import World, eventually

from adlro.backends.kubernetes.client import MERGE, Api, ApiError
from adlro.backends.kubernetes.lab import ControlPlane
from adlro.core.errors import BackendError
from adlro.daemon.store import open_store

NODES, GPUS = 5, 8
PODS = NODES * GPUS
"""As many as there is room for: a node that gets one too many shows."""


@contextmanager
def bindings(world: World) -> Iterator[dict[str, list[str]]]:
    """By uid, all nodes that pods were ever bound to, as a watch tells it."""
    api, found = Api(world.server, 60.0), dict[str, list[str]]()
    folder = f"/api/v1/namespaces/{world.namespace}/pods"
    version = str(api.get(folder)["metadata"]["resourceVersion"])

    def follow() -> None:
        with suppress(BackendError):
            for event in api.watch(folder, {"resourceVersion": version}, 60.0):
                pod = event.get("object") or {}
                node = (pod.get("spec") or {}).get("nodeName")
                if node and node not in found.setdefault(pod["metadata"]["uid"], []):
                    found[pod["metadata"]["uid"]].append(node)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield found
    finally:
        api.wake()
        thread.join()
        api.close()


@contextmanager
def daemon(folder: Path, server: str, store: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon in a process of its own, until the end of the block."""
    folder.mkdir()
    config = folder / "adlro.toml"
    config.write_text(
        f'tick_s = 1\n[backend]\nkind = "kubernetes"\n[kubernetes]\n{server}\nlease = "default/adlro"\n'
        f'[policy]\nname = "fcfs-first-fit"\n[store]\nurl = "{store}"\n[api]\nis_on = false\n'
    )
    command = [sys.executable, "-m", "adlro", "serve", "--config", str(config)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def lease(world: World) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases/adlro"


def leader(world: World) -> int:
    """The process that leads; 0 while nobody does."""
    try:
        holder = str(world.api.get(lease(world))["spec"].get("holderIdentity") or "")
    except ApiError:
        return 0
    return int(holder.split("_")[-2]) if holder else 0


def arrive(world: World, is_killed: threading.Event) -> None:
    """Create the pods one after the other, the last quarter when the leader is gone."""
    for number in range(PODS):
        if number == PODS * 3 // 4:
            is_killed.wait()
        world.pod(f"p{number}")


@pytest.mark.parametrize(
    "is_shared",
    [
        pytest.param(False, id="stores of their own"),
        pytest.param(True, id="one PostgreSQL", marks=pytest.mark.real_only),
    ],
)
def test_when_the_leader_is_killed_the_other_daemon_binds_the_rest_and_no_pod_twice(
    world: World, tmp_path: Path, request: pytest.FixtureRequest, is_shared: bool
) -> None:
    with ExitStack() as stack:
        stores = [f"sqlite:{tmp_path}/{number}.db" for number in range(2)]
        if is_shared:
            stores = [new_database(stack.enter_context(postgres_server()))] * 2
        server = f'server = "{world.fake.url}"' if world.fake is not None else ""
        if not server:
            plane: ControlPlane = request.getfixturevalue("control_plane")
            server = f'kubeconfig = "{plane.kubeconfig}"'
        for number in range(NODES):
            world.node(f"n{number}", gpus=GPUS)
        daemons = [stack.enter_context(daemon(tmp_path / f"d{n}", server, store)) for n, store in enumerate(stores)]
        logs = [tmp_path / f"d{number}" / "log" for number in range(2)]
        eventually(
            lambda: leader(world) > 0 and any("standing by" in log.read_text() for log in logs),
            lambda: "\n".join(log.read_text()[-1500:] for log in logs),
        )
        first = leader(world)
        assert first in {each.pid for each in daemons}
        nodes = stack.enter_context(bindings(world))
        is_killed = threading.Event()
        arriving = threading.Thread(target=arrive, args=(world, is_killed))
        arriving.start()
        eventually(lambda: len(nodes) >= PODS // 4)
        os.kill(first, signal.SIGKILL)
        is_killed.set()
        arriving.join()
        before = bound(world)
        assert len(before) < PODS
        if world.fake is not None or is_shared:  # else the other waits for as long as the Lease lasts
            world.api.ask("PATCH", lease(world), None, {"spec": {"leaseDurationSeconds": 1}}, MERGE)
        eventually(lambda: len(bound(world)) == PODS, lambda: "\n".join(log.read_text()[-1500:] for log in logs))
        check_room(world, GPUS)
        assert {leader(world), first} == {each.pid for each in daemons}
        eventually(lambda: len(nodes) == PODS)
        assert Counter(map(len, nodes.values())) == {1: PODS}
        assert {name: bound(world)[name] for name in before} == before
        made = set[tuple[str, str]]()
        for url in {*stores}:
            with closing(open_store(url)) as store:
                made |= {(each.id, each.job) for each in store.decisions(limit=10 * PODS)}
    for pod in world.pods():
        meta = pod["metadata"]
        assert (meta["annotations"]["adlro.io/decision"], world.id(meta["name"])) in made
