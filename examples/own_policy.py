"""Two policies of one's own: a compiled score, and a choice in plain Python.

adlro compare --policies fcfs,sjf,examples/own_policy.py:response_ratio,examples/own_policy.py:largest_gang
"""

from typing import Any

from adlro.core.compiled import compiled
from adlro.core.policy import starting, waiting
from adlro.core.tables import Choice, View
from adlro.decide.choosing import Pair, legal_pairs


@compiled
def response_ratio(job: Any, site: Any, pair: Pair, now: float) -> float:
    """The pair with the largest (wait + runtime) / runtime: short jobs first, but nobody waits for ever."""
    return 1.0 + (now - job.submit) / max(pair.runtime_s, 1.0)


def largest_gang(view: View) -> Choice:
    """Of the legal pairs, the one with most GPUs; of equal ones that which ends soonest."""
    pairs, known = legal_pairs(view)
    if not len(pairs):
        return waiting()
    gpus, runtime_s = view.jobs.gpus[pairs[:, 0]], known[:, 0]
    best = min(range(len(pairs)), key=lambda i: (-gpus[i], runtime_s[i]))
    return starting(*pairs[best])
