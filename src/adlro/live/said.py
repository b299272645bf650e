"""What the user who submitted a live job said about its work."""

import numpy as np

from adlro.core.records import WHOLE_GPU
from adlro.core.tables import Floats, Table


def as_said(traits: Table, jobs: Table, scale: Floats) -> Floats:
    """The users' estimates of the work, or ten minutes where there is none; without an interval."""
    units = np.where(jobs.gpus > 0, jobs.gpus * (jobs.share / WHOLE_GPU), 1.0)
    said = np.where(jobs.estimate > 0.0, jobs.estimate, 600.0 * units)
    return np.repeat(said[:, None], 3, axis=1)
