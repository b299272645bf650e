"""The command that compiles everything before it is needed: `adlro warm` (docs/daemon.md)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli.lists import Json
from adlro.cli.output import print_json, progress, say, stderr
from adlro.core.errors import ConfigError, PolicyError

if TYPE_CHECKING:
    from adlro.daemon.warming import WarmProgress


def warm(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The daemon's config file, for its policy and fallback."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", "-p", metavar="NAME", help="Compile for this policy instead of the config's."),
    ] = None,
    fallback: Annotated[
        str | None,
        typer.Option("--fallback", metavar="NAME", help="Compile for this fallback instead of the config's."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also compile what `adlro compare` needs with its default policies.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compile what `adlro serve` needs, so that the daemon is ready seconds after its start.

    The first time takes minutes; after that it takes seconds, and says that everything was compiled already. The result
    is kept in ~/.cache/adlro (or $XDG_CACHE_HOME/adlro): run it as the user that the daemon runs as.
    """
    from adlro.core.code_cache import folder_in_use, outlasts_this_process
    from adlro.daemon.config import load_config
    from adlro.daemon.warming import comparison_steps, daemon_steps
    from adlro.daemon.warming import warm_all as do_all
    from adlro.experiment.conditions import DEFAULT_POLICIES

    given = {"policy.name": policy, "policy.fallback": fallback}
    table = load_config(config, {name: value for name, value in given.items() if value is not None}).policy
    steps = [*daemon_steps([table.name, table.fallback]), *(comparison_steps(DEFAULT_POLICIES) if everything else ())]
    with telling(len(steps)) as tell:
        done = do_all(steps, tell)
    if as_json:
        print_json({**asdict(done), "was_compiled": not done.compiled, "cache": str(folder_in_use())})
    elif done.compiled:
        print(f"Compiled {len(done.compiled)} functions in {done.seconds:.0f} s. They are cached in {folder_in_use()}.")
    else:
        print(f"Everything was compiled already ({len(steps)} steps checked in {done.seconds:.1f} s).")
    if not outlasts_this_process():
        raise ConfigError(
            "compiled code cannot be cached, because the cache folder is not writable. Set XDG_CACHE_HOME to a "
            "folder that this user can write to."
        )
    if done.failed:
        raise PolicyError(f"not everything could be compiled: {'; '.join(done.failed)}")


@contextmanager
def telling(total: int) -> Iterator[Callable[["WarmProgress"], None]]:
    """Show how far compiling is: a bar on a terminal, else a line for each function that must be compiled."""
    if stderr().is_terminal:
        with progress("Compiling", total) as draw:
            yield lambda now: draw(_in_words(now), now.done)
    else:
        yield say_progress


def say_progress(now: "WarmProgress") -> None:
    """A line for each function that must be compiled; nothing for those that are."""
    if now.function:
        say(f"… {now.words}: {now.function}, after {now.seconds:.0f} s")


def _in_words(now: "WarmProgress") -> str:
    """The step, and the function that is being compiled for it."""
    return f"{now.step}: compiling {now.function}" if now.function else now.step or "done"
