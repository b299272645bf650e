"""How fast a family runs at a placing: from a measured table where there is one, else from the datasheet.

A speed is for one GPU of the job, relative to one GPU of the reference model running the same family alone.
"""

import csv
import io
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from math import inf, log
from typing import Final, final

from adlro.catalogue.families import REFERENCE, Family, Mix, find_family, is_family
from adlro.catalogue.gpus import gpu_models
from adlro.core.errors import CatalogueError
from adlro.core.records import MEASURED, MODELLED, GpuModel, Placing, Speed, SpeedOf
from adlro.core.toml import read_text

REFERENCE_LINK_GB_S: Final = 300.0
"""NVLink2 of the reference model, both directions summed."""

_TABLES: Final = {
    "gavel": "Gavel, OSDI 2020",
    "sia": "Sia, SOSP 2023",
    "sia-fixed": "Sia, SOSP 2023, fixed global batch",
    "sia-adapted": "Sia, SOSP 2023, goodput",
}
"""The measured tables, with what the detail of a speed calls them."""

SAME_CHIP: Final = {"v100-sxm2-32gb": "v100-sxm2-16gb"}
"""Models that take the measured rows of another: the same chip, clocks and link, with more memory."""

_NEEDED_FIGURE: Final = {
    "fp64": ("FP64", "fp64_tflops"),
    "fp32": ("FP32", "fp32_tflops"),
    "tensor": ("FP16", "fp16_tensor_tflops"),
}


UNKNOWN_FAMILY: Final = "uniform"
"""A job whose family is not in the catalogue gets the speeds of this one: the same on every model."""


def for_every_family(speed: SpeedOf) -> SpeedOf:
    """Speeds that also have an answer for a family that the catalogue does not have."""

    def speed_here(family: str, placing: Placing) -> Speed:
        try:
            return speed(family, placing)
        except CatalogueError:
            return speed(UNKNOWN_FAMILY, placing)

    return speed_here


@lru_cache(maxsize=65536)
def speed_of(family: str, placing: Placing) -> Speed:
    """Speed of one GPU of a job of this family at this placing, with its source."""
    if placing.gpus == 0:
        return Speed(1.0, MODELLED, "a job without GPUs runs at rate 1 everywhere")
    if placing.model is None:
        return Speed(0.0, MODELLED, "there are no GPUs here")
    kind = find_family(family)
    if kind.same_everywhere:
        return Speed(1.0, MODELLED, "declared to be the same on every GPU")
    rows = _measured().get((kind.name, SAME_CHIP.get(placing.model.name, placing.model.name)))
    return _from_table(kind, placing, rows) if rows else _from_datasheet(kind, placing, placing.model)


@lru_cache(maxsize=65536)
def datasheet_speed(family: str, placing: Placing) -> Speed:
    """Like `speed_of`, but always by the datasheet: what is known before anything has been measured."""
    if placing.gpus == 0 or placing.model is None:
        return speed_of(family, placing)
    return _from_datasheet(find_family(family), placing, placing.model)


def roofline(family: Family, model: GpuModel) -> Speed:
    """Speed of one GPU alone by its datasheet: each part of the time shrinks as the peak that bounds it grows."""
    time = 0.0
    for bound in ("fp64", "fp32", "tensor", "bandwidth"):
        share: float = getattr(family.mix, bound)
        if share == 0:
            continue
        peak, reference = _peak(model, bound), _peak(gpu_models()[REFERENCE], bound)
        if peak is None or reference is None:
            what, key = _NEEDED_FIGURE[bound]
            return Speed(0.0, MODELLED, f"no {what} figure for {model.title}: add a [gpus.NAME] table with {key}")
        time += share * reference / peak
    return Speed(1 / time, MODELLED, f"roofline of {model.title} against the reference model")


def bandwidth_used(family: str, model: GpuModel, speed: float) -> float | None:
    """Share of the memory bandwidth of a GPU that a job uses at this speed of one GPU; None if its family says nothing.

    As in the roofline: on the reference model the bandwidth is wholly in use for the share of the time that it bounds.
    """
    kind = find_family(family)
    if kind.same_everywhere:
        return None
    needed_gb_s = kind.mix.bandwidth * gpu_models()[REFERENCE].memory_bandwidth_gb_s * speed
    return min(1.0, needed_gb_s / model.memory_bandwidth_gb_s)


def bound_profiles(models: Sequence[GpuModel], family: str) -> list[list[float]]:
    """How jobs that one unit bounds differ from a family: by bound and model, log of their speed over the family's.

    The last row is a job that is as fast on every model. A model without the figure is as fast as the family is there.
    """
    own = [roofline(find_family(family), model).value or 1.0 for model in models]
    rows = []
    for mix in (Mix(fp32=1.0), Mix(tensor=1.0), Mix(bandwidth=1.0)):
        kind = Family("", "", mix, 0.0)
        speeds = [roofline(kind, model).value for model in models]
        rows.append([log(speed / mine) if speed > 0 else 0.0 for speed, mine in zip(speeds, own, strict=True)])
    return [*rows, [-log(mine) for mine in own]]


def communication_factor(family: Family, placing: Placing) -> float:
    """What is left of a GPU's speed when the job communicates; 1 alone, and never above 1.

    Across nodes the data pass the link in the node and the network: the slower one counts.
    """
    if placing.gpus == 1:
        return 1.0
    gb_s = placing.link.gb_s if placing.nodes == 1 else min(placing.link.gb_s, placing.network.gb_s)
    share = family.communication
    return min(1.0, 1 / ((1 - share) + share * REFERENCE_LINK_GB_S / gb_s))


def _from_datasheet(family: Family, placing: Placing, model: GpuModel) -> Speed:
    """The roofline, slowed by communication."""
    alone = roofline(family, model)
    factor = communication_factor(family, placing)
    detail = alone.detail if factor == 1 else f"{alone.detail}, {factor:.2f} of it left by communication"
    return Speed(alone.value * factor, MODELLED, detail)


def _from_table(family: Family, placing: Placing, rows: dict[bool, dict[int, float]]) -> Speed:
    """The measured speed of the most GPUs measured up to this number; what was not measured is modelled on top."""
    table = _TABLES[family.name.split("/")[0]]
    across = placing.nodes > 1 and min(rows.get(True, {}), default=placing.gpus + 1) <= placing.gpus
    measured = rows[across]
    counts = sorted(measured)
    place = bisect_right(counts, placing.gpus)
    if place == 0:
        return Speed(0.0, MEASURED, f"{table}: it never ran on fewer than {counts[0]} of these GPUs")
    gpus = counts[place - 1]
    value = measured[gpus] * roofline(family, gpu_models()[family.anchor]).value
    detail = f"{table}: {gpus} GPU{'s' if gpus > 1 else ''} {'across nodes' if across else 'on one node'}"
    if gpus < placing.gpus:
        detail += f", the most measured up to {placing.gpus}"
    if family.anchor != REFERENCE:
        detail += f", relative to {gpu_models()[family.anchor].title}, whose own speed is modelled"
    if value == 0:
        return Speed(0.0, MEASURED, f"{detail}; it does not fit")
    factor = communication_factor(family, placing)
    if placing.nodes > 1 and not across and gpus > 1:
        on_one_node = Placing(placing.model, placing.gpus, 1, placing.link, placing.network)
        return Speed(
            value * factor / communication_factor(family, on_one_node), MODELLED, f"{detail}, crossing nodes modelled"
        )
    if placing.gpus > 1 and gpus == 1:
        return Speed(value * factor, MODELLED, f"{detail}, communication of {placing.gpus} GPUs modelled")
    return Speed(value, MEASURED, detail)


_Rates = dict[tuple[str, str], dict[bool, dict[int, float]]]
"""By family and model, then across nodes or not, then the number of GPUs: what one GPU does per second."""

_COLUMNS: Final = ("family", "gpu", "gpus", "across", "per_second")
"""The columns of a speed table."""


def read_speed_table(text: str, where: str) -> _Rates:
    """The rates of a speed table in CSV; `where` names it in errors. Lines that begin with # are comments."""
    rates: _Rates = {}
    rows = csv.DictReader(line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    if tuple(rows.fieldnames or ()) != _COLUMNS:
        found = ",".join(rows.fieldnames or ()) or "nothing"
        raise CatalogueError(f"{where}: the columns are {found}; expected {','.join(_COLUMNS)}.")
    for number, row in enumerate(rows, 1):
        try:
            gpus, across, rate = int(row["gpus"]), row["across"] == "1", float(row["per_second"])
        except (TypeError, ValueError):
            gpus, across, rate = 0, False, 0.0
        if gpus < 1 or not 0.0 <= rate < inf:
            raise CatalogueError(
                f"{where}: row {number} ({row['family']}) is wrong; expected a whole number of gpus from 1, across 0 "
                "or 1, and per_second from 0."
            )
        rates.setdefault((row["family"], row["gpu"]), {}).setdefault(across, {})[gpus] = rate / gpus
    return rates


def speed_table(rows: Iterable[tuple[str, str, float]], comment: str) -> str:
    """A speed table in CSV from families, models and what one GPU alone does per second."""
    out = io.StringIO()
    out.writelines(f"# {line}\n" for line in comment.splitlines())
    made = csv.writer(out, lineterminator="\n")
    made.writerow(_COLUMNS)
    made.writerows((family, gpu, 1, 0, f"{rate:.6g}") for family, gpu, rate in rows)
    return out.getvalue()


@final
@dataclass(frozen=True, slots=True)
class OwnSpeeds:
    """Speeds that are first looked up in a speed table of one's own. Its families need not be in the catalogue.

    They are relative to the reference model, or to the family's first model in the table where that is missing.
    """

    where: str  # the table, for errors and details
    rates: _Rates
    unit: dict[str, float]  # by family: what one GPU does per second at speed 1
    otherwise: SpeedOf = speed_of

    def __call__(self, family: str, at: Placing) -> Speed:
        """The speed by the table; by `otherwise` where it has no row."""
        rows = self.rates.get((family, at.model.name)) if at.model is not None and at.gpus else None
        if rows is None:
            return self.otherwise(family, at)
        measured = rows.get(at.nodes > 1) or next(iter(rows.values()))
        counts = sorted(measured)
        gpus = counts[max(0, bisect_right(counts, at.gpus) - 1)]
        return Speed(measured[gpus] / self.unit.get(family, 1.0), MEASURED, f"{self.where}: {gpus} GPUs")

    def lacks(self, models: Iterable[str]) -> str | None:
        """A family that only this table has, and a model of these on which it has no speed, in words; None: none."""
        for family in dict.fromkeys(family for family, _ in self.rates):
            for model in models:
                if not is_family(family) and (family, model) not in self.rates:
                    return f"the family '{family}' has no row for {model}"
        return None


def with_own_table(text: str, where: str, otherwise: SpeedOf = speed_of) -> OwnSpeeds:
    """The speeds of a speed table of one's own, and others where it has no row."""
    rates = read_speed_table(text, where)
    unit: dict[str, float] = {}
    for (family, model), of_model in rates.items():
        rate = next(iter(next(iter(of_model.values())).values()))
        if rate > 0.0 and (family not in unit or model == REFERENCE):
            unit[family] = rate
    return OwnSpeeds(where, rates, unit, otherwise)


def speeds_by(path: str | None) -> SpeedOf:
    """The speeds that ship, or those of a speed table of one's own before them."""
    return with_own_table(read_text(path, "speed table"), path) if path else speed_of


def own_table(speed: SpeedOf) -> str | None:
    """The speed table of one's own that these speeds have."""
    return speed.where if isinstance(speed, OwnSpeeds) else None


def family_named(name: str, speed: SpeedOf = speed_of) -> str:
    """Our name for a family: of the speed table of one's own that these speeds have, else of the catalogue."""
    if isinstance(speed, OwnSpeeds) and name in speed.unit:
        return name
    return find_family(name).name


def is_alike_everywhere(family: str, speed: SpeedOf = speed_of) -> bool:
    """Whether a family is declared to run equally fast on every GPU."""
    own = isinstance(speed, OwnSpeeds) and family in speed.unit
    return not own and find_family(family).same_everywhere


@cache
def _measured() -> _Rates:
    """Measured speed of one GPU relative to the fewest GPUs of the anchor: by family and model, across nodes, GPUs."""
    rates: _Rates = {}
    for table in _TABLES:
        file = resources.files("adlro.catalogue").joinpath("throughputs", f"{table}.csv")
        rates |= read_speed_table(file.read_text(encoding="utf-8"), f"{table}.csv")
    return {
        (family, model): {across: _relative(rows, family, rates) for across, rows in of_model.items()}
        for (family, model), of_model in rates.items()
    }


def _relative(rows: dict[int, float], family: str, rates: _Rates) -> dict[int, float]:
    on_one_node = rates[family, find_family(family).anchor][False]
    unit = on_one_node[min(on_one_node)]
    return {gpus: rate / unit for gpus, rate in rows.items()}


def _peak(model: GpuModel, bound: str) -> float | None:
    """The figure of the datasheet that bounds this part of the time."""
    match bound:
        case "fp64":
            return model.fp64_tflops
        case "fp32":
            return model.fp32_tflops
        case "bandwidth":
            return model.memory_bandwidth_gb_s
    rates = (model.fp16_tensor_tflops, model.fp16_vector_tflops, model.fp32_tflops)
    return max((rate for rate in rates if rate is not None), default=None)
