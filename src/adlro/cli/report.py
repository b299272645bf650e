"""Reports: `adlro compare … --report DIR` writes one, `adlro report DIR` builds it anew (docs/report.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from adlro.cli.output import progress, say
from adlro.core.errors import UsageError

if TYPE_CHECKING:  # these import the compiler
    from adlro.experiment.compare import Comparison

REPORT: Final = "The report (docs/report.md)"


@dataclass(frozen=True, slots=True)
class Reporting:
    """Whether a comparison writes a report, and which policy it shows closely."""

    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="DIR", rich_help_panel=REPORT,
            help="Write a report into this folder: report.html, figures and data.",
        ),
    ] = None  # fmt: skip
    report_policy: Annotated[
        str | None,
        typer.Option(
            "--report-policy", metavar="NAME", rich_help_panel=REPORT,
            help="The policy that the report compares with the baseline. Default: the one with the best mean JCT.",
        ),
    ] = None  # fmt: skip

    def check(self, names: Sequence[str]) -> None:
        """Refuse what cannot be done, before anything is computed."""
        if self.report is not None:
            from adlro.experiment.report import check_report

            check_report(self.report, self.report_policy, names, "--report")
        elif self.report_policy is not None:
            raise UsageError("--report-policy needs --report DIR.")


def report(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="The folder of a report, or its result.json.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write the report into this folder. Default: the folder of RESULT."),
    ] = None,
) -> None:
    """Build a report again from the files that `adlro compare --report` wrote."""
    from adlro.experiment.report import rebuild_report

    say(f"Wrote {rebuild_report(result, out)}.")


def write_report_and_tell(reporting: Reporting, comparison: "Comparison", result: Mapping[str, Any]) -> None:
    """Write the report of a comparison, and show progress."""
    from adlro.experiment import report

    assert reporting.report is not None
    with progress("Making the report") as tell:
        page = report.write_report(
            comparison, reporting.report, reporting.report_policy, result, lambda what: tell(what, 0)
        )
    say(f"Wrote {page}.")
