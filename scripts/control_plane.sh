#!/usr/bin/env bash
# Builds the programs of a Kubernetes control plane for `make test-kubernetes`, from the source package of this Debian.
# The package brings all Go modules that it needs, so nothing else is fetched. Once built, the programs are kept.
#
# usage: scripts/control_plane.sh [FOLDER]     default: $ADLRO_CONTROL_PLANE, else ~/.cache/adlro/control-plane
# needs: Debian 12, the rights to install packages, some 2.5 GB of disk while it builds, 5 to 10 minutes on two cores
set -euo pipefail
programs=(kube-apiserver kube-controller-manager kube-scheduler)
folder=$(realpath -m "${1:-${ADLRO_CONTROL_PLANE:-$HOME/.cache/adlro/control-plane}}")

is_complete() {
    for program in "${programs[@]}"; do [ -x "$folder/$program" ] || return 1; done
    command -v etcd >/dev/null
}
if is_complete; then exit 0; fi

sources=/etc/apt/sources.list.d/debian.sources
if [ "$(id -u)" != 0 ] || [ ! -f "$sources" ]; then
    echo "control_plane.sh: needs root on Debian 12 (with $sources). On other machines, put etcd into the PATH and" \
        "${programs[*]} into $folder." >&2
    exit 1
fi
build=$(mktemp -d)
trap 'chmod -R u+w "$build"; rm -rf "$build"' EXIT
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends golang-1.19-go etcd-server rsync dpkg-dev make openssl >/dev/null

# Sources come from the same place as this machine's packages, through lists of our own: /etc/apt stays as it is.
mkdir -p "$build"/{lists/partial,cache/archives/partial,parts,home} "$folder"
sed 's/^Types: deb$/Types: deb-src/' "$sources" >"$build/parts/debian.sources"
cat >"$build/apt.conf" <<END
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$build/parts";
Dir::State::lists "$build/lists";
Dir::Cache "$build/cache";
APT::Sandbox::User "root";
END
export APT_CONFIG=$build/apt.conf
cd "$build"
apt-get update -qq
apt-get source -qq --download-only kubernetes
dpkg-source --no-check -x kubernetes_*.dsc source >/dev/null

cd source
mkdir -p .go/src/k8s.io
ln -s ../../.. .go/src/k8s.io/kubernetes
export GOPATH=$PWD/.go HOME=$build/home PATH=/usr/lib/go-1.19/bin:$PATH CGO_ENABLED=0 GOFLAGS=-mod=vendor GOPROXY=off
make WHAT="$(printf 'cmd/%s ' "${programs[@]}")" >"$build/log" 2>&1 || { tail -20 "$build/log" >&2; exit 1; }
for program in "${programs[@]}"; do
    cp "_output/local/bin/linux/amd64/$program" "$folder/$program.new"
    mv "$folder/$program.new" "$folder/$program"
done
