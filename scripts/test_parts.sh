#!/usr/bin/env bash
# Install the Debian packages that some tests need, where we may; else say which are missing and what that means.
#
#     scripts/test_parts.sh
#
# With CI=true or ADLRO_REQUIRE_PARTS=1 a missing package is an error, here and in the tests (tests/parts.py).
set -euo pipefail

# One word for each package. A test names the command it needs of it.
PACKAGES="chromium prometheus munge slurmctld slurmd slurm-client slurmrestd slurm-wlm-jwt-plugin lua5.3 \
slurmdbd mariadb-server postgresql iproute2 procps"

command_of() {  # What a package is there for, where that is not a command of its own name.
    case $1 in
        lua5.3) echo lua ;;
        iproute2) echo ip ;;
        munge) echo munged ;;
        mariadb-server) echo mariadbd ;;
        postgresql) echo postgres ;;
        procps) echo pgrep ;;
        slurm-client) echo scontrol ;;
        slurm-wlm-jwt-plugin) echo slurmrestd ;;  # a plugin has no command; who builds Slurm with the one has the other
        *) echo "$1" ;;
    esac
}

is_there() {  # Debian knows its packages; elsewhere a command of the package will do. Daemons stand in sbin.
    dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed \
        || PATH=$PATH:/usr/sbin:/sbin command -v "$(command_of "$1")" >/dev/null
}

missing() {
    local package
    for package in $PACKAGES; do
        is_there "$package" || echo "$package"
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo --non-interactive "$@"
    fi
}

wanted=$(missing)
[ -n "$wanted" ] || exit 0

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if command -v apt-get >/dev/null && as_root true 2>/dev/null; then
    echo "Installing for the tests:" $wanted "…"
    export DEBIAN_FRONTEND=noninteractive
    # The list of packages may be old or empty on a fresh machine. What failed is in the log, and told below.
    { as_root apt-get update -q && as_root apt-get install -qy --no-install-recommends $wanted; } >"$log" 2>&1 || true
fi

left=$(missing)
[ -n "$left" ] || exit 0
tail -n 3 "$log" >&2
if [ "${CI:-}" = true ] || [ "${ADLRO_REQUIRE_PARTS:-0}" = 1 ]; then
    echo "The tests need these Debian packages, and they could not be installed:" $left >&2
    exit 1
fi
echo "Not installed:" $left "– the tests that need them will be skipped. To run them: apt-get install" $left >&2
