"""Tables of users: `--columns` says what their columns mean, and `adlro trace map` proposes it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.ingest.traces.samples import OPENB, OWN, PHILLY

from adlro.cli.app import run
from adlro.core.errors import AdlroError, TraceError
from adlro.core.tables import Jobs
from adlro.experiment.traces import read_trace
from adlro.ingest.traces.propose import as_toml, propose, split_unit
from adlro.ingest.traces.source import open_trace
from adlro.ingest.traces.tabulate import TraceOptions, TraceReport

MAP = """\
separator = ";"
comment = "#"
time_format = "%d.%m.%Y %H:%M"
time_zone = "Europe/Zurich"
decimal = ","

[columns]
submit = "Eingereicht"
start = "Start"
end = "Ende"
gpus = "ReqGPUS"
user = "Benutzer"
ran_on = "GPUType"
nodes = "NodeList"
memory = "RAM"
limit = "Limit"

[units]
memory = "MB"
limit = "clock"

[set_aside]
Status = ["abgebrochen"]
"""

TABLE = """\
# exported by hand
Benutzer;Eingereicht;Start;Ende;ReqGPUS;GPUType;NodeList;RAM;Limit;Status
# a word in between
Müller;04.03.2024 08:00;04.03.2024 08:10;04.03.2024 09:10;2;t4;gpu[01-02];1024,0;2:00:00;ok
Möller;04.07.2024 08:00;04.07.2024 08:10;04.07.2024 10:10;1;v100;gpu03;512,5;1-00;ok
Mäller;04.07.2024 08:01;;;1;v100;;512,5;1-00;abgebrochen
"""


def read(folder: Path, table: str | bytes, map_: str | None, **options: Any) -> tuple[Jobs, TraceReport]:
    (folder / "jobs.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
    if map_ is not None:
        (folder / "map.toml").write_text(map_)
        options["columns"] = str(folder / "map.toml")
    return read_trace(str(folder / "jobs.csv"), TraceOptions(**options))


def test_a_table_is_read_as_its_map_says(tmp_path: Path) -> None:
    jobs, report = read(tmp_path, TABLE, MAP)
    assert (report.format, report.rows, report.kept) == ("columns", 3, 2)
    assert report.set_aside == {"Status is abgebrochen": 1}
    assert jobs.table["gpus"].tolist() == [2, 1]
    assert jobs.work.tolist() == [7200, 7200]
    assert jobs.table["limit"].tolist() == [7200, 86_400]
    assert jobs.table["memory"].tolist() == [1024, 512]
    assert [jobs.users[row] for row in jobs.table["user"]] == ["Müller", "Möller"]
    assert report.start_unix == 1_709_535_600  # 07:00 UTC: winter time in Zurich
    summer = report.start_unix + jobs.table["submit"][1]
    assert summer == 1_720_072_800  # 06:00 UTC: summer time
    assert report.ran_on.startswith("2 of 2 GPU jobs on t4 (1), v100-sxm2-16gb (1)")
    assert report.notes == ()


PLAIN = 'separator = "tab"\n[columns]\nsubmit = "when"\nduration = "took"\ngpus = "n"\n'


@pytest.mark.parametrize(
    ("cell", "more", "expected"),
    [
        ("90", "", 90.0),
        ("1.5", '[units]\nduration = "min"\n', 90.0),
        ("90000", '[units]\nduration = "ms"\n', 90.0),
        ("0:01:30", '[units]\nduration = "clock"\n', 90.0),
    ],
)
def test_lengths_have_the_unit_of_the_map(cell: str, more: str, expected: float, tmp_path: Path) -> None:
    jobs, report = read(tmp_path, f"when\ttook\tn\n5\t{cell}\t1\n", PLAIN + more)
    assert jobs.work.tolist() == pytest.approx([expected])
    assert report.start_unix is None  # 5 s since when, nobody says


@pytest.mark.parametrize(
    ("when", "head", "unix"),
    [
        ("2024-03-04T08:00:00", "", 1_709_539_200),
        ("2024-03-04 08:00", "", 1_709_539_200),
        ("2024-03-04T08:00:00.123Z", "", 1_709_539_200),
        ("2024-03-04T10:00:00+02:00", "", 1_709_539_200),
        ("2024-03-04T10:00:00+02:00", 'time_zone = "Asia/Tokyo"\n', 1_709_539_200),
        ("2024-03-04T17:00:00", 'time_zone = "Asia/Tokyo"\n', 1_709_539_200),
        ("04/Mar/2024:10:00:00 +0200", 'time_format = "%d/%b/%Y:%H:%M:%S %z"\n', 1_709_539_200),
        ("1709539200", "", 1_709_539_200),
    ],
)
def test_times_may_be_written_in_many_ways(when: str, head: str, unix: float, tmp_path: Path) -> None:
    _jobs, report = read(tmp_path, f"when\ttook\tn\n{when}\t60\t1\n", head + PLAIN)
    assert report.start_unix == unix


def test_all_jobs_may_have_the_same_number_of_gpus(tmp_path: Path) -> None:
    jobs, _report = read(tmp_path, "when\ttook\n5\t9\n", PLAIN.replace('gpus = "n"', "gpus = 4"))
    assert jobs.table["gpus"].tolist() == [4]


@pytest.mark.parametrize(
    ("map_", "said"),
    [
        (PLAIN.replace('"took"', '"tok"'), "has no column 'tok'.*Did you mean 'took'"),
        (PLAIN.replace("tab", ","), "is the separator right"),
        (PLAIN.replace("tab", "::"), "does not separate cells"),
        (PLAIN.replace("duration", "start"), "nothing tells how long a job ran"),
        ('encoding = "klingon"\n' + PLAIN, "there is no encoding 'klingon'"),
        ('encoding = "utf-16"\n' + PLAIN, "convert the file to UTF-8"),
        ('time_zone = "Mars/Olympus"\n' + PLAIN, "there is no time zone 'Mars/Olympus'"),
        (PLAIN + 'user = "n"\nusr = "n"\n', "unknown key 'columns.usr'"),
        (PLAIN + '[units]\nduration = "weeks"\n', "expected 'us' or 'ms'"),
    ],
)
def test_a_wrong_map_is_one_line(map_: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(AdlroError, match=said) as error:
        read(tmp_path, "when\ttook\tn\n5\t9\t1\n", map_)
    assert "\n" not in str(error.value)


def test_a_map_and_a_format_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(AdlroError, match="--format and --columns exclude each other"):
        read(tmp_path, "when\ttook\tn\n5\t9\t1\n", PLAIN, format="csv")


def test_bad_rows_are_quoted_as_they_stand_in_the_file(tmp_path: Path) -> None:
    table = TABLE.replace("Möller;04.07.2024 08:00", "Möller;yesterday")
    with pytest.raises(TraceError, match=r"row 3 \(submit time missing.*'Möller;yesterday;"):
        read(tmp_path, table.encode("latin-1"), 'encoding = "latin-1"\n' + MAP)


# ---- tables without a map ----------------------------------------------------------------------------------------


def test_three_users_in_latin_1_stay_three_and_the_guess_is_said(tmp_path: Path) -> None:
    table = "submit_s,work,gpus,user\n0,10,1,Müller\n1,10,1,Möller\n2,10,1,Mäller\n3,10,1,Meier\n"
    jobs, report = read(tmp_path, table.encode("latin-1"), None)
    assert [jobs.users[row] for row in jobs.table["user"]] == ["Müller", "Möller", "Mäller", "Meier"]
    assert report.warnings[0].startswith("3 lines are not UTF-8 and read as latin-1, which is a guess")
    assert read(tmp_path, table, None)[1].warnings == ()


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_known_table_is_recognised_with_another_separator(separator: str, tmp_path: Path) -> None:
    plain = read(tmp_path, PHILLY, None)[0]
    other = read(tmp_path, PHILLY.replace(",", separator), None)[0]
    assert other.work.tolist() == plain.work.tolist()


def test_a_header_may_follow_comments(tmp_path: Path) -> None:
    jobs, report = read(tmp_path, "# made by a script\n# in March\n" + OWN, None)
    assert report.format == "csv"
    assert jobs.work.tolist() == read(tmp_path, OWN, None)[0].work.tolist()


def test_a_table_with_gpus_in_columns_of_its_own_does_not_pass_as_sacct(tmp_path: Path) -> None:
    table = "JobID|Submit|ElapsedRaw|ReqGPUS|GPUType\n1|2024-03-04T08:00:00|60|2|t4\n"
    with pytest.raises(TraceError, match=r"\(ReqGPUS, GPUType\); expected AllocTRES.*adlro trace map"):
        read(tmp_path, table, None)


def test_sacct_without_gpus_is_read_and_said(tmp_path: Path) -> None:
    jobs, report = read(tmp_path, "JobID|Submit|ElapsedRaw|QOS\n1|2024-03-04T08:00:00|60|high\n", None)
    assert jobs.table["gpus"].tolist() == [0]
    assert "none of its 1 jobs has a GPU" in report.warnings[-1]
    assert report.notes == ("columns that were not read: QOS",)


def test_a_list_of_pods_without_times_is_told_what_it_lacks(tmp_path: Path) -> None:
    names = ("creation_time", "deletion_time", "scheduled_time")
    lines = [line.split(",") for line in OPENB.splitlines() if line]
    kept = [place for place, name in enumerate(lines[0]) if name not in names]
    table = "".join(",".join(line[place] for place in kept) + "\n" for line in lines)
    with pytest.raises(TraceError, match="looks like openb, but has no column creation_time, deletion_time, sched"):
        read(tmp_path, table, None)


def test_an_unknown_table_is_sent_to_the_map(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"looks like a table of 10 columns. `adlro trace map` proposes"):
        read(tmp_path, TABLE, None)


# ---- the proposal ------------------------------------------------------------------------------------------------


def test_a_column_that_cannot_be_read_is_shown_as_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.csv").write_text("submit,gpus,duration\nabc,1,5\nabc,2,5\n")
    assert run(["trace", "map", str(tmp_path / "jobs.csv")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert ["submit", "duration_s", "gpus"] in [line.split() for line in lines]
    assert ["missing", "5", "1"] in [line.split() for line in lines]


def test_a_map_is_proposed_and_reads_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.csv").write_bytes(TABLE.encode("latin-1"))
    assert run(["trace", "map", str(tmp_path / "jobs.csv")]) == 0
    answer = capsys.readouterr()
    assert "Möller" in answer.err
    assert "2024-03-04T08:00:00+00:00" in answer.err
    assert '# not used: "Status"' in answer.out
    (tmp_path / "map.toml").write_text(answer.out + '[set_aside]\nStatus = ["abgebrochen"]\n')
    options = TraceOptions(columns=str(tmp_path / "map.toml"))
    jobs, _report = read_trace(str(tmp_path / "jobs.csv"), options)
    assert jobs.work.tolist() == [7200, 7200]
    assert run(["trace", "map", str(tmp_path / "jobs.csv"), "--columns", str(tmp_path / "map.toml"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["user"] for row in rows] == ["Müller", "Möller", "Mäller"]
    assert rows[2]["duration_s"] is None


@pytest.mark.parametrize(
    ("header", "row", "found"),
    [
        ("job_id,submit_time,runtime_min,num_gpus,gpu_model", "1,1709539200000,5,2,t4",
         {"columns": {"submit": "submit_time", "duration": "runtime_min", "gpus": "num_gpus", "id": "job_id",
                      "ran_on": "gpu_model"}, "units": {"duration": "min", "time": "ms"}}),
        ("JobID|Submit|Elapsed|ReqGPUS|GPUType", "1|2024-03-04T08:00:00|00:10:00|2|t4",
         {"columns": {"submit": "Submit", "duration": "Elapsed", "gpus": "ReqGPUS", "id": "JobID", "ran_on": "GPUType"},
          "units": {"duration": "clock"}}),
        ("t_submit_ms;runtime_s;ngpu;gpu;cpu_milli;gpu_percent", "1709539200000;60;1;Tesla T4;4000;50",
         {"columns": {"submit": "t_submit_ms", "duration": "runtime_s", "gpus": "ngpu", "ran_on": "gpu"},
          "units": {"time": "ms"}}),
        ("arrival\tduration (h)\tGPUs\tnodes\tmem_MB", "0\t2\t1\t4\t100",
         {"columns": {"submit": "arrival", "duration": "duration (h)", "gpus": "GPUs", "node_count": "nodes",
                      "memory": "mem_MB"}, "units": {"duration": "h", "memory": "MB"}}),
    ],
)  # fmt: skip
def test_columns_are_known_by_their_names_and_cells(
    header: str, row: str, found: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "jobs.csv").write_text(f"{header}\n{row}\n{row}\n")
    proposal = propose(open_trace(str(tmp_path / "jobs.csv")))
    assert proposal.missing == ()
    assert {key: proposal.as_dict()[key] for key in ("columns", "units")} == found


def test_states_of_rows_that_never_ran_are_proposed_to_be_set_aside(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_bytes(TABLE.encode("latin-1"))
    text = as_toml(propose(open_trace(str(tmp_path / "jobs.csv"))), "jobs.csv")
    assert text.endswith('# [set_aside]\n# "Status" = ["abgebrochen"]\n')
    taken = text.replace('# [set_aside]\n# "Status"', '[set_aside]\n"Status"')
    _jobs, report = read(tmp_path, TABLE.encode("latin-1"), taken)
    assert sum(report.set_aside.values()) == 1


def test_too_many_bad_rows_are_sent_to_the_map(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"Fix them, leave out rows that did not run \(\[set_aside\] in the map\), or skip"
    ):
        read(
            tmp_path,
            "submit,gpus,duration\n0,1,\n",
            '[columns]\nsubmit = "submit"\ngpus = "gpus"\nduration = "duration"\n',
        )


def test_what_no_column_looks_like_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.csv").write_text("a,submit,c\x1b[31m\n1,2,3\n")
    assert run(["trace", "map", str(tmp_path / "jobs.csv")]) == 0
    answer = capsys.readouterr()
    assert '# gpus = ""    # missing: no column looks like it' in answer.out
    assert "no column looks like gpus or duration" in answer.err
    assert "\x1b[31m" not in answer.out


def test_units_are_split_from_names() -> None:
    assert split_unit("duration_min") == ("duration", "min")
    assert split_unit("Duration (sec)") == ("duration", "s")
    assert split_unit("gpus") == ("gpus", "")
    assert split_unit("node_list") == ("nodelist", "")


def test_a_proposal_is_toml_whatever_the_names_are(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text('submit,"a ""b""\x7f",duration,gpus\n1,2,3,4\n')
    text = as_toml(propose(open_trace(str(tmp_path / "jobs.csv"))), 'x"y\n.csv')
    jobs, _report = read(tmp_path, (tmp_path / "jobs.csv").read_text(), text)
    assert jobs.work.tolist() == [12]
