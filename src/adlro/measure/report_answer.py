"""The top of the report: the answer in words, how sure it is, warnings and tiles."""

from html import escape

from adlro.measure.numbers import change, mean_count, number, percent, unit_for
from adlro.measure.plots_policies import Detail, Result, ranked
from adlro.measure.statistics import against, fewest_seeds


def unit_of(result: Result) -> str:
    """What is repeated: seeds, or windows of a trace."""
    return "window" if result.get("windows") else "seed"


def several(count: int, word: str) -> str:
    """A number with its noun."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def subtitle(result: Result) -> str:
    """What was compared on what."""
    jobs = (result.get("settings") or {}).get("jobs")
    parts = [f"{result['workload']} on {result['cluster']}"]
    parts += [several(len(result["policies"]), "policy").replace("policys", "policies")]
    parts += [several(len(result["seeds"]), unit_of(result))]
    if jobs:
        parts.append(several(jobs, "job") if len(result["seeds"]) == 1 else f"up to {several(jobs, 'job')} in each")
    return " · ".join(parts)


def finishers(result: Result) -> list[str]:
    """The policies that left no job over, best mean completion time first."""
    return [
        name
        for name in ranked(result)
        if not result["policies"][name]["unfinished"] and result["policies"][name]["jct_mean_s"] is not None
    ]


def answer(result: Result, detail: Detail) -> str:
    """Which policy served users best, by how much, and how sure that is."""
    best = next(iter(finishers(result)), None)
    if best is None:
        lead = "No policy finished all jobs, so none can be called best."
        return f'<div class="answer"><p class="lead">{escape(lead)}</p></div>'
    policies, base = result["policies"], result["baseline"]
    ours, theirs = policies[best], policies[base]
    seconds, unit = unit_for([ours["jct_mean_s"]])
    mean = f"{number(ours['jct_mean_s'], seconds)} {unit}"
    if best == base:
        others = "nothing was compared with it" if len(policies) == 1 else "none of the others was faster on average"
        lead = (
            f"<strong>{escape(best)}</strong>, the baseline, served users best: a job took {mean} on average; {others}."
        )
        if len(policies) > 1 and _alike(result):
            lead = (
                f"No policy served users better than another: under all {len(policies)} a job took {mean} on average."
            )
        lines = [close_ones(result, best)] if len(result["seeds"]) > 1 else [one_run(result)]
    else:
        by = change(ours["jct_mean_s"], theirs["jct_mean_s"]).lstrip("−+").replace(" ", "\u00a0")
        lead = (
            f"<strong>{escape(best)}</strong> served users best: a job took {mean} from submission to finish on "
            f"average, <strong>{by} less</strong> than under {escape(base)} "
            f"({number(theirs['jct_mean_s'], seconds)} {unit})."
        )
        lines = [how_sure(result, best), close_ones(result, best)]
    lines += warnings_of(result)
    text = "".join(f"<p>{line}</p>" for line in lines if line)
    return f'<div class="answer"><p class="lead">{lead}</p>{text}</div>\n{tiles(result, best)}'


def how_sure(result: Result, best: str) -> str:
    """Whether the best policy is shown to differ from the baseline, with the interval."""
    found = result["policies"][best]["against"]["jct_mean_s"]
    seeds, word = len(result["seeds"]), unit_of(result)
    compared = len(result["policies"]) - 1
    if found["interval"] is None:
        return one_run(result)
    seconds, unit = unit_for([abs(found["difference"])])
    low, high = (signed(number(edge, seconds)) for edge in found["interval"])
    interval = f"The difference lies between {low} and {high} {unit} (95 % interval over {several(seeds, word)})."
    if found["verdict"] == "too few seeds":
        need = fewest_seeds(compared)
        needed = f"{several(compared, 'comparison')} need{'s' if compared == 1 else ''} {need}"
        return f"How sure? {interval} That is too few to call it significant: {needed}."
    p = found["wilcoxon_p_holm"]
    test = f"Wilcoxon's signed-rank test, p = {p:.2g} after Holm's correction for {several(compared, 'comparison')}"
    if found["significant"]:
        return f"How sure? <strong>Significant</strong> ({test}). {interval}"
    return f"How sure? <strong>Not shown</strong>: it may be chance ({test}). {interval} More {word}s may tell."


def one_run(result: Result) -> str:
    """That one run does not say how sure a difference is, and what would."""
    if len(result["policies"]) == 1:
        return ""
    need = fewest_seeds(len(result["policies"]) - 1)
    what = f"cut the trace with --windows {need} or more" if result.get("trace") else f"take {need} seeds or more"
    return f"How sure? One {unit_of(result)} cannot tell, for there is no spread to judge by: {what}."


def _alike(result: Result) -> bool:
    """Whether all policies came to the same mean completion time."""
    found = [each["jct_mean_s"] for each in result["policies"].values()]
    return None not in found and max(found) - min(found) <= 1e-4 * max(found)


def close_ones(result: Result, best: str) -> str:
    """Which other policies may be as good as the best."""
    per_seed = {name: {"jct": each["per_seed"]["jct_mean_s"]} for name, each in result["policies"].items()}
    per_seed = {name: per_seed[name] for name in finishers(result)}
    if len(per_seed) < 2 or len(result["seeds"]) < 2:
        return ""
    found = {name: each["jct"] for name, each in against(per_seed, best).items()}
    close = [name for name in found if (each := found[name]) and each.verdict == "no difference shown"]
    if any(each and each.verdict == "too few seeds" for each in found.values()):
        return ""
    if not close:
        return f"Every other policy is shown to be slower than {escape(best)}."
    names = ", ".join(f"{escape(name)} ({change_of(result, name, best)})" for name in close[:6])
    more = f" and {len(close) - 6} more" if len(close) > 6 else ""
    return f"Not shown to differ from {escape(best)}: {names}{more}."


def change_of(result: Result, name: str, base: str) -> str:
    """The change of the mean completion time."""
    return change(result["policies"][name]["jct_mean_s"], result["policies"][base]["jct_mean_s"])


def warnings_of(result: Result) -> list[str]:
    """What makes the answer less than it seems."""
    policies = result["policies"]
    lines = []
    base = policies[result["baseline"]]
    if base["wait_mean_s"] is not None and base["jct_mean_s"] and base["wait_mean_s"] < 0.01 * base["jct_mean_s"]:
        lines.append(
            f"Jobs hardly waited under {escape(result['baseline'])}: the cluster was not full, so there was little to "
            "decide."
        )
    left = [name for name in policies if policies[name]["unfinished"]]
    if left:
        lines.append(f"Left jobs unfinished, and so ranked last: {escape(', '.join(left))}.")
    refused = max((each["refused"] or 0.0 for each in policies.values()), default=0.0)
    if refused:
        each = "" if len(result["seeds"]) == 1 else f" of a {unit_of(result)}, on average,"
        lines.append(
            f"{mean_count(refused)} jobs{each} can never run on this cluster and were refused; the reasons are below."
        )
    illegal = [name for name in policies if policies[name]["illegal"]]
    if illegal:
        lines.append(f"Illegal choices were made by {escape(', '.join(illegal))}.")
    return lines


def tiles(result: Result, best: str) -> str:
    """Four numbers of the best policy beside the baseline's."""
    ours, theirs = result["policies"][best], result["policies"][result["baseline"]]
    cells = []
    for key, label in (
        ("jct_mean_s", "mean completion time"), ("jct_p95_s", "slowest 5 % take at least"),
        ("wait_mean_s", "mean wait"), ("effective_utilisation", "effective utilisation"),
    ):  # fmt: skip
        value, base = ours[key], theirs[key]
        if key.endswith("_s"):
            seconds, unit = unit_for([value, base])
            shown_value, shown_base = f"{number(value, seconds)} {unit}", f"{number(base, seconds)} {unit}"
        else:
            shown_value, shown_base = f"{percent(value)} %", f"{percent(base)} %"
        beside = "" if best == result["baseline"] else f"<small>{escape(result['baseline'])}: {shown_base}</small>"
        cells.append(f'<div class="tile"><dt>{label}</dt><dd>{shown_value}{beside}</dd></div>')
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def signed(text: str) -> str:
    """A number with its sign; nothing has none."""
    if not text.strip("-0.,"):
        return "0"
    return text.replace("-", "−") if text.startswith("-") else f"+{text}"
