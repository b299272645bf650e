"""What administrators of a Kubernetes cluster and users of its pods type."""

import json
from pathlib import Path

import pytest
from tests.kubernetes.fake_server import fake_server
from typer.testing import CliRunner

from adlro.cli.kubernetes import app
from adlro.cli.live import id_of


def test_check_reads_the_cluster_and_names_what_cannot_be_placed(tmp_path: Path) -> None:
    with fake_server() as server:
        room = {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "2"}
        node = {
            "metadata": {"name": "a", "labels": {"nvidia.com/gpu.product": "Tesla-T4"}},
            "status": {"allocatable": room},
        }
        asks = {"resources": {"requests": {"nvidia.com/gpu": "4"}}}
        pod = {
            "metadata": {"name": "p", "namespace": "ml", "uid": "1"}, "status": {"phase": "Pending"},
            "spec": {"schedulerName": "adlro", "containers": [asks]},
        }  # fmt: skip
        server.put("ADDED", ("", "nodes", "", "a"), node)
        server.put("ADDED", ("", "pods", "ml", "p"), pod)
        config = tmp_path / "adlro.toml"
        config.write_text(f'[kubernetes]\nserver = "{server.url}"\n')
        told = CliRunner().invoke(app, ["check", "--config", str(config), "--json"])
        found = json.loads(told.output)
        assert (found["nodes"], found["gpus"], found["waiting"], found["ours"]) == (1, {"t4": 2}, 1, 0)
        assert "Nearest: a" in found["refused"]["ml.p"]
        said = CliRunner().invoke(app, ["check", "--config", str(config)]).output
        assert "1 nodes (0 take no pods), 2 t4." in said
        assert "ml.p cannot be placed" in said
        assert all(method == "GET" for method, _ in server.requests)


@pytest.mark.parametrize(
    ("job", "namespace", "id"),
    [
        ("pod/p", "ml", "ml.p"),
        ("p", "ml", "ml.p"),
        ("pod/p", "", "default.p"),
        ("1061", "", "1061"),
        ("ml.p", "", "ml.p"),
    ],
)
def test_a_pod_is_named_as_kubectl_names_it(job: str, namespace: str, id: str) -> None:
    assert id_of(job, namespace) == id
