"""A Slurm cluster in the config."""

import os
from typing import Final

from adlro.backends.kind import Kind, Opened, Site
from adlro.backends.slurm.options import SlurmOptions
from adlro.core.accounts import Owners, account_of, own_account_name, why_not
from adlro.core.errors import AccountError, ConfigError


def open_slurm(options: SlurmOptions, site: Site) -> Opened:
    """The Slurm that the options name. Nothing is asked of it yet."""
    from adlro.backends.slurm.backend import slurm_backend

    conf = options.conf or os.environ.get("SLURM_CONF", "")
    return Opened(slurm_backend(options.model_copy(update={"conf": conf}), site.min_uid))


def _owners_of(options: SlurmOptions, site: Site) -> Owners:
    """Jobs run as their users where `sbatch` does."""
    return Owners(options.submit_as == "user", site.min_uid)


def check_slurm(options: SlurmOptions, site: Site) -> None:
    """Refuse accounts that nobody has a right to, and those that jobs cannot be submitted as."""
    from adlro.backends.slurm.backend import check_submitting

    is_self = site.has_api and options.submit_as == "self"
    if is_self and (no := why_not(os.geteuid(), site.min_uid)):
        raise ConfigError(
            f'[slurm] submit_as = "self": jobs of the API would run as {own_account_name()!r}, and {no}. Run the '
            'daemon as an ordinary account, or use submit_as = "user" with a daemon that is root.'
        )
    if is_self and options.rest and options.user:
        try:
            account_of(options.user, site.min_uid)
        except AccountError as error:
            raise ConfigError(f'[slurm] submit_as = "self" with the token of {options.user!r}: {error}') from None
    check_submitting(options.submit_as, options.command_line)


def without_submitting(options: SlurmOptions) -> SlurmOptions:
    """The same for a shadow, which submits nothing."""
    return options.model_copy(update={"submit_as": "nobody"})


SLURM: Final = Kind("slurm", "a Slurm cluster", SlurmOptions, open_slurm, _owners_of, check_slurm, without_submitting)
