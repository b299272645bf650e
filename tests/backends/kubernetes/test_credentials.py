"""How to reach a server: by a kubeconfig in JSON or YAML, by the config, and what is said when that is not possible."""

import json
from pathlib import Path
from typing import Any

import pytest

from adlro.backends.kubernetes.credentials import door_of
from adlro.backends.kubernetes.options import KubernetesOptions
from adlro.core.errors import BackendError, ConfigError


def config(user: dict[str, Any], server: str = "https://10.0.0.1:6443") -> dict[str, Any]:
    return {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": user}],
    }


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_a_kubeconfig_gives_the_server_the_token_and_the_namespace(tmp_path: Path) -> None:
    (tmp_path / "k").write_text(json.dumps(config({"token": "secret"})))
    found = door_of(KubernetesOptions(kubeconfig=str(tmp_path / "k")))
    assert (found.host, found.port, found.token(), found.namespace) == ("10.0.0.1", 6443, "secret", "ml")


def test_a_token_file_is_found_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("from-file\n")
    (tmp_path / "k").write_text(json.dumps(config({"tokenFile": "t"})))
    assert door_of(KubernetesOptions(kubeconfig=str(tmp_path / "k"))).token() == "from-file"


def test_a_token_file_that_is_gone_is_an_error_of_the_cluster(tmp_path: Path) -> None:
    found = door_of(KubernetesOptions(server="http://127.0.0.1:1", token_file=str(tmp_path / "none")))
    with pytest.raises(BackendError, match="cannot be read"):
        found.token()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"server": "10.0.0.1"}, "expected http://HOST:PORT or https://HOST:PORT"),
        ({}, "no API server: .* there is no kubeconfig"),
    ],
)
def test_a_server_that_cannot_be_known_is_said_in_one_line(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        door_of(KubernetesOptions(**options))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"current-context": "two"}, "has no context 'two'; it has one"),
        ({"users": [{"name": "u", "user": {"exec": {"command": "aws"}}}]}, "logs in with a program"),
    ],
)
def test_a_kubeconfig_that_does_not_help_is_said_in_one_line(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    (tmp_path / "k").write_text(json.dumps(config({"token": "x"}) | change))
    with pytest.raises(ConfigError, match=told):
        door_of(KubernetesOptions(kubeconfig=str(tmp_path / "k")))
