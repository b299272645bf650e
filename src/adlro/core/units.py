"""Units that several modules use."""

from typing import Final

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S

MIB_PER_GB: Final = 1024
"""Users give memory in GB; tables store MiB."""
