"""The collected traces, whole, where they lie beside the repository: counts and quantiles as published with them."""

from pathlib import Path

import numpy as np
import pytest

from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.speeds import speed_of
from adlro.core.plan import plan_cluster
from adlro.experiment.traces import read_trace
from adlro.ingest.traces.tabulate import TraceOptions
from adlro.normalise.pack import pack

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the collected traces are not beside the repository")

FILES = {
    # file: format, rows, kept, p50, p90 and p99 of the durations if the whole of the file was summed up
    "philly/philly_until_2017-10-31.csv.xz": ("philly", 52_849, 52_849, (1486, 10_536, 268_916)),
    "philly/philly_all_sizes_until_6741180s.csv.xz": ("philly-sizes", 66_992, 66_992, None),
    "alibaba_gpu_v2023/openb_pod_list_default_until_12000000s.csv.xz": ("openb", 5075, 4619, None),
    "alibaba_gpu_v2023/openb_pod_list_gpuspec33_until_12000000s.csv.xz": ("openb", 5075, 4619, None),
    "alibaba_gpu_v2025_dlrm/disaggregated_DLRM_trace_until_1555200s.csv.xz": ("dlrm", 14_797, 14_797, None),
    "mit_supercloud_2021/slurm-log-queueing-clean_until_2021-03-04.csv.xz": ("supercloud", 8000, 8000, None),
    "kth_sp2_1996/kth_sp2_until_20736000s.swf.xz": ("swf", 20_359, 20_359, None),
    "nasa_ipsc_1993/NASA-iPSC-1993-3.1-cln.swf.xz": ("swf", 18_239, 18_239, (86, 1479, 10_932)),
    "lcg_2005/LCG.swf.xz": ("swf", 188_041, 188_041, (255, 15_265, 172_800)),
    "theta_2022/theta_2022.swf.xz": ("swf", 23_911, 23_911, (3562, 21_629, 85_403)),
    "metacentrum_wagap_2013/wagap-2013.swf.xz": ("swf", 17_900, 17_898, None),
    "nrel_eagle_sample/sample_eagle_data.csv.xz": ("nrel", 1000, 1000, (14_010, 14_750, 99_831)),
    "lublin_256/lublin_256.swf.xz": ("swf", 10_000, 10_000, (137, 15_578, 36_138)),
    "sia_workloads/philly/workload-1.csv": ("sia", 160, 160, None),
    "gavel_physical/max_min_fairness.trace": ("gavel", 96, 96, None),
}


@pytest.mark.parametrize("name", FILES)
def test_the_whole_file_is_read_and_nothing_is_lost_without_a_reason(name: str) -> None:
    format_name, rows, kept, quantiles = FILES[name]
    jobs, report = read_trace(str(TRACES / name), TraceOptions())
    assert (report.format, report.rows, report.kept) == (format_name, rows, kept)
    assert rows == kept + sum(report.dropped.values()) + sum(report.set_aside.values())
    if quantiles:
        table = jobs.table
        duration = jobs.work / np.maximum(1, table["gpus"] * (table["share"] / 1000))
        assert np.percentile(duration, (50, 90, 99)) == pytest.approx(quantiles, rel=1e-3)


def test_supercloud_has_1029_jobs_with_gpus_and_902_of_them_have_one() -> None:
    jobs, _report = read_trace(str(TRACES / next(name for name in FILES if "supercloud" in name)), TraceOptions())
    gpus = jobs.table["gpus"]
    assert np.count_nonzero(gpus) == 1029
    assert np.count_nonzero(gpus == 1) == 902
    assert gpus.max() == 16


def test_every_list_of_sia_and_gavel_is_tied_to_measured_families() -> None:
    for path in [*TRACES.glob("sia_workloads/*/*.csv"), *TRACES.glob("gavel_physical/*.trace")]:
        jobs, report = read_trace(str(path), TraceOptions())
        assert report.dropped == {}
        assert all(name.startswith(("sia/", "gavel/")) for name in jobs.families)


def test_188041_jobs_of_one_log_are_read_and_packed() -> None:
    jobs, report = read_trace(str(TRACES / "lcg_2005/LCG.swf.xz"), TraceOptions())
    view = pack(plan_cluster(load_cluster("paper16")), jobs, speed_of)
    assert (report.rows, len(jobs), len(view.runs)) == (188_041, 188_041, 188_041)
