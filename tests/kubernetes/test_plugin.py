"""`kubectl adlro`: the script with a stand-in for kubectl, against the API of a daemon on a Kubernetes cluster."""

import ast
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.kubernetes.world import T4, World, eventually

from adlro.api.tokens import TokenFile
from adlro.daemon.config import load_config
from adlro.daemon.daemon import Daemon
from adlro.daemon.opening import answering, leadership_for, open_parts
from adlro.live.service import OtherWish, WhatIf

Turned = Callable[[int], Daemon]

PLUGIN = Path(__file__).parents[2] / "deploy" / "kubectl-adlro"

KUBECTL = """#!{python}
import json, sys, time
words = [word for word in sys.argv[1:] if not word.startswith("--context")]
told = json.load(open({told!r}))
with open({log!r}, "a") as log:
    print(" ".join(sys.argv[1:]), file=log)
if words[0] == "config":
    print(told["namespace"], end="")
elif words[0] == "port-forward" and told["port"]:
    print("Forwarding from 127.0.0.1:%s -> 8321" % told["port"], flush=True)
    time.sleep(60)
elif words[:2] == ["get", "secret"] and told["token"]:
    print(told["token"], end="")
elif words[:2] == ["get", "pod"] and words[2] in told["pods"]:
    print(json.dumps(told["pods"][words[2]]))
else:
    print("Error from server (NotFound): %s not found" % " ".join(words[:3]), file=sys.stderr)
    sys.exit(1)
"""


@dataclass
class Desk:
    """Where a user types: what the stand-in for kubectl says, and the answers of the plugin."""

    folder: Path
    told: dict[str, object]

    def type(self, *words: str, status: int = 0, **environment: str) -> str:
        """What the plugin prints, on stderr if it fails."""
        (self.folder / "told.json").write_text(json.dumps(self.told))
        kept = {"PATH": f"{self.folder}:{Path(sys.executable).parent}:/usr/bin:/bin", **environment}
        done = subprocess.run(
            [sys.executable, str(PLUGIN), *words], capture_output=True, text=True, env=kept, timeout=60, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout if status == 0 else done.stderr

    @property
    def asked(self) -> list[str]:
        """What kubectl was asked."""
        return (self.folder / "log").read_text().splitlines()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    folder = tmp_path / "bin"
    folder.mkdir()
    file = folder / "kubectl"
    file.write_text(KUBECTL.format(python=sys.executable, told=str(folder / "told.json"), log=str(folder / "log")))
    file.chmod(0o755)
    return Desk(folder, {"namespace": "", "port": 0, "token": "", "pods": {}})


@pytest.fixture
def turned(world: World, tmp_path: Path, desk: Desk) -> Iterator[Turned]:
    """A daemon with its API, which the desk reaches by a port-forward; it turns until it sees so many jobs."""
    tokens = TokenFile(tmp_path / "tokens.json")
    flags = {
        "backend.kind": "kubernetes", "kubernetes.server": world.faults.url, "policy.name": "fcfs-first-fit",
        "store.url": f"sqlite:{tmp_path}/adlro.db", "api.port": 0, "api.tokens": str(tokens.path),
    }  # fmt: skip
    desk.told["token"] = tokens.add("operator", "operator")
    config = load_config(None, flags)
    daemon = Daemon(config, open_parts, leadership_for(config))
    with answering(daemon, config) as address:
        desk.told["port"] = int(address.rstrip("/").rpartition(":")[2])
        with urllib.request.urlopen(f"{address}healthz", timeout=60):  # as soon as its process has begun
            pass

        def turn(jobs: int) -> Daemon:
            eventually(lambda: daemon.tick() is not None and len(daemon.state().snapshot.jobs) == jobs)
            return daemon

        yield turn
    daemon.close()


@pytest.mark.fake_only
def test_why_when_and_whatif_are_answered_through_a_port_forward(world: World, desk: Desk, turned: Turned) -> None:
    world.node("a", gpus=4)
    world.node("t", gpus=4, product=T4)
    world.pod("big", gpus=4, annotations={"adlro.io/limit": "2h"})
    turned(1)
    eventually(lambda: bool(world.node_of("big")))
    world.pod("next", gpus=4, nodeSelector={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"})
    world.pod("huge", gpus=64)
    daemon = turned(3)
    # What answers need may have to be compiled, which takes longer than the plugin waits.
    daemon.why("default.next")
    daemon.what_if(WhatIf(change=(OtherWish("default.next", gpus=1),)))
    ended = threading.Event()
    turning = threading.Thread(target=lambda: [daemon.tick() for _ in iter(lambda: ended.wait(0.2), True)])
    turning.start()
    try:
        said = desk.type("why", "pod/next", "-n", "default")
        assert said.startswith("default/next, waiting: ")
        assert "It is predicted to start in " in said
        desk.told["namespace"] = "default"  # that of the context, from here on
        assert desk.type("when", "next").startswith("It is predicted to start in ")
        assert desk.type("when", "big").startswith("default/big does not wait. It ")
        assert "Nearest: a (it has 4 nvidia.com/gpu of 64" in desk.type("why", "huge")
        assert desk.type("whatif", "next", "--model", "t4").startswith("Job default.next would start in about 0 s (as")
        assert "would start in about" in desk.type("whatif", "huge", "--gpus", "2")
        answer = json.loads(desk.type("whatif", "next", "--gpus", "1", "--model", "any", "--json"))
        assert [start["job"] for start in answer["starts"]] == ["default.next"]
        assert "the cluster has no h100" in desk.type("whatif", "next", "--model", "h100", status=1)
        assert "--context=lab config view --minify" in desk.type("when", "next", "--context", "lab") + str(desk.asked)
    finally:
        ended.set()
        turning.join()


@pytest.mark.fake_only
def test_a_pod_of_a_gang_is_answered_with_its_gang_and_an_unknown_pod_with_its_scheduler(
    world: World, desk: Desk, turned: Turned
) -> None:
    world.node("a", gpus=4)
    pods = [
        world.pod(f"g-{n}", gpus=4, labels={"adlro.io/gang": "g"}, annotations={"adlro.io/gang-size": "2"})
        for n in range(2)
    ]
    other = {"metadata": {"labels": {}}, "spec": {"schedulerName": "volcano"}}
    desk.told["pods"] = {"g-0": pods[0], "other": other}
    world.pod("alone")
    turned(2)
    assert desk.type("why", "g-0", "-n", "default").startswith("default/g-0, waiting: ")
    assert "does not know pod default/other, whose schedulerName is volcano." in desk.type(
        "why", "other", "-n", "default", status=1
    )
    assert "kubectl adlro: Error from server (NotFound)" in desk.type("why", "gone", "-n", "default", status=1)


@pytest.mark.fake_only
def test_what_is_missing_is_said_in_one_line(world: World, desk: Desk, turned: Turned, tmp_path: Path) -> None:
    world.node("a")
    world.pod("p")
    turned(1)
    assert "whatif needs a wish: --gpus N, --model A,B, or both." in desk.type("whatif", "p", status=1)
    assert "expected NAMESPACE/NAME" in desk.type("why", "p", "--service", "adlro", status=1)
    desk.told["token"] = ""
    said = desk.type("why", "p", "-n", "default", status=1)
    assert said.startswith("kubectl adlro: a token is needed. ")
    assert said.endswith("Set it in ADLRO_TOKEN.\n")
    port, desk.told["port"] = desk.told["port"], 0
    assert "no port-forward to service adlro in namespace adlro-system: Error from server" in desk.type(
        "why", "p", "-n", "default", status=1
    )
    assert "ADLRO does not answer at http://127.0.0.1:1" in desk.type(
        "why", "p", "-n", "default", "--url", "http://127.0.0.1:1", status=1
    )
    ann = TokenFile(tmp_path / "tokens.json").add("other-team", "user")
    eventually(
        lambda: "job default.p is another's" in desk.type(
            "why", "p", "-n", "default", status=1, ADLRO_TOKEN=ann, ADLRO_URL=f"http://127.0.0.1:{port}"
        )
    )  # fmt: skip


def test_the_plugin_is_one_file_without_packages_that_an_old_python_can_read() -> None:
    text = PLUGIN.read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= set(sys.stdlib_module_names)
    assert text.startswith("#!/usr/bin/env python3\n")
    assert os.access(PLUGIN, os.X_OK)
