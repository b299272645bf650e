"""A real control plane on this machine: etcd and kube-apiserver, and on demand the other programs.

scripts/control_plane.sh builds the programs once, from Debian's source package. They listen on this machine only, and
all of their files are in a folder that is deleted afterwards. Do not ask this API server with curl: it indents its
answers for curl, and the code that does so crashes it when it is built with Go 1.18 or later.
"""

import json
import os
import random
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from adlro.core.errors import BackendError

PROGRAMS: Final = Path(os.environ.get("ADLRO_CONTROL_PLANE", Path.home() / ".cache" / "adlro" / "control-plane"))
READY_S: Final = 120.0
_PORTS: Final = (10_000, 30_000)


@dataclass
class ControlPlane:
    """The processes of a control plane; each can be killed and started again."""

    folder: Path
    ports: list[int] = field(default_factory=lambda: _free_ports(3))
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """The port of the API server."""
        return self.ports[0]

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of its administrator."""
        return self.folder / "kubeconfig"

    def prepare(self) -> None:
        """Write keys, tokens and the kubeconfig."""
        for command in (
            ["openssl", "genrsa", "-out", "sa.key", "2048"],
            ["openssl", "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"],
        ):
            subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        (self.folder / "tokens.csv").write_text(f'{self.token},admin,admin,"system:masters"\n')
        server = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": server}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
        }  # fmt: skip
        self.kubeconfig.write_text(json.dumps(config))

    def start_etcd(self) -> None:
        """Start the database of the API server."""
        client, peer = (f"http://127.0.0.1:{port}" for port in self.ports[1:])
        self.start("etcd", [
            shutil.which("etcd") or "etcd", "--name", "lab", "--data-dir", "etcd", "--unsafe-no-fsync",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"lab={peer}",
        ])  # fmt: skip

    def start_server(self) -> None:
        """Start the API server, and wait until it is ready."""
        self.start("kube-apiserver", [
            str(PROGRAMS / "kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{self.ports[1]}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self.port}",
            "--insecure-port=0", "--cert-dir=certs", "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC", "--token-auth-file=tokens.csv", "--service-account-key-file=sa.pub",
            "--service-account-signing-key-file=sa.key", "--service-account-issuer=https://kubernetes.default.svc",
            "--disable-admission-plugins=ServiceAccount", "--allow-privileged=true", "--endpoint-reconciler-type=none",
        ])  # fmt: skip
        until = time.monotonic() + READY_S
        while not self.is_ready():
            is_gone = self.processes["kube-apiserver"].poll() is not None
            if is_gone or time.monotonic() > until:
                said = (self.folder / "kube-apiserver.log").read_text()[-2000:]
                raise BackendError(f"kube-apiserver {'ended' if is_gone else 'is not ready in time'}: {said}")
            time.sleep(0.1)

    def start_controllers(self) -> None:
        """Start the controller-manager: Jobs get their pods, and nodes their conditions."""
        self.start("kube-controller-manager", [
            str(PROGRAMS / "kube-controller-manager"), f"--kubeconfig={self.kubeconfig}", "--leader-elect=false",
            "--controllers=job,garbagecollector,disruption,replicaset", "--bind-address=127.0.0.1", "--secure-port=0",
            "--port=0", "--use-service-account-credentials=false",
        ])  # fmt: skip

    def start_scheduler(self, **config: object) -> None:
        """Start kube-scheduler with its defaults, but for what its configuration is given here."""
        health = f"127.0.0.1:{_free_ports(1)[0]}"  # by default it listens on all addresses, on one port for all
        whole = {
            "healthzBindAddress": health, "metricsBindAddress": health,
            "apiVersion": "kubescheduler.config.k8s.io/v1beta1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False}, "clientConnection": {"kubeconfig": str(self.kubeconfig)},
        }  # fmt: skip
        path = self.folder / "scheduler.json"
        path.write_text(json.dumps(whole | config))
        self.start("kube-scheduler", [
            str(PROGRAMS / "kube-scheduler"), f"--config={path}", "--bind-address=127.0.0.1", "--secure-port=0",
            "--port=0",
        ])  # fmt: skip

    def start(self, name: str, command: list[str]) -> None:
        """Start a program; its output goes to a file of its name."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """End a process at once."""
        process = self.processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    def is_ready(self) -> bool:
        """Whether the API server answers."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}/readyz", headers={"Authorization": f"Bearer {self.token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=2, context=context) as answer:
                return bool(answer.read() == b"ok")
        except (OSError, urllib.error.URLError):
            return False


def why_no_control_plane() -> str:
    """What is missing for a control plane on this machine; "" if nothing is."""
    if not (PROGRAMS / "kube-apiserver").is_file() or shutil.which("etcd") is None:
        return "there is no control plane on this machine; scripts/control_plane.sh builds one"
    return ""


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has, below those that the system gives to outgoing connections."""
    choose = random.SystemRandom()
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port, one = choose.randrange(*_PORTS), stack.enter_context(socket.socket())
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found


@contextmanager
def control_plane_up() -> Iterator[ControlPlane]:
    """A control plane until the end of the block."""
    if said := why_no_control_plane():
        raise BackendError(said)
    with tempfile.TemporaryDirectory(prefix="adlro-kubernetes-") as folder:
        plane = ControlPlane(Path(folder))
        try:
            plane.prepare()
            plane.start_etcd()
            plane.start_server()
            yield plane
        finally:
            for name in list(plane.processes)[::-1]:
                plane.kill(name)
