"""What jobs that can be resized could do at best, and at which size they ran: for the measures and the bounds."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from adlro.core.run import Run
from adlro.core.tables import STARTED, Floats, Ints, Table


class AtBest(NamedTuple):
    """How fast jobs could run. Jobs that can be resized have rows of their own after those of the kinds."""

    row: Ints  # [J] row of the two tables below
    fastest: Floats  # [K or more] the best rate at any size and place
    thrifty: Floats  # [K or more, H] the rate of as many GPUs as the job asked for, each as fast as at its best size


def at_best(run: Run) -> AtBest:
    """How fast each job could run; without jobs that can be resized, the rates of their kinds."""
    table, fastest = run.jobs.table, run.rate.max(axis=1)
    elastic = np.flatnonzero(table["shapes"])
    if not len(elastic):
        return AtBest(table["kind"], fastest, run.rate)
    row = table["kind"].astype(np.int32)
    blocks, firsts, block = np.unique(table["first_shape"][elastic], return_index=True, return_inverse=True)
    most, thrifty = np.zeros(len(blocks)), np.zeros((len(blocks), run.rate.shape[1]))
    for number, j in enumerate(elastic[firsts]):
        shapes = run.shapes[table["first_shape"][j] : table["first_shape"][j] + table["shapes"][j]]
        rates = run.rate[shapes["kind"]]
        most[number] = rates.max()
        thrifty[number] = (rates / shapes["gpus"][:, None]).max(axis=0) * table["gpus"][j]
    row[elastic] = len(run.rate) + block.ravel()
    return AtBest(row, np.append(fastest, most), np.vstack([run.rate, thrifty]))


def kinds_held(run: Run, held: Table, rows: npt.NDArray[np.intp]) -> Ints:
    """The kind of each of these stretches (the first part of each), at the size that the job had then."""
    table = run.jobs.table
    kind: Ints = table["kind"][held["job"][rows]]
    if not len(run.shapes):
        return kind
    # Stretches are by job, then by time; the parts of a gang follow each other.
    start = np.cumsum(held["began"] == STARTED) - 1
    size = np.bincount(start, np.bitwise_count(held["mask"])).astype(np.int64)[start]
    kind = kind.copy()
    for at, i in enumerate(rows):
        job = table[held["job"][i]]
        shapes = run.shapes[job["first_shape"] : job["first_shape"] + job["shapes"]]
        kind[at : at + 1] = shapes["kind"][shapes["gpus"] == size[i]] if len(shapes) else kind[at]
    return kind
