#!/bin/sh
# Compiles everything that a fresh cache would hold, for a wheel or an image to bring along: where Python, Numba and the
# kind of processor are the same as here, nothing has to be compiled.
#
# usage: scripts/machine_code.sh ADLRO FOLDER     the command adlro, and the folder machine_code of its package
set -eu
adlro=$1 folder=$2
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
rm -rf "$folder"
XDG_CACHE_HOME="$cache" "$adlro" warm --all
mkdir -p "$folder"
cp -r "$cache"/adlro/compiled/* "$folder"/
rm -rf "$folder"/*/locks
