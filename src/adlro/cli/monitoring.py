"""The command that prints the files for Prometheus and Grafana: `adlro monitoring` (docs/monitoring.md)."""

from importlib.resources import files
from typing import Final

import typer

_FOLDER: Final = "monitoring"
GRAFANA: Final = "grafana.json"
RULES_FILE: Final = "adlro.rules.yml"

app = typer.Typer(help="Print files for Prometheus and Grafana (docs/monitoring.md).", no_args_is_help=True)


@app.command()
def grafana() -> None:
    """Print the Grafana dashboard, to be imported: adlro monitoring grafana > adlro.json."""
    print(shipped_file(GRAFANA), end="")


@app.command()
def rules() -> None:
    """Print the recording and alerting rules of Prometheus: adlro monitoring rules > adlro.rules.yml."""
    print(shipped_file(RULES_FILE), end="")


def shipped_file(name: str) -> str:
    """A file that ships with the package."""
    return files("adlro.daemon").joinpath(_FOLDER, name).read_text("utf-8")
