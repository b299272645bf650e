"""The workload file: what a synthetic workload may say, and what it means when it says nothing.

Every key is described for users in docs/workloads.md.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from adlro.core.records import WHOLE_GPU, Job
from adlro.core.schema import properties_of
from adlro.core.sizes import wrong_with_sizes
from adlro.core.toml import Schema, model_field, model_with, parse_toml

Seconds = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]

MAX_GANG: Final = 4096
MAX_INT: Final = 2**31 - 1

DISTRIBUTION_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "lognormal": ("median_s", "sigma"),
    "weibull": ("scale_s", "shape"),
    "exponential": ("mean_s",),
    "fixed": ("value_s",),
    "loguniform": ("pieces",),
    "quantiles": ("at", "seconds"),
}
"""The keys that a distribution needs; the others' keys are refused."""

PROCESS_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "poisson": ("mean_interarrival_s",),
    "diurnal": ("mean_interarrival_s", "day_swing", "weekend_factor", "peak_hour"),
    "bursty": ("mean_interarrival_s", "burst_size_mean", "burst_spread_s"),
    "all-at-once": (),
}
"""The keys that an arrival process knows."""


class Piece(Schema):
    """One part of a loguniform distribution: the logarithm is uniform between low_s and high_s."""

    weight: Weight = 1.0
    low_s: Seconds
    high_s: Seconds

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        if self.low_s > self.high_s:
            raise ValueError(f"low_s is {self.low_s:g}, above high_s = {self.high_s:g}; expected low_s <= high_s")
        return self


class Duration(Schema):
    """How long jobs run on GPUs of the reference model; what a distribution does not use stays at its default."""

    distribution: Literal["lognormal", "weibull", "exponential", "fixed", "loguniform", "quantiles"]
    median_s: Seconds = 600.0
    sigma: float = Field(default=1.0, ge=0, le=5)
    scale_s: Seconds = 600.0
    shape: float = Field(default=1.0, ge=0.1, le=20)
    mean_s: Seconds = 600.0
    value_s: Seconds = 600.0
    pieces: list[Piece] = Field(default=[])
    at: list[Annotated[float, Field(ge=0, le=1)]] = Field(default=[])
    seconds: list[Seconds] = Field(default=[])
    min_s: Seconds = 1.0
    max_s: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _says_what_its_distribution_needs(self) -> Self:
        needed = DISTRIBUTION_KEYS[self.distribution]
        given = self.model_fields_set - {"distribution", "min_s", "max_s"}
        for key in (key for key in needed if key not in given):
            raise ValueError(f"{key} is missing; a {self.distribution} distribution needs {' and '.join(needed)}")
        for key in sorted(given - set(needed)):
            raise ValueError(f"{key} has no meaning for a {self.distribution} distribution; it takes {_and(needed)}")
        if self.max_s is not None and self.max_s < self.min_s:
            raise ValueError(f"max_s is {self.max_s:g}, below min_s = {self.min_s:g}; expected min_s <= max_s")
        if self.distribution == "loguniform":
            _need_a_weight((piece.weight for piece in self.pieces), "pieces")
        if self.distribution == "quantiles":
            self._check_quantiles()
        return self

    def _check_quantiles(self) -> None:
        if len(self.at) != len(self.seconds):
            raise ValueError(
                f"'at' has {len(self.at)} values and 'seconds' {len(self.seconds)}; expected equal numbers"
            )
        if len(self.at) < 2 or self.at[0] != 0 or self.at[-1] != 1 or any(a >= b for a, b in pairwise(self.at)):
            raise ValueError(f"'at' is {self.at}; expected values that rise from 0 to 1")
        if any(low > high for low, high in pairwise(self.seconds)):
            raise ValueError(f"'seconds' is {self.seconds}; expected values that do not fall")


class JobClass(NamedTuple):
    """A row of `classes`: what one kind of job asks for, and how often it was seen."""

    gpus: Annotated[int, Field(ge=0, le=MAX_GANG)]
    share: Annotated[int, Field(ge=0, le=WHOLE_GPU)]  # thousandths of each GPU; 1000 unless gpus is 1
    cpu_milli: Annotated[int, Field(ge=0, le=MAX_INT)]
    memory_mib: Annotated[int, Field(ge=0, le=MAX_INT)]
    models: str  # allowed models with | between them; empty: any
    seen: Weight


def _one_or_more(value: object) -> object:
    """A single text as a list of one."""
    return [value] if isinstance(value, str) else value


def _gang_sizes(value: object) -> object:
    return _whole_keys(value, "number of GPUs", MAX_GANG)


def _shares(value: object) -> object:
    return _whole_keys(value, "share in thousandths of a GPU", WHOLE_GPU)


def _whole_keys(value: object, what: str, most: int) -> object:
    """The same table with numbers for keys, which in TOML are always text."""
    if not isinstance(value, dict):
        return value
    table: dict[int, Any] = {}
    for key, weight in value.items():
        text = str(key)
        if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= most):
            raise ValueError(f"{text!r} is not a {what}; expected a whole number from 1 to {most}")
        table[int(text)] = weight
    return table


IN_FAMILIES: Final = tuple(each for each in properties_of(Job) if each.in_workload)
"""Properties that all jobs of a part of the mix have alike."""

Alike: Any = model_with("Alike", Schema, {each.name: model_field(each) for each in IN_FAMILIES})


class WorkloadPart(Alike):  # type: ignore[misc]  # its fields come from Job
    """One part of the mix: jobs of a family (or several, in equal parts), their sizes and durations."""

    family: Annotated[list[str], BeforeValidator(_one_or_more), Field(min_length=1)]
    weight: Weight = 1.0
    duration: Duration
    gpus: Annotated[dict[int, Weight], BeforeValidator(_gang_sizes)] = Field(default={1: 1.0})
    share: Annotated[dict[int, Weight], BeforeValidator(_shares)] = Field(default={WHOLE_GPU: 1.0})
    cpus_per_gpu: float = Field(default=4.0, ge=0, le=1024)
    memory_gb_per_gpu: float = Field(default=16.0, ge=0, le=16384)
    models: list[str] = Field(default=[])
    sizes: str = ""  # the numbers of GPUs that its jobs can run with
    classes: list[JobClass] = Field(default=[])
    checkpoint_s: float | None = Field(default=None, ge=0)
    limit_factor: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _sizes_make_sense(self) -> Self:
        _need_a_weight(self.gpus.values(), "gpus")
        if self.sizes and (wrong := wrong_with_sizes(self.sizes)):
            raise ValueError(wrong)
        if self.sizes and (set(self.share) != {WHOLE_GPU} or any(row.share != WHOLE_GPU for row in self.classes)):
            raise ValueError("sizes are for jobs on whole GPUs; remove sizes, or the shares")
        _need_a_weight(self.share.values(), "share")
        twice = {"gpus", "share", "cpus_per_gpu", "memory_gb_per_gpu", "models"} & self.model_fields_set
        if self.classes and twice:
            raise ValueError(f"classes replace {_and(sorted(twice))}; remove one of the two")
        if "classes" in self.model_fields_set:
            _need_a_weight((row.seen for row in self.classes), "classes")
        for number, row in enumerate(self.classes):
            if row.gpus > 1 and row.share != WHOLE_GPU:
                raise ValueError(f"classes[{number}] asks for {row.share}/1000 of {row.gpus} GPUs; expected 1000")
            if row.gpus == 1 and row.share == 0:
                raise ValueError(f"classes[{number}] asks for 0/1000 of a GPU; expected 1 to 1000")
        return self


class Arrivals(Schema):
    """When jobs come; keys of another process are refused."""

    process: Literal["poisson", "diurnal", "bursty", "all-at-once"]
    mean_interarrival_s: Seconds = 300.0
    day_swing: float = Field(default=0.5, ge=0, le=1)
    weekend_factor: float = Field(default=0.5, ge=0, le=10)
    peak_hour: float = Field(default=14.0, ge=0, lt=24)
    burst_size_mean: float = Field(default=10.0, ge=1)
    burst_spread_s: float = Field(default=60.0, ge=0)

    @model_validator(mode="after")
    def _keys_belong_to_the_process(self) -> Self:
        known = PROCESS_KEYS[self.process]
        for key in sorted(self.model_fields_set - {"process", *known}):
            takes = f"it takes {_and(known)}" if known else "remove it"
            raise ValueError(f"{key} has no meaning for process = {self.process!r}; {takes}")
        return self


class Priorities(Schema):
    """Values with weights, or a beta distribution."""

    values: list[Annotated[float, Field(ge=0, le=1)]] = Field(default=[0.5], min_length=1)
    weights: list[Weight] = Field(default=[])
    beta: list[Annotated[float, Field(gt=0)]] = Field(default=[], max_length=2)

    @model_validator(mode="after")
    def _said_in_one_way(self) -> Self:
        if self.beta and {"values", "weights"} & self.model_fields_set:
            raise ValueError("beta and values exclude each other; remove one of the two")
        if len(self.beta) == 1:
            raise ValueError("beta has one number; expected two, as in beta = [2.0, 5.0]")
        if self.weights:
            _need_a_weight(self.weights, "weights")
            if len(self.weights) != len(self.values):
                raise ValueError(f"{len(self.weights)} weights for {len(self.values)} values; expected equal numbers")
        return self


class Users(Schema):
    """Who submits, and how often somebody submits the same thing again."""

    count: int = Field(default=20, ge=1, le=1_000_000)
    zipf: float = Field(default=1.0, ge=0, le=5)
    recurrence: float = Field(default=0.5, ge=0, lt=1)
    scatter: float = Field(default=0.2, ge=0, le=1)


class Estimates(Schema):
    """What policies are told about the work."""

    source: Literal["oracle", "lognormal", "limit", "predicted"] = "oracle"
    sigma: float = Field(default=0.0, ge=0, le=5)

    @model_validator(mode="after")
    def _an_oracle_does_not_err(self) -> Self:
        if self.source == "oracle" and self.sigma > 0:
            raise ValueError("an oracle has no error; set source = 'lognormal' or 'limit', or remove sigma")
        return self


class Surge(Schema):
    """More jobs of one family for a while, on top of the others."""

    family: str
    start_fraction: float | None = Field(default=None, ge=0, le=1)
    start_s: float | None = Field(default=None, ge=0)
    duration_s: Seconds
    rate_factor: float = Field(ge=1, le=1000)

    @model_validator(mode="after")
    def _starts_once(self) -> Self:
        if (self.start_fraction is None) == (self.start_s is None):
            raise ValueError("expected either start_fraction (0 to 1) or start_s, not both")
        return self


class Workload(Schema):
    """A synthetic workload: how jobs arrive, what they are, and what is known of them."""

    name: str = Field(min_length=1)
    summary: str = ""
    jobs: int = Field(default=1000, ge=1, le=100_000_000)
    arrivals: Arrivals
    families: list[WorkloadPart] = Field(min_length=1)
    priorities: Priorities = Priorities()
    users: Users = Users()
    estimates: Estimates = Estimates()
    surge: Surge | None = None

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        _need_a_weight((part.weight for part in self.families), "families")
        if self.estimates.source == "limit":
            for part in (part for part in self.families if part.limit_factor is None):
                raise ValueError(f"estimates.source is 'limit', but {part.family[0]!r} has no limit_factor; add one")
        if self.surge is not None:
            known = sorted({name for part in self.families if part.weight > 0 for name in part.family})
            if self.surge.family not in known:
                raise ValueError(f"surge.family is {self.surge.family!r}; expected one of {', '.join(known)}")
            if self.arrivals.process == "all-at-once":
                raise ValueError("a surge needs jobs that arrive over time; with 'all-at-once' remove [surge]")
        return self


def load_workload(text: str, where: str) -> Workload:
    """The workload that a TOML text describes; `where` names the text in errors."""
    return parse_toml(text, where, Workload)


def _need_a_weight(weights: Iterable[float], what: str) -> None:
    if not any(weights):
        raise ValueError(f"nothing in {what} has a weight; expected at least one above 0")


def _and(keys: Iterable[str]) -> str:
    return " and ".join(keys)
