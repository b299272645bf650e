"""What predicted runtimes are worth to a scheduler: the tables of docs/prediction.md, "What it is worth".

    python scripts/predicted.py                         # all five traces: sjf, sjf-picky and adlro
    python scripts/predicted.py kth nasa -p sjf --write # some of them; put the rows into the document
    python scripts/predicted.py -p sjf --load 0.9 --windows 18

Each trace is played at a load over its whole, cut into windows. Every window is run three times with each policy:
policies are told what users requested, what is predicted, and the truth. `predicted` is what `--estimates predicted`
does, and begins each window with nothing learnt. A job without a limit has the longest limit of its trace as the
user's estimate; `--estimates user` would tell the truth there. On NASA nobody has one: all jobs look alike.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from adlro.core.tables import Floats
from adlro.decide.catalogue import find_policy
from adlro.decompose.following import units_of
from adlro.experiment import Instance, draw, judge, load_scenario
from adlro.measure.statistics import wilcoxon_p

ROOT: Final = Path(__file__).parent.parent
TRACES: Final = os.environ.get("ADLRO_TRACES", str(ROOT.parent / "shared" / "traces"))
DOCUMENT: Final = ROOT / "docs" / "prediction.md"
MARK: Final = "worth"

LOAD: Final = 1.0
POLICIES: Final = ("sjf", "sjf-picky", "adlro")
SOURCES: Final = ("user", "predicted", "oracle")
ALIKE_S: Final = 86_400.0
"""What a job is told to run where nobody has a limit."""

HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Place:
    """A trace and the cluster it is played on."""

    title: str
    cluster: str
    trace: str
    windows: int = 24


PLACES: Final = {
    "supercloud": Place(
        "MIT SuperCloud",
        "supercloud.toml",
        "mit_supercloud_2021/slurm-log-queueing-clean_until_2021-03-04.csv.xz",
    ),
    "kth": Place("KTH", "kth_sp2.toml", "kth_sp2_1996/kth_sp2_until_20736000s.swf.xz"),
    "nasa": Place("NASA", "nasa_ipsc.toml", "nasa_ipsc_1993/NASA-iPSC-1993-3.1-cln.swf.xz"),
    # In a 24th of LCG, eleven hours from an empty cluster of 1,760 processors, hardly anybody waits.
    "lcg": Place("LCG", "lcg.toml", "lcg_2005/LCG.swf.xz", 8),
    "metacentrum": Place("MetaCentrum", "metacentrum.toml", "metacentrum_wagap_2013/wagap-2013.swf.xz"),
}


def as_users_say(instance: Instance) -> Instance:
    """The same jobs with what users requested for estimates."""
    table = instance.jobs.table.copy().view(np.recarray)
    asked = np.isfinite(table["limit"])
    longest = float(table["limit"][asked].max()) if asked.any() else ALIKE_S
    table["estimate"] = np.where(asked, table["limit"], longest) * units_of(table)
    told = instance.view.jobs.copy().view(np.recarray)
    told["estimate"] = table["estimate"]
    return replace(instance, jobs=replace(instance.jobs, table=table), view=instance.view._replace(jobs=told))


def mean_jct(place: Place, policies: Sequence[str], load: float) -> dict[str, dict[str, Floats]]:
    """Mean JCT in hours by policy and source of estimates, one for each window."""
    found: dict[str, dict[str, Floats]] = {name: {} for name in policies}
    for source in SOURCES:
        asked = "predicted" if source == "predicted" else "oracle"
        scenario = load_scenario(
            str(ROOT / "examples" / place.cluster),
            f"{TRACES}/{place.trace}",
            estimates=asked,
            windows=place.windows,
            load=load,
        )
        instances = [draw(scenario, window) for window in range(place.windows)]
        if source == "user":
            instances = [as_users_say(instance) for instance in instances]
        for name in policies:
            policy = find_policy(name)
            jct = [judge(instance, policy).jct_mean_s or np.nan for instance in instances]
            found[name][source] = np.array(jct) / HOUR_S
    return found


def rows(title: str, found: dict[str, dict[str, Floats]]) -> Iterator[str]:
    """The lines of a trace: means, how far apart, on how many windows it is better, and Wilcoxon's p over windows."""
    for name, by_source in found.items():
        user, predicted, oracle = (by_source[source] for source in SOURCES)
        p = float(wilcoxon_p((predicted - user)[None, :])[0])
        better = int(np.count_nonzero(predicted < user))
        worse = int(np.count_nonzero(predicted > user))
        cells = [
            title,
            f"`{name}`",
            *(f"{values.mean():.3f}" for values in (user, predicted, oracle)),
            change(predicted, user),
            f"{better} / {worse}",
            "< 0.001" if p < 0.001 else f"{p:.3f}",
            change(predicted, oracle),
        ]
        yield f"| {' | '.join(cells)} |"


def change(ours: Floats, theirs: Floats) -> str:
    """The difference of two means in percent of the second."""
    return f"{100 * (ours.mean() / theirs.mean() - 1):+.1f} %".replace("-", "−")


def write(lines: Sequence[str]) -> None:
    """Put these rows into the document, each in the place of the row of the same trace and policy."""
    text = DOCUMENT.read_text(encoding="utf-8")
    begin, end = f"<!-- {MARK} -->\n", f"<!-- end of {MARK} -->"
    before, rest = text.split(begin)
    table, after = rest.split(end)
    kept = {tuple(line.split("|")[1:3]): line for line in table.splitlines() if line}
    kept |= {tuple(line.split("|")[1:3]): line for line in lines}
    DOCUMENT.write_text(f"{before}{begin}{chr(10).join(kept.values())}\n{end}{after}", encoding="utf-8")


def main() -> None:
    """Print the rows that are asked for."""
    parser = argparse.ArgumentParser(description='The table "What it is worth" of docs/prediction.md')
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(PLACES)}; none named: all")
    parser.add_argument("-p", "--policies", default=",".join(POLICIES), metavar="NAMES")
    parser.add_argument("--load", type=float, default=LOAD, metavar="X")
    parser.add_argument("--windows", type=int, metavar="N", help="windows of each trace; 1: the whole of it at once")
    parser.add_argument("--json", action="store_true", help="print the mean JCT of every window")
    parser.add_argument("--write", action="store_true", help="put the rows into the document")
    options = parser.parse_args()
    for name in options.names:
        if name not in PLACES:
            parser.error(f"there is no '{name}'; there are {', '.join(PLACES)}")
    for name in options.names or PLACES:
        place = replace(PLACES[name], windows=options.windows or PLACES[name].windows)
        found = mean_jct(place, options.policies.split(","), options.load)
        if options.json:
            by_policy = {
                policy: {source: values.tolist() for source, values in by_source.items()}
                for policy, by_source in found.items()
            }
            print(json.dumps({name: by_policy}), flush=True)
            continue
        lines = list(rows(place.title, found))
        print("\n".join(lines), flush=True)
        if options.write:
            write(lines)


if __name__ == "__main__":
    main()
