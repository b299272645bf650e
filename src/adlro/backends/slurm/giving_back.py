"""Give jobs back to Slurm: one, or all that wait because of ADLRO."""

from collections.abc import Sequence
from dataclasses import dataclass

from adlro.backends.slurm.ways import ClusterReader, KnownJob, RefusedError, SlurmOrder, Way
from adlro.core.errors import BackendError


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A job, or tasks of an array that wait together, and whether Slurm has it again."""

    job: str
    done: bool
    said: str = ""


def give_back_all(reader: ClusterReader, ways: Sequence[Way], now_s: float) -> list[GivenBack]:
    """Give every job that waits because of us back to Slurm: no pins, not held. Doing it twice does no harm.

    What runs goes on. A job without its GPUs (a turn was cut short there) gets its request back first.
    """
    reader.read()
    given: dict[str, GivenBack] = {}
    for told in reader.all_told():
        name = told.together
        if name in given or not told.is_ours_to_give_back:
            continue
        given[name] = hand_back(place_of_freed(told, now_s), ways)
    return list(given.values())


def place_of_freed(told: KnownJob, now_s: float, line: str = "") -> SlurmOrder:
    """What gives a job back to Slurm: no pin, no hold, and our words gone but for the moment."""
    gpus = told.words.get("gpus", "0")
    lacks = not told.asked and not told.is_per_job and gpus != "0"
    gone = dict.fromkeys(("decision", "held", "restarts", "submit", "gpus", "placed"), "")
    comment = told.comment(line, **gone, released=f"{now_s:.0f}")
    nodes = () if told.is_pinned else None  # scontrol takes no empty list for tasks that wait together
    return SlurmOrder(told.together, nodes, comment, f"gpu:{gpus}" if lacks else None, now_s if told.restarts else None)


def hand_back(place: SlurmOrder, ways: Sequence[Way]) -> GivenBack:
    """Release a job to Slurm by the first way that works."""
    said = "there is no way to tell Slurm"
    for way in ways:
        try:
            way.place(place)
        except (RefusedError, BackendError) as error:
            said = str(error)
        else:
            return GivenBack(place.job, True)
    return GivenBack(place.job, False, said)
