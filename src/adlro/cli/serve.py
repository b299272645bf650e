"""The command that runs the live orchestrator: `adlro serve` (docs/daemon.md)."""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape

from adlro.cli.asking import printable
from adlro.cli.lists import Json
from adlro.cli.options import spread_into_flags
from adlro.cli.output import print_json, show_list, stdout
from adlro.cli.warm import say_progress, telling
from adlro.core.errors import UsageError
from adlro.core.learned import check_speeds
from adlro.experiment.conditions import check_job_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adlro.daemon.config import Config
    from adlro.daemon.warming import TellProgress, Warmed, WarmProgress
    from adlro.live.service import State, Tick

DEMO: Final = {
    "backend.kind": "simulated",
    "simulated.cluster": "",
    "api.auth": "off",
    "tick_s": 1.0,
    "log.level": "warning",
}
"""What --demo sets: a busy cluster in this process, open to everyone on this machine."""


@dataclass(frozen=True, slots=True)
class ConfigFlags:
    """Flags that take precedence over the config file; None where the flag is not given."""

    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", metavar="KIND", help="What to schedule: simulated, local, slurm, kubernetes or shadow."
        ),
    ] = None
    policy: Annotated[
        str | None, typer.Option("--policy", "-p", metavar="NAME", help="The policy (adlro policies).")
    ] = None
    fallback: Annotated[
        str | None,
        typer.Option("--fallback", metavar="NAME", help="The policy that decides while the guard is active."),
    ] = None
    preempt: Annotated[
        bool,
        typer.Option(
            "--preempt", help="Let the policy stop running jobs that are marked as restartable (docs/preemption.md)."
        ),
    ] = False
    speeds: Annotated[
        str | None,
        typer.Option(
            "--speeds", metavar="WHAT", help="What policies know about speeds: known, prior, agnostic or learned."
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="WHAT", help="What a job counts: equal, or priority (docs/policies.md)."),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", "-c", metavar="NAME", help="simulated, local: the cluster, a name or a file."),
    ] = None
    workload: Annotated[
        str | None,
        typer.Option("--workload", "-w", metavar="NAME", help="simulated: the workload or trace whose jobs arrive."),
    ] = None
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="MODELS", help="local: pretend to have these GPUs, as in v100:4,t4:2."),
    ] = None
    speed: Annotated[
        float | None,
        typer.Option("--speed", metavar="X", min=0.001, max=1e6, help="simulated: X times as fast as real time."),
    ] = None
    tick: Annotated[
        float | None, typer.Option("--tick", metavar="S", min=0.01, max=3600, help="Seconds between two turns.")
    ] = None
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="The daemon's database: sqlite:PATH or postgresql://…")
    ] = None
    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Address of the API.")] = None
    port: Annotated[
        int | None, typer.Option("--port", metavar="N", min=0, max=65535, help="Port of the API; 0: any free one.")
    ] = None

    def by_key(self) -> dict[str, Any]:
        """The given flags, by their keys in the config."""
        values = {
            "backend.kind": self.backend, "policy.name": self.policy, "policy.fallback": self.fallback,
            "policy.speeds": self.speeds, "policy.weights": self.weights,
            "simulated.cluster": self.cluster, "local.cluster": self.cluster, "simulated.workload": self.workload,
            "local.gpus": self.gpus, "simulated.speed": self.speed, "tick_s": self.tick, "store.url": self.store,
            "api.host": self.host, "api.port": self.port, "preempt.is_on": self.preempt or None,
        }  # fmt: skip
        return {name: value for name, value in values.items() if value is not None}


@spread_into_flags
def serve(
    *,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Config file (docs/daemon.md). Without one, the defaults hold."),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Run a busy simulated cluster with a dashboard.")] = False,
    given: ConfigFlags,
    once: Annotated[bool, typer.Option("--once", help="Run one turn without an API, print it and exit.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print a config with every option and its default.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the daemon: schedule a live cluster, turn by turn, and serve its API and dashboard.

    Ends cleanly on SIGTERM, reads its config again on SIGHUP. Logs are JSON on stderr.
    """
    from adlro.daemon.config import BACKEND_NAMES, example, load_config

    if print_config:
        print(example(), end="")
        return
    if given.backend is not None and given.backend not in BACKEND_NAMES:
        raise UsageError(f"--backend is {given.backend!r}; expected one of {', '.join(BACKEND_NAMES)}.")
    if given.speeds is not None:
        check_speeds(given.speeds)
    if given.weights is not None:
        check_job_weights(given.weights)
    flags = (dict(DEMO) if demo else {}) | given.by_key()
    loaded = load_config(config, flags)
    if once:
        turn_once(loaded, as_json)
    else:
        _run(loaded, config, flags, demo)


def turn_once(config: "Config", as_json: bool) -> None:
    """One turn as the leader, printed."""
    from adlro.core.errors import StoreError
    from adlro.daemon.daemon import Daemon
    from adlro.daemon.opening import check_config, leadership_for, open_parts
    from adlro.daemon.warming import daemon_steps, warm_all

    check_config(config)
    steps = [*daemon_steps([config.policy.name, config.policy.fallback])]
    with telling(len(steps)) as tell:
        warm_all(steps, tell)
    daemon = Daemon(config, open_parts, leadership_for(config))
    try:
        tick = daemon.tick()
        if tick is None:
            raise StoreError(daemon.is_ready()[1])
        state = daemon.state()
    finally:
        daemon.close()
    if as_json:
        print_json({"tick": asdict(tick), "backend": state.backend, "down": dict(state.snapshot.down)})
    else:
        _show(tick, state)


def _show(tick: "Tick", state: "State") -> None:
    """Print a turn in words."""
    from adlro.live.service import with_names

    cluster = state.snapshot.cluster
    out = stdout()
    decisions = f"{len(tick.decisions)} decision{'' if len(tick.decisions) == 1 else 's'}"
    out.print(
        f"{state.backend} cluster {cluster.name}: {len(cluster.nodes)} nodes, {cluster.gpu_count} GPUs; {tick.waiting} "
        f"jobs wait, {tick.running} run; {tick.decided_by} made {decisions} in {tick.seconds:.2f} s",
        markup=False,
    )
    would = "would " if state.backend == "shadow" else ""
    said = {answer.job: answer for answer in tick.answers}
    rows: list[tuple[str, ...]] = []
    for decision in tick.decisions:
        where = ", ".join(f"{part.count} {part.model} on {part.node}" for part in decision.parts)
        answer = said.get(decision.job)
        done = "–" if answer is None else "done" if answer.done else f"refused: {answer.said}"
        reason = escape(printable(with_names(decision.reason, decision.mentions)))
        rows.append((decision.job, f"{would}{decision.verb}", where, done, reason))
    if rows:
        show_list((("job", "name"), ("", "left"), ("where", "left"), ("answer", "left"), ("reason", "text")), rows)
    for alarm in tick.alarms:
        out.print(f"alarm ({alarm.kind}): {alarm.text}", markup=False)


def _run(config: "Config", path: Path | None, flags: dict[str, Any], is_demo: bool) -> None:
    """Run the daemon with its API until it is told to end."""
    from adlro.daemon.daemon import Daemon, obeying_signals
    from adlro.daemon.opening import answering, check_config, leadership_for, open_parts
    from adlro.process.logs import LOGGER, set_up_logs

    check_config(config)
    set_up_logs(config.log.level, config.secrets())
    if path is not None and config.secrets() and path.stat().st_mode & 0o077:
        logging.getLogger(LOGGER).warning("others can read the config, which has a password", extra={"file": str(path)})

    def warm(policies: "Sequence[str]", tell: "TellProgress", is_stopping: "Callable[[], bool]") -> "Warmed":
        """Compile what a daemon needs; where the log does not tell how far that is, stderr does."""
        from adlro.daemon.warming import warm_daemon

        def tell_both(now: "WarmProgress") -> None:
            tell(now)
            if not logging.getLogger(LOGGER).isEnabledFor(logging.INFO):
                say_progress(now)

        return warm_daemon(policies, tell_both, is_stopping)

    daemon = Daemon(config, open_parts, leadership_for(config), path, flags, warm)
    with obeying_signals(daemon), answering(daemon, config) as address:
        if address:
            print(f"The demo is at {address} (Ctrl-C ends it)" if is_demo else f"adlro serves at {address}", flush=True)
        daemon.run()
