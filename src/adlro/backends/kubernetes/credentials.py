"""How to reach an API server: from the service account of our own pod, from a kubeconfig, or as the config says."""

import base64
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from adlro.backends.kubernetes.options import KubernetesOptions
from adlro.core.errors import BackendError, ConfigError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_S: Final = 60.0
"""A token file is read again after so long: the kubelet replaces tokens before they expire."""


@dataclass(frozen=True, slots=True)
class ClusterServer:
    """An API server: where it is, whom to trust, and who we are."""

    host: str
    port: int
    context: ssl.SSLContext | None  # None: plain HTTP, as of kubectl proxy
    token: Callable[[], str] = lambda: ""
    prefix: str = ""  # of all paths
    namespace: str = "default"  # our own, where that is known


def door_of(options: KubernetesOptions) -> ClusterServer:
    """The server that the options name. Raises ConfigError if there is none."""
    if options.server:
        token = file_token(Path(options.token_file)) if options.token_file else lambda: ""
        return _door(options.server, options.ca_file, token)
    if not options.kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").is_file():
        return _own_account()
    return _from_kubeconfig(options)


def file_token(path: Path) -> Callable[[], str]:
    """The token in a file, read again every minute."""
    known: list[tuple[float, str]] = []

    def token() -> str:
        if not known or time.monotonic() - known[0][0] > _TOKEN_S:
            try:
                known[:] = [(time.monotonic(), path.read_text(encoding="utf-8").strip())]
            except OSError as error:
                raise BackendError(f"the token file {path} cannot be read: {error.strerror}.") from None
        return known[0][1]

    return token


def _own_account() -> ClusterServer:
    """The server and the rights of the pod that we run in."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    address = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    namespace = SERVICE_ACCOUNT / "namespace"
    found = _door(address, str(SERVICE_ACCOUNT / "ca.crt"), file_token(SERVICE_ACCOUNT / "token"))
    own = namespace.read_text(encoding="utf-8").strip() if namespace.is_file() else "default"
    return ClusterServer(found.host, found.port, found.context, found.token, found.prefix, own)


def _door(address: str, ca_file: str, token: Callable[[], str], insecure: bool = False, ca: str = "") -> ClusterServer:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"[kubernetes] server is '{address}'; expected http://HOST:PORT or https://HOST:PORT.")
    context = None
    if parts.scheme == "https":
        try:
            context = ssl.create_default_context(cafile=ca_file or None, cadata=ca or None)
        except OSError as error:
            raise ConfigError(f"the certificate authority {ca_file} cannot be read: {error}.") from None
        if insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = parts.port or (443 if context else 80)
    return ClusterServer(parts.hostname, port, context, token, parts.path.rstrip("/"))


# ---- kubeconfig ------------------------------------------------------------------------------------------------------


def _from_kubeconfig(options: KubernetesOptions) -> ClusterServer:
    """The server of a kubeconfig, by its token or its client certificate."""
    named = options.kubeconfig or os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(named).expanduser() if named else Path.home() / ".kube" / "config"
    if not path.is_file():
        raise ConfigError(
            f"no API server: [kubernetes] server is not set, this is not a pod, and there is no kubeconfig {path}. "
            "Set server, or kubeconfig."
        )
    config = read_config(path)
    wanted = options.context or str(config.get("current-context", ""))
    context = _named(config, "contexts", "context", wanted, path)
    cluster = _named(config, "clusters", "cluster", str(context.get("cluster", "")), path)
    user = _named(config, "users", "user", str(context.get("user", "")), path)
    ca = str(cluster.get("certificate-authority-data", ""))
    found = _door(
        str(cluster.get("server", "")),
        _beside(path, str(cluster.get("certificate-authority", ""))),
        _token_of(user, path),
        bool(cluster.get("insecure-skip-tls-verify")),
        base64.b64decode(ca).decode() if ca else "",
    )
    if found.context is not None:
        _show_certificate(found.context, user, path)
    return ClusterServer(
        found.host, found.port, found.context, found.token, found.prefix, str(context.get("namespace", "default"))
    )


def read_config(path: Path) -> Mapping[str, Any]:
    """A kubeconfig as JSON or, where PyYAML is installed, as YAML."""
    text = path.read_text(encoding="utf-8")
    try:
        found = json.loads(text)
    except ValueError:
        try:
            import yaml
        except ImportError:
            raise ConfigError(
                f"{path} is YAML, and PyYAML is not installed. Install adlro[kubernetes], or write it as JSON: "
                "kubectl config view --raw --flatten -o json."
            ) from None
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is neither JSON nor YAML: {error}.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is not a kubeconfig; expected a mapping with clusters, users and contexts.")
    return found


def _named(config: Mapping[str, Any], plural: str, kind: str, name: str, path: Path) -> Mapping[str, Any]:
    for each in config.get(plural) or ():
        if each.get("name") == name:
            return each.get(kind) or {}
    known = ", ".join(str(each.get("name")) for each in config.get(plural) or ()) or "none"
    raise ConfigError(f"{path} has no {kind} '{name}'; it has {known}.")


def _beside(path: Path, file: str) -> str:
    """A file that a kubeconfig names: relative to the folder of the kubeconfig."""
    return str(path.parent / file) if file else ""


def _token_of(user: Mapping[str, Any], path: Path) -> Callable[[], str]:
    if "exec" in user or "auth-provider" in user:
        raise ConfigError(
            f"{path}: its user logs in with a program, which ADLRO does not run. Use a token, a client certificate, "
            "or 'kubectl proxy' with server = \"http://127.0.0.1:8001\"."
        )
    if user.get("tokenFile"):
        return file_token(Path(_beside(path, str(user["tokenFile"]))))
    token = str(user.get("token", ""))
    return lambda: token


def _show_certificate(context: ssl.SSLContext, user: Mapping[str, Any], path: Path) -> None:
    """Log in with the client certificate of a kubeconfig, if it has one."""
    if user.get("client-certificate"):
        context.load_cert_chain(
            _beside(path, str(user["client-certificate"])), _beside(path, str(user.get("client-key", "")))
        )
    elif user.get("client-certificate-data"):
        import tempfile

        with tempfile.NamedTemporaryFile("wb", suffix=".pem") as file:  # OpenSSL reads files only
            file.write(base64.b64decode(str(user["client-certificate-data"])) + b"\n")
            file.write(base64.b64decode(str(user.get("client-key-data", ""))))
            file.flush()
            context.load_cert_chain(file.name)
