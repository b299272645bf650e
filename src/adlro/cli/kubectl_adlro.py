#!/usr/bin/env python3
"""`kubectl adlro`: why a pod waits, when it will start, and what if it asked for other GPUs.

A plugin for kubectl in one file, which needs Python 3.8 or later and no package. To install it, copy it as
`kubectl-adlro` into a folder of your PATH. It asks ADLRO's API at ADLRO_URL or, without that, through a port-forward to
ADLRO's Service. The API server's proxy (`kubectl get --raw`) would not do: it removes the token from the request.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any, Iterator, Mapping, NoReturn, Sequence  # noqa: UP035  # for Python 3.8

_GANG_LABELS = (
    "adlro.io/gang",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
)
"""Labels that name the gang of a pod, as the back end reads them."""

_TIMEOUT_S = 30.0
_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0))


class _Problem(Exception):  # noqa: N818  # it is told, not caught by anybody else
    """Something that the user is told in one line."""

    def __init__(self, said: str, status: int = 0) -> None:
        super().__init__(said)
        self.status = status


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer one question; the exit status."""
    asked = _parser().parse_args(arguments)
    try:
        _answer(asked)
    except _Problem as problem:
        print(f"kubectl adlro: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("pod", metavar="POD", help="name of the pod, or pod/NAME")
    shared.add_argument("-n", "--namespace", default="", help="its namespace; default: that of the context")
    shared.add_argument("--context", default="", help="context of the kubeconfig")
    shared.add_argument("--kubeconfig", default="", help="the kubeconfig file")
    shared.add_argument(
        "--service",
        metavar="NAMESPACE/NAME",
        default=os.environ.get("ADLRO_SERVICE", "adlro-system/adlro"),
        help="ADLRO's Service, for the port-forward (or ADLRO_SERVICE; default: adlro-system/adlro)",
    )
    shared.add_argument(
        "--url",
        default=os.environ.get("ADLRO_URL", ""),
        help="address of ADLRO's API, without a port-forward (ADLRO_URL)",
    )
    shared.add_argument("--json", action="store_true", help="print the answer of the API as it is")
    parser = argparse.ArgumentParser(
        prog="kubectl adlro",
        description="Ask ADLRO about a pod. Its token is in ADLRO_TOKEN or, for those who may read it, in its Secret.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="why | when | whatif")
    verbs.required = True
    verbs.add_parser("why", parents=[shared], help="why a pod waits, or runs where it does")
    verbs.add_parser("when", parents=[shared], help="when a waiting pod is predicted to start")
    whatif = verbs.add_parser("whatif", parents=[shared], help="when it would start if it asked for other GPUs")
    whatif.add_argument("--gpus", type=int, metavar="N", help="number of GPUs")
    whatif.add_argument("--model", metavar="A,B", help="GPU models it may run on, or 'any'")
    return parser


def _answer(asked: argparse.Namespace) -> None:
    if asked.verb == "whatif" and asked.gpus is None and asked.model is None:
        raise _Problem("whatif needs a wish: --gpus N, --model A,B, or both.")
    kubectl = _Kubectl(asked.context, asked.kubeconfig)
    name = asked.pod[4:] if asked.pod.startswith("pod/") else asked.pod
    namespace = asked.namespace or kubectl.namespace()
    with _reached(asked.url, asked.service, kubectl) as url:
        api = _Api(url, _token(asked.service, kubectl))
        job, why = _why(api, kubectl, namespace, name)
        if asked.verb == "whatif":
            wish = {"job": job, "gpus": asked.gpus, "models": _models(asked.model)}
            body = {"change": [{key: value for key, value in wish.items() if value is not None}]}
            found = api.ask("/what-if", body)
            lines = [found["text"]]
        elif asked.verb == "when":
            found = why
            waits = why["state"] == "waiting"
            lines = [_start(why["start"])] if waits else [f"{namespace}/{name} does not wait. {why['text']}"]
        else:
            found = why
            lines = _reasons(f"{namespace}/{name}", why)
    print(json.dumps(found, indent=2) if asked.json else "\n".join(_printable(line) for line in lines))


def _models(word: str | None) -> list[str] | None:
    if word is None:
        return None
    return [] if word == "any" else [each.strip() for each in word.split(",") if each.strip()]


def _why(api: _Api, kubectl: _Kubectl, namespace: str, name: str) -> tuple[str, Mapping[str, Any]]:
    """The job that a pod is, alone or as one of a gang, and why it waits or runs."""
    job = f"{namespace}.{name}"
    try:
        return job, api.ask(f"/jobs/{job}/why")
    except _Problem as problem:
        if problem.status != 404:
            raise
    pod = json.loads(kubectl.ask("get", "pod", name, "--namespace", namespace, "--output", "json"))
    labels = pod["metadata"].get("labels") or {}
    gang = next((labels[label] for label in _GANG_LABELS if labels.get(label)), "")
    if not gang:
        scheduler = pod["spec"].get("schedulerName")
        raise _Problem(
            f"ADLRO does not know pod {namespace}/{name}, whose schedulerName is {scheduler}. If it is new, ask again "
            "in a few seconds."
        )
    return f"{namespace}.{gang}", api.ask(f"/jobs/{namespace}.{gang}/why")


def _reasons(pod: str, why: Mapping[str, Any]) -> list[str]:
    lines = [f"{pod}, {why['state']}: {why['text']}"]
    if why["rule"]:
        lines.append(f"Rule: {why['rule']}.")
    if why["state"] == "waiting":
        lines.append(_start(why["start"]))
    return lines + [f"  on {place['model']}: {place['answer']}" for place in why["places"]]


def _start(start: Mapping[str, Any] | None) -> str:
    """When a pod is predicted to start."""
    if start is None or start["middle_s"] is None:
        return "Its start cannot be predicted yet."
    now = time.time()
    if start["middle_s"] < now + 1:
        return "It is predicted to start any moment."
    line = f"It is predicted to start in {_length(start['middle_s'] - now)}, at {_clock(start['middle_s'])}"
    if start["low_s"] is not None and start["high_s"] is not None:
        line += f" (most likely {_clock(max(start['low_s'], now))} to {_clock(start['high_s'])})"
    return f"{line}."


def _length(seconds: float) -> str:
    unit, one = next(((unit, one) for unit, one in _UNITS if seconds >= 2 * one), ("s", 1.0))
    return f"{seconds / one:.0f} {unit}"


def _clock(at: float) -> str:
    is_today = time.localtime(at)[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if is_today else "%d %b %H:%M", time.localtime(at))


def _printable(text: str) -> str:
    """The text without what could move the cursor: names are others' words."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


# ---- kubectl ---------------------------------------------------------------------------------------------------------


class _Kubectl:
    """kubectl with the cluster and the user that were asked for."""

    def __init__(self, context: str, kubeconfig: str) -> None:
        chosen = (("--context", context), ("--kubeconfig", kubeconfig))
        self.command = ["kubectl", *(f"{flag}={value}" for flag, value in chosen if value)]

    def ask(self, *words: str) -> str:
        """What kubectl prints."""
        try:
            done = subprocess.run([*self.command, *words], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise _Problem("kubectl is not in the PATH.") from None
        if done.returncode:
            raise _Problem(_first_line(done.stderr) or f"kubectl {words[0]} failed with status {done.returncode}.")
        return done.stdout

    def namespace(self) -> str:
        """The namespace of the context."""
        found = self.ask("config", "view", "--minify", "--output", "jsonpath={..namespace}").strip()
        return found or "default"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


@contextlib.contextmanager
def _reached(url: str, service: str, kubectl: _Kubectl) -> Iterator[str]:
    """The address of ADLRO's API until the end of the block."""
    if url:
        yield url.rstrip("/")
        return
    namespace, _, name = service.partition("/")
    if not namespace or not name:
        raise _Problem(f"--service is {service!r}; expected NAMESPACE/NAME, as in adlro-system/adlro.")
    words = ["port-forward", "--namespace", namespace, f"service/{name}", ":api"]
    try:
        forward = subprocess.Popen(
            [*kubectl.command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except FileNotFoundError:
        raise _Problem("kubectl is not in the PATH.") from None
    try:
        assert forward.stdout is not None and forward.stderr is not None  # noqa: PT018
        found = re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline())
        if found is None:
            forward.terminate()
            said = _first_line(forward.stderr.read()) or "no answer"
            raise _Problem(
                f"no port-forward to service {name} in namespace {namespace}: {said} Check --service, or set ADLRO_URL "
                "to the address of ADLRO's API."
            )
        yield f"http://127.0.0.1:{found.group(1)}"
    finally:
        forward.terminate()
        forward.communicate()


def _token(service: str, kubectl: _Kubectl) -> str:
    """The token of the user; whoever may read ADLRO's Secret is an operator."""
    given = os.environ.get("ADLRO_TOKEN", "")
    if given:
        return given
    namespace, _, name = service.partition("/")
    template = "go-template={{.data.operator | base64decode}}"
    words = ("get", "secret", f"{name}-clients", "--namespace", namespace, "--output", template)
    try:
        return kubectl.ask(*words).strip()
    except _Problem:
        return ""  # the API may need none


# ---- the API ---------------------------------------------------------------------------------------------------------


class _Api:
    """ADLRO's API at one address."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """What it answers."""
        headers = {"Accept": "application/json", "User-Agent": "kubectl-adlro"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        request = urllib.request.Request(f"{self._url}/api/v1{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            self._refuse(error.code, error.read())
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise _Problem(f"ADLRO does not answer at {self._url}: {reason}. Check --url or ADLRO_URL.") from None

    def _refuse(self, status: int, text: bytes) -> NoReturn:
        """Tell what the API said of an error."""
        try:
            problem = json.loads(text)["error"]
            said = ". ".join(filter(None, (problem["what"].rstrip("."), problem["do"].rstrip(".")))) + "."
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _Problem(f"{self._url} answered {status}, but not as ADLRO does. Check --url or --service.") from None
        if status == 401:
            said += " Set it in ADLRO_TOKEN."
        raise _Problem(_printable(said), status)


if __name__ == "__main__":
    sys.exit(main())
