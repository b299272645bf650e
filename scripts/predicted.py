"""What predicted runtimes are worth to a scheduler: the tables of docs/prediction.md, "What it is worth".

    python scripts/predicted.py                         # all five traces: sjf, sjf-picky and adlro
    python scripts/predicted.py kth nasa -p sjf --write # some of them; put the rows into the document
    python scripts/predicted.py -p sjf --load 0.9 --windows 18
    python scripts/predicted.py --second-half --keep out/ --write      # the final table
    python scripts/predicted.py kth metacentrum --orders               # what an order is worth, by how good it is

Each trace is played at a load over its whole, cut into windows. Every window is run three times with each policy:
policies are told what users requested, what is predicted, and the truth. `predicted` is what `--estimates predicted`
does, and begins each window with nothing learnt. A job without a limit has the longest limit of its trace as the
user's estimate; `--estimates user` would tell the truth there. On NASA nobody has one: all jobs look alike.

--second-half takes the second half of the time of each trace alone, at loads of 0.9 and 1.1 over that half, in windows
of its own. p is of Wilcoxon's test over windows, and beside it with Holm's correction over the traces, for each policy
and load apart. --orders says what other orders than the limits' are worth to sjf, over the first halves. What lies in
the folder of --keep is not run again; delete a policy's files there to run it anew.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np

from adlro.core.tables import Floats
from adlro.decide.catalogue import find_policy
from adlro.experiment.compare import judge_run
from adlro.experiment.instance import Instance, draw
from adlro.experiment.scenario import load_scenario
from adlro.ingest.traces.tabulate import TraceOptions
from adlro.measure.statistics import holm, wilcoxon_p
from adlro.predict.following import SHORTEST_S, seconds_of, units_of

ROOT: Final = Path(__file__).parent.parent
TRACES: Final = os.environ.get("ADLRO_TRACES", str(ROOT.parent / "shared" / "traces"))
DOCUMENT: Final = ROOT / "docs" / "prediction.md"
MARK: Final = "worth"
FINAL_MARK: Final = "second half"

LOAD: Final = 1.0
FINAL_LOADS: Final = (0.9, 1.1)
FIRST_HALF: Final = "0:0.5"
SECOND_HALF: Final = "0.5:1"
ORDER_LOADS: Final = (0.8, 0.9, 1.0, 1.1)
ORDER_WINDOWS: Final = (4, 6, 8)
A_LITTLE: Final = 0.01
"""An exponent, or a spread, that decides between equal limits and leaves all others in their order."""
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
    windows_of_half: int = 12


PLACES: Final = {
    "supercloud": Place(
        "MIT SuperCloud",
        "supercloud.toml",
        "mit_supercloud_2021/slurm-log-queueing-clean_until_2021-03-04.csv.xz",
    ),
    "kth": Place("KTH", "kth_sp2.toml", "kth_sp2_1996/kth_sp2_until_20736000s.swf.xz"),
    "nasa": Place("NASA", "nasa_ipsc.toml", "nasa_ipsc_1993/NASA-iPSC-1993-3.1-cln.swf.xz"),
    # In a 24th of LCG, eleven hours from an empty cluster of 1,760 processors, hardly anybody waits.
    "lcg": Place("LCG", "lcg.toml", "lcg_2005/LCG.swf.xz", 8, 6),
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


def mean_jct(place: Place, policy: str, load: float, window: str | None = None) -> dict[str, Floats]:
    """Mean JCT in hours by source of estimates, one for each window of the trace, or of this part of it."""
    found: dict[str, Floats] = {}
    for source in SOURCES:
        asked = "predicted" if source == "predicted" else "oracle"
        scenario = load_scenario(
            str(ROOT / "examples" / place.cluster),
            f"{TRACES}/{place.trace}",
            estimates=asked,
            trace=TraceOptions(window=window),
            windows=place.windows,
            load=load,
        )
        jct = []
        for number in range(place.windows):
            instance = draw(scenario, number)
            told = as_users_say(instance) if source == "user" else instance
            judged = judge_run(told, find_policy(policy))
            if judged.unfinished:
                raise SystemExit(f"{place.title}, window {number}, {policy}: {judged.unfinished} jobs were left undone")
            jct.append(judged.jct_mean_s or np.nan)
        found[source] = np.array(jct) / HOUR_S
    return found


def kept(keep: Path | None, name: str, place: Place, policy: str, load: float, window: str | None) -> dict[str, Floats]:
    """As mean_jct; what is in the folder is read from there, and what is not is put there."""
    if keep is None:
        return mean_jct(place, policy, load, window)
    part = "whole" if window is None else "second-half"
    path = keep / f"{name}-{policy}-{part}-{load:g}-{place.windows}.json"
    if not path.exists():
        found = mean_jct(place, policy, load, window)
        keep.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({source: values.tolist() for source, values in found.items()}), encoding="utf-8")
    return {source: np.array(values) for source, values in json.loads(path.read_text(encoding="utf-8")).items()}


def rows(title: str, found: dict[str, dict[str, Floats]]) -> Iterator[str]:
    """The lines of a trace: means, how far apart, on how many windows it is better, and Wilcoxon's p over windows."""
    for name, by_source in found.items():
        user, predicted, oracle = (by_source[source] for source in SOURCES)
        better = int(np.count_nonzero(predicted < user))
        worse = int(np.count_nonzero(predicted > user))
        cells = [
            title,
            f"`{name}`",
            *(f"{values.mean():.3f}" for values in (user, predicted, oracle)),
            change(predicted, user),
            f"{better} / {worse}",
            as_p(p_over_windows(by_source)),
            change(predicted, oracle),
        ]
        yield f"| {' | '.join(cells)} |"


def p_over_windows(by_source: dict[str, Floats]) -> float:
    """Wilcoxon's p of the difference between predicted and users' estimates."""
    return float(wilcoxon_p((by_source["predicted"] - by_source["user"])[None, :])[0])


def as_p(p: float) -> str:
    """A p in three digits."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


Order = Callable[[Floats, Floats, np.random.Generator], Floats]
"""What is told, from the limits and the runtimes in s."""

ORDERS: Final[dict[str, Order]] = {
    "limit; ties broken at random": lambda limit, ran, rng: limit * np.exp(A_LITTLE * rng.standard_normal(len(ran))),
    "limit; ties broken by the truth": lambda limit, ran, rng: limit * ran**A_LITTLE,
    "truth, with a log-normal error of 2": lambda limit, ran, rng: ran * np.exp(2.0 * rng.standard_normal(len(ran))),
    "truth, with a log-normal error of 1": lambda limit, ran, rng: ran * np.exp(rng.standard_normal(len(ran))),
    "truth": lambda limit, ran, rng: ran,
}


def order_rows(place: Place) -> Iterator[str]:
    """What sjf gains and loses against users' limits with other orders, over loads and cuts of the first half."""
    policy, changes = find_policy("sjf"), dict.fromkeys(ORDERS, 0.0)
    better, worse = dict.fromkeys(ORDERS, 0), dict.fromkeys(ORDERS, 0)
    cluster, trace = str(ROOT / "examples" / place.cluster), f"{TRACES}/{place.trace}"
    for load, windows in product(ORDER_LOADS, ORDER_WINDOWS):
        options = TraceOptions(window=FIRST_HALF)
        scenario = load_scenario(cluster, trace, estimates="oracle", trace=options, windows=windows, load=load)
        drawn = [draw(scenario, number) for number in range(windows)]
        users = [as_users_say(instance) for instance in drawn]
        by_limit = np.array([judge_run(instance, policy).jct_mean_s for instance in users])
        for name, order in ORDERS.items():
            told = [told_as(mine, order, number) for number, mine in enumerate(users)]
            jct = np.array([judge_run(instance, policy).jct_mean_s for instance in told])
            changes[name] += jct.mean() / by_limit.mean() - 1
            better[name] += int(np.count_nonzero(jct < by_limit))
            worse[name] += int(np.count_nonzero(jct > by_limit))
    cuts = len(ORDER_LOADS) * len(ORDER_WINDOWS)
    for name in ORDERS:
        yield f"| {place.title} | {name} | {signed(changes[name] / cuts)} | {better[name]} / {worse[name]} |"


def told_as(users: Instance, order: Order, seed: int) -> Instance:
    """The same jobs with what an order makes of their limits and runtimes for estimates."""
    units = units_of(users.jobs.table)
    ran = np.maximum(seconds_of(users.jobs), SHORTEST_S)
    told = users.view.jobs.copy().view(np.recarray)
    told["estimate"] = units * order(users.jobs.table["estimate"] / units, ran, np.random.default_rng(seed))
    return replace(users, view=users.view._replace(jobs=told))


def final_rows(policy: str, load: float, found: dict[str, dict[str, Floats]]) -> Iterator[str]:
    """The lines of a policy and load, one for each trace, with Holm's correction over them."""
    p = [p_over_windows(by_source) for by_source in found.values()]
    for name, one, corrected in zip(found, p, holm(p), strict=True):
        user, predicted, oracle = (found[name][source] for source in SOURCES)
        better, worse = int(np.count_nonzero(predicted < user)), int(np.count_nonzero(predicted > user))
        cells = [
            PLACES[name].title,
            f"`{policy}`, {load:g}",
            *(f"{values.mean():.3f}" for values in (user, predicted, oracle)),
            change(predicted, user),
            f"{better} / {worse} of {len(user)}",
            as_p(one),
            as_p(corrected),
            change(oracle, user),
            change(predicted, oracle),
        ]
        yield f"| {' | '.join(cells)} |"


def change(ours: Floats, theirs: Floats) -> str:
    """The difference of two means in percent of the second."""
    return signed(float(ours.mean() / theirs.mean() - 1))


def signed(share: float) -> str:
    """A share in percent, with its sign."""
    return f"{100 * share:+.1f} %".replace("-", "−").replace("+0.0", "0.0").replace("−0.0", "0.0")


def write(lines: Sequence[str], mark: str = MARK) -> None:
    """Put these rows into the document, each in the place of the row of the same trace and policy."""
    text = DOCUMENT.read_text(encoding="utf-8")
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    before, rest = text.split(begin)
    table, after = rest.split(end)
    by_name = {tuple(line.split("|")[1:3]): line for line in table.splitlines() if line}
    by_name |= {tuple(line.split("|")[1:3]): line for line in lines}
    DOCUMENT.write_text(f"{before}{begin}{chr(10).join(by_name.values())}\n{end}{after}", encoding="utf-8")


def main() -> None:
    """Print the rows that are asked for."""
    parser = argparse.ArgumentParser(description='The table "What it is worth" of docs/prediction.md')
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(PLACES)}; none named: all")
    parser.add_argument("-p", "--policies", default=",".join(POLICIES), metavar="NAMES")
    parser.add_argument("--load", type=float, default=LOAD, metavar="X")
    parser.add_argument("--windows", type=int, metavar="N", help="windows of each trace; 1: the whole of it at once")
    parser.add_argument(
        "--second-half", action="store_true", help="the final table, over the second half of each trace"
    )
    parser.add_argument("--orders", action="store_true", help="what other orders are worth, over the first halves")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep results there, and run only what is missing")
    parser.add_argument("--json", action="store_true", help="print the mean JCT of every window")
    parser.add_argument("--write", action="store_true", help="put the rows into the document")
    options = parser.parse_args()
    for name in options.names:
        if name not in PLACES:
            parser.error(f"there is no '{name}'; there are {', '.join(PLACES)}")
    names, policies = options.names or list(PLACES), options.policies.split(",")
    if options.orders:
        for name in names:
            print("\n".join(order_rows(PLACES[name])), flush=True)
        return
    if options.second_half:
        for policy in policies:
            for load in FINAL_LOADS:
                halves = {name: replace(PLACES[name], windows=PLACES[name].windows_of_half) for name in names}
                found = {
                    name: kept(options.keep, name, place, policy, load, SECOND_HALF) for name, place in halves.items()
                }
                lines = list(final_rows(policy, load, found))
                print("\n".join(lines), flush=True)
                if options.write:
                    write(lines, FINAL_MARK)
        return
    for name in names:
        place = replace(PLACES[name], windows=options.windows or PLACES[name].windows)
        found = {policy: kept(options.keep, name, place, policy, options.load, None) for policy in policies}
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
