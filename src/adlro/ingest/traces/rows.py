"""What every reader returns: the rows of a piece of a trace, in our units, with invalid rows marked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from adlro.core.records import WHOLE_GPU
from adlro.core.tables import Floats

Mask: TypeAlias = npt.NDArray[np.bool_]
CodeColumn: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Labels:
    """A column of texts: the distinct texts, and the number of the text of each row."""

    codes: CodeColumn  # [R]
    texts: Any  # a sequence of str, or a pyarrow array of them where there may be as many as rows


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one piece. A number that the trace does not give is nan; a column that it does not have is None.

    `bad` rows are wrong; rows set `aside` are right but no jobs of their own (a step, a job that never ran).
    """

    line: CodeColumn  # [R] number among the lines that are not blank, from 1
    submit: Floats  # [R] s, on the trace's own clock
    duration: Floats  # [R] s for the whole gang on the reference model
    gpus: Floats  # [R]
    share: Floats | None = None  # thousandths of each GPU
    limit: Floats | None = None  # s that the user asked for
    estimate: Floats | None = None  # GPU-seconds, where a trace says so itself
    given: Mapping[str, Floats] = field(default_factory=dict)  # other amounts by their names in Job, such as cpus
    user: Labels | None = None
    name: Labels | None = None
    models: Labels | None = None  # allowed models with | between them
    sizes: Labels | None = None  # numbers of GPUs that it can run with, as in 1,2,4 or 1-8
    family: Labels | None = None
    types: Labels | None = None  # what the trace calls the GPUs that it ran on, with | between several
    places: Labels | None = None  # the nodes that it ran on, as a list of Slurm
    nodes: Floats | None = None  # how many they were
    column: Labels | None = None  # the column that was asked for by name
    id: Any = None  # pyarrow array; duplicates are dropped where there is one
    bad: Mapping[str, Mask] = field(default_factory=dict)
    aside: Mapping[str, Mask] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.line)


def first_told(first: Labels, other: Labels) -> Labels:
    """Two columns of labels as one: the first where it has a text, else the second."""
    texts = (*first.texts, *other.texts)
    is_told = np.array([bool(text) for text in first.texts], bool)[first.codes]
    return Labels(np.where(is_told, first.codes, len(first.texts) + other.codes), texts)


def whole_or_share(gpus: Floats, milli: Floats) -> Floats:
    """The share of each GPU: a part only of a single one."""
    return np.where((gpus == 1) & np.isfinite(milli), milli, WHOLE_GPU)


def nothing(count: int) -> Floats:
    """A column of unknown values (NaN)."""
    return np.full(count, np.nan)
