"""The commands as one program: how it starts, what it says when something is wrong, and how it ends.

A command is imported when it is called, and what it needs when it runs, so that help and lists answer at once.
"""

import gc
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Final

import typer

from adlro import __version__
from adlro.cli.output import say
from adlro.core.errors import AdlroError, CatalogueError, UsageError

NEW_OBJECTS: Final = 200_000
"""So many new objects before the garbage collector looks for garbage. With Python's own 700 it takes a tenth of a
second while modules are imported, which are no garbage."""

_DONE: Final = 0
_FAILED: Final = 1
BAD_USAGE: Final = 2
INTERRUPTED: Final = 130

DEBUG: Final = "--debug"

HELP: Final = (
    "Compare, train and run schedulers for clusters with different GPU models.\n\n"
    "To simulate: choose a cluster (clusters, gpus) and a workload (workloads), list the policies (policies), compare "
    "them on the same jobs (compare), then examine one run (simulate). For a cluster, a workload or a policy of your "
    "own, give the path of a file instead of a name. For a live cluster: serve, slurm, kubernetes and shadow."
)

_EXAMPLES: Final = (
    "adlro compare",
    "adlro compare -c gavel108 -w gavel -p fcfs,sjf,srtf --json > out.json",
    "adlro compare -c gavel108 -w jobs.swf.gz --windows 10 --families hash:gavel",
    "adlro simulate -c my.toml -p sjf-picky --mtbf-h 500 --events run.jsonl",
)

EPILOG: Final = (
    "[bold]Examples[/bold]\n\n"
    + "".join(f"\u2002 {example}\n\n" for example in _EXAMPLES)  # a space that is not stripped
    + "COMMAND --help explains a command. Commands that print a result print it as JSON with --json. "
    + "Exit codes: 0 done, 1 failed, 2 bad usage."
)

_COMMANDS: Final = {
    "compare": "runs",
    "simulate": "runs",
    "sweep": "runs",
    "report": "report",
    "policies": "lists",
    "clusters": "lists",
    "gpus": "lists",
    "workloads": "lists",
    "speeds": "lists",
    "trace": "trace:app",
    "ingest": "ingest",
    "predict": "predict",
    "train": "train",
    "export": "train",
    "serve": "serve",
    "warm": "warm",
    "queue": "live",
    "submit": "live",
    "why": "live",
    "cancel": "live",
    "top": "live",
    "token": "live:app_of_tokens",
    "slurm": "slurm:app",
    "kubernetes": "kubernetes:app",
    "shadow": "shadow:app",
    "monitoring": "monitoring:app",
    "bench": "runs",
}
"""The commands, in the order of the help: the module of each, and for a group of commands its name there."""


def commands(words: Sequence[str]) -> typer.Typer:
    """The program, with the command that is called; with all of them for help, or if there is no such command."""
    app = typer.Typer(
        help=HELP,
        epilog=EPILOG,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback(invoke_without_command=True)(root)
    called = next((word for word in words if not word.startswith("-")), "")
    for name in [called] if called in _COMMANDS else _COMMANDS:
        module, _, group = _COMMANDS[name].partition(":")
        found = import_module(f"adlro.cli.{module}")
        if group:
            app.add_typer(getattr(found, group), name=name)
        else:
            app.command()(getattr(found, name))
    return app


def show_version(asked: bool) -> None:
    """Print the version and stop."""
    if asked:
        print(f"adlro {__version__}")
        raise typer.Exit


def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show the whole traceback of an error (or set ADLRO_DEBUG=1).")
    ] = False,
) -> None:
    """Show the help when no command is given; the text that users see is HELP."""
    if context.invoked_subcommand is None:
        print(context.get_help())


root.__doc__ = None  # else it would stand in for HELP


def main() -> None:
    """Run the command line of this process."""
    if hasattr(signal, "SIGPIPE"):
        # Into `head` or a pager that is closed: end as other tools do, without a word.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    gc.set_threshold(NEW_OBJECTS)
    code = run(sys.argv[1:])
    if code == INTERRUPTED:
        # Threads in compiled code cannot be interrupted, and a normal exit would wait for them.
        sys.stdout.flush()
        os._exit(code)
    gc.freeze()  # else Python would look through all objects once more before it ends: a fifth of a second
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; an error is one line on stderr."""
    words = [word for word in arguments if word != DEBUG]  # it may stand anywhere
    debug = len(words) < len(arguments) or os.environ.get("ADLRO_DEBUG", "0") not in ("", "0")
    try:
        code = commands(words)(words, prog_name="adlro", standalone_mode=False)
    except Exception as error:
        if debug:
            traceback.print_exc()
        code, line = explain(error)
        say(f"adlro: {line}")
    else:
        code = code if isinstance(code, int) else _DONE
        if code == INTERRUPTED:
            say("adlro: interrupted.")
    return code


def explain(error: Exception) -> tuple[int, str]:
    """The exit code of an error, and one line for whoever caused it."""
    match error:
        case UsageError() | CatalogueError():
            return BAD_USAGE, str(error)
        case AdlroError():
            return _FAILED, str(error)
        case OSError():
            return _FAILED, f"{error.filename or 'input or output'}: {error.strerror or error}."
        case MemoryError():
            return _FAILED, "not enough memory. Use fewer --jobs or fewer --threads."
    # Typer's own errors; their class has other names in other versions, but always this method.
    if callable(say_it := getattr(error, "format_message", None)):
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "adlro"
        return BAD_USAGE, f"{_one_line(_of_a_value(error) or say_it())} Try '{path} --help'."
    return _FAILED, f"{type(error).__name__}: {_one_line(str(error))} This is a bug: please report it, with {DEBUG}."


def _of_a_value(error: Exception) -> str:
    """What is wrong with the value of an option, in our words; "" if the error is not about a value.

    Typer has pydantic check the values, and its error names neither the value nor, in plain words, what was expected.
    """
    param, problems = getattr(error, "param", None), getattr(error.__cause__, "errors", None)
    if param is None or not callable(problems):
        return ""
    problem = problems()[0]
    name = next((word for word in getattr(param, "opts", ()) if word.startswith("--")), getattr(param, "name", ""))
    expected = _EXPECTED.get(problem["type"], problem["msg"].removeprefix("Input should be "))
    bounds = {key: str(value).removesuffix(".0") for key, value in problem.get("ctx", {}).items()}
    return f"{name} is {problem['input']}; expected {expected.format(**bounds)}"


_EXPECTED: Final = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "greater_than_equal": "a number from {ge}",
    "less_than_equal": "a number of at most {le}",
}
"""What was expected, by the kind of problem that pydantic found."""


def _one_line(text: str) -> str:
    """The text without line breaks, and with an end."""
    line = " ".join(text.split())
    return line if line.endswith((".", "?", "!")) else f"{line}."
