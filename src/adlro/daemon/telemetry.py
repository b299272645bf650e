"""What the GPUs of a live cluster say of themselves, looked at again and again; what is missing is None, never 0."""

import math
import threading
import time
from collections.abc import Callable
from typing import final

from adlro.backends.kind import Levels
from adlro.catalogue.gpus import find_gpu
from adlro.core.errors import TelemetryError
from adlro.core.records import Cluster, GpuModel
from adlro.core.telemetry import TelemetryReader
from adlro.ingest.telemetry.names import model_of
from adlro.ingest.telemetry.series import Collector
from adlro.normalise.telemetry import GPU_FEATURES, Freshness, Telemetry, expected_gpus, normalise, with_our_names


@final
class Watcher:
    """Looks at a source in a thread of its own, so that no turn waits for it."""

    def __init__(
        self,
        look: TelemetryReader,
        cluster: Callable[[], Cluster | None],
        every_s: float = 15.0,
        max_age_s: float = 60.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._cluster, self._every_s, self._max_age_s = look, cluster, every_s, max_age_s
        self._monotonic = monotonic
        self._picture: Telemetry | None = None
        self._levels: Levels = {}
        self._answered_s = -math.inf
        self.trouble = ""
        """Why the latest look failed; nothing if it did not."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def levels(self) -> Levels | None:
        """What the GPUs said last; None if the source has not answered for so long that nothing of it is fresh."""
        return self._levels if self._monotonic() - self._answered_s <= self._max_age_s else None

    def look(self) -> None:
        """One look. A source that does not answer leaves gaps."""
        cluster = self._cluster()
        expected = expected_gpus(cluster)
        own = cluster.models if cluster else {}

        def model(name: str) -> GpuModel | None:
            return model_of(name, lambda word: find_gpu(word, own))

        try:
            readings = with_our_names(self._look(), expected)
        except TelemetryError as error:
            self.trouble = str(error)
            readings = Collector("").readings(time.time())
        else:
            self.trouble = ""
            self._answered_s = self._monotonic()
        self._picture = normalise(readings, model, expected, self._picture, Freshness(self._max_age_s))
        self._levels = levels_of(self._picture)

    def _run(self) -> None:
        while not self._over.is_set():
            self.look()
            self._over.wait(self._every_s)


def levels_of(picture: Telemetry) -> Levels:
    """The picture as names and numbers."""
    return {
        f"{gpu.node}/{gpu.index}": {
            feature: None if math.isnan(level) else level for feature, level in zip(GPU_FEATURES, levels, strict=True)
        }
        for gpu, levels in zip(picture.gpus, picture.level.tolist(), strict=True)
    }
