"""Every error a user can cause, as one tree.

AdlroError
├── UsageError      the command line asks for something that does not exist
├── ConfigError     a TOML file says something impossible
├── CatalogueError  a GPU model, cluster, family or policy has no such name
├── TraceError      a trace cannot be read, or too much of it is wrong
├── PolicyError     a user's policy file cannot be loaded or does not answer
├── CheckpointError a checkpoint of a network, or the state of a training, cannot be read
├── TelemetryError  a telemetry source does not answer, or answers in an unexpected way
├── AccountError    a text is not a user name, or jobs may not run as that account
├── BackendError    a live cluster does not answer, or refuses an order
└── StoreError      the daemon's database cannot be opened, read or written
"""


class AdlroError(Exception):
    """An error that a person can fix; the message says how."""


class UsageError(AdlroError):
    """The command line asks for something that does not exist."""


class ConfigError(AdlroError):
    """A TOML file says something impossible."""


class CatalogueError(AdlroError):
    """No such GPU model, cluster, family or policy."""


class TraceError(AdlroError):
    """A trace cannot be read, or too much of it is wrong."""


class PolicyError(AdlroError):
    """A user's policy cannot be loaded, or does not answer as a policy must."""


class CheckpointError(AdlroError):
    """A checkpoint of a network, or the state of a training, cannot be read."""


class TelemetryError(AdlroError):
    """A telemetry source does not answer, or answers in an unexpected way."""


class AccountError(AdlroError):
    """A text is not a user name, or jobs may not run as that account."""


class BackendError(AdlroError):
    """A live cluster does not answer, or refuses an order."""


class StoreError(AdlroError):
    """The daemon's database cannot be opened, read or written."""
