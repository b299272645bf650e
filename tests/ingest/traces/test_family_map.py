"""Families by what a column of the trace says."""

from pathlib import Path

import pytest
from tests.ingest.traces.samples import OWN, PHILLY, SACCT, SWF

from adlro.core.errors import CatalogueError, ConfigError, TraceError, UsageError
from adlro.core.tables import Jobs
from adlro.experiment.traces import read_trace
from adlro.ingest.traces.tabulate import TraceOptions, TraceReport

MAP = """
column = "JobName"
default = "uniform"

[map]
train = "gavel/a3c"
"pre*" = "data"
"""


def read(folder: Path, text: str, families: str) -> tuple[Jobs, TraceReport]:
    (folder / "trace").write_text(text)
    return read_trace(str(folder / "trace"), TraceOptions(families=families))


def mapped(folder: Path, text: str, rules: str) -> tuple[Jobs, TraceReport]:
    (folder / "map.toml").write_text(rules)
    return read(folder, text, str(folder / "map.toml"))


def families(jobs: Jobs) -> list[str]:
    return [jobs.families[number] for number in jobs.table["family"]]


def test_a_map_gives_each_value_its_family_and_the_report_says_so(tmp_path: Path) -> None:
    jobs, report = mapped(tmp_path, SACCT, MAP)
    assert families(jobs) == ["gavel/a3c", "data"]
    assert report.families == "column 'JobName': train = gavel/a3c, pre* = data; else uniform"


def test_a_value_of_its_own_goes_before_a_pattern_and_what_fits_none_has_the_default(tmp_path: Path) -> None:
    rules = MAP.replace('train = "gavel/a3c"', '"t*" = "learning"\ntrain = "gavel/a3c"').replace('"pre*"', '"x*"')
    assert families(mapped(tmp_path, SACCT, rules)[0]) == ["gavel/a3c", "uniform"]


def test_a_value_that_is_not_mapped_stops_when_there_is_no_default(tmp_path: Path) -> None:
    rules = MAP.replace('default = "uniform"', "").replace('"pre*" = "data"', "")
    with pytest.raises(TraceError, match=r"column 'JobName' holds 'prep' \(1 jobs\).*Add what is missing"):
        mapped(tmp_path, SACCT, rules)


def test_a_column_may_hold_the_families_themselves(tmp_path: Path) -> None:
    text = "submit_s,work,gpus,kind\n0,10,1,gavel/a3c\n1,10,1,learning\n2,10,1,gavel/a3c\n"
    jobs, report = read(tmp_path, text, "column:kind")
    assert families(jobs) == ["gavel/a3c", "learning", "gavel/a3c"]
    assert report.families == "as in column 'kind'"
    with pytest.raises(TraceError, match=r"holds 'leaning'.*--families FILE\.toml"):
        read(tmp_path, text.replace("learning", "leaning"), "column:kind")


def test_parquet_may_have_columns_beyond_ours(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"submit_s": [0.0, 1.0], "work": [1.0, 1.0], "gpus": [1, 1], "kind": ["data", "learning"]})
    parquet.write_table(table, tmp_path / "jobs.parquet")
    jobs, _report = read_trace(str(tmp_path / "jobs.parquet"), TraceOptions(families="column:kind"))
    assert families(jobs) == ["data", "learning"]
    with pytest.raises(UsageError, match=r"no column 'knd'. Did you mean 'kind'"):
        read_trace(str(tmp_path / "jobs.parquet"), TraceOptions(families="column:knd"))


def test_a_trace_without_named_columns_has_user_and_name(tmp_path: Path) -> None:
    rules = 'column = "user"\ndefault = "uniform"\n[map]\nuser12 = "learning"\n'
    assert families(mapped(tmp_path, SWF, rules)[0]) == ["learning", "uniform", "learning"]
    with pytest.raises(UsageError, match=r"no column 'workload'.*this swf trace are user, name"):
        read(tmp_path, SWF, "column:workload")


def test_an_unknown_column_is_answered_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no column 'clustr'. Did you mean 'cluster'.*timestamp, duration"):
        read(tmp_path, PHILLY, "column:clustr")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (('"data"', '"dat"'), r"'map.pre\*': .*Did you mean 'data'"),
        (('default = "uniform"', 'default = "uni"'), "'default': "),
        (("column =", "colum ="), "unknown key 'colum'. Did you mean 'column'"),
        (('train = "gavel/a3c"\n"pre*" = "data"\n', ""), "'map'"),
    ],
)
def test_a_wrong_map_is_answered_with_the_file_and_the_key(
    change: tuple[str, str], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"map\.toml: .*{expected}"):
        mapped(tmp_path, SACCT, MAP.replace(*change))


def test_an_unknown_rule_or_family_is_refused(tmp_path: Path) -> None:
    for wrong in ("hash:", "hash:nobody", "col:x", "column:"):
        with pytest.raises(UsageError, match="column:NAME"):
            read(tmp_path, OWN, wrong)
    with pytest.raises(CatalogueError):
        read(tmp_path, OWN, "leaning")
    with pytest.raises(CatalogueError, match="No such file"):
        read(tmp_path, OWN, str(tmp_path / "none.toml"))
