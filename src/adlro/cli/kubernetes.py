"""For administrators of a Kubernetes cluster: what ADLRO sees of it, and the extender for kube-scheduler."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from adlro.cli.lists import Json
from adlro.cli.output import print_json, say, stdout

app = typer.Typer(
    help="Look at a Kubernetes cluster as ADLRO sees it, or run the extender (docs/run-on-kubernetes.md).",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The daemon's config file, for its table [kubernetes].")
]


@app.command()
def check(config: _ConfigFile = None, as_json: Json = False) -> None:
    """Read the cluster once: its GPU models, the pods that wait, what is missing. Changes nothing."""
    from adlro.backends.kubernetes.backend import kubernetes_backend
    from adlro.core.ports import JobState
    from adlro.daemon.config import load_config

    backend = kubernetes_backend(load_config(config).kubernetes)
    try:
        snapshot = backend.read()
    finally:
        backend.close()
    models: dict[str, int] = {}
    for node in snapshot.cluster.nodes:
        for group in node.gpus:
            name = snapshot.cluster.models[group.model].name
            models[name] = models.get(name, 0) + group.count
    waiting = [job for job in snapshot.jobs if job.state is JobState.WAITING]
    ours = sum(job.managed for job in waiting)
    refused = {job.id: job.reason for job in waiting if job.setback}
    if as_json:
        print_json({
            "nodes": len(snapshot.cluster.nodes), "down": dict(snapshot.down), "gpus": models, "waiting": len(waiting),
            "ours": ours, "refused": refused, "notes": list(snapshot.notes),
        })  # fmt: skip
        return
    out = stdout()
    gpus = ", ".join(f"{many} {name}" for name, many in sorted(models.items())) or "no GPUs"
    out.print(f"{len(snapshot.cluster.nodes)} nodes ({len(snapshot.down)} take no pods), {gpus}.", markup=False)
    out.print(f"{len(waiting)} pods wait, {ours} of them for ADLRO.", markup=False)
    for id, reason in refused.items():
        out.print(f"  {id} cannot be placed: {reason}", markup=False)
    for note in snapshot.notes:
        out.print(f"note: {note}", markup=False)


@app.command()
def extender(
    config: _ConfigFile = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0: any free one.")] = 8322,
    bind: Annotated[bool, typer.Option("--bind", help="Also answer the verb bind.")] = False,
) -> None:
    """Answer kube-scheduler's questions: which nodes a pod can use, and which are fastest for it."""
    from adlro.backends.kubernetes.extending import extending
    from adlro.daemon.config import load_config

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # whoever closes a connection would end us by it
    with extending(load_config(config).kubernetes, host, port, bind) as address:
        say(f"adlro: the extender answers at http://{address}/extender/v1.")
        ended.wait()
