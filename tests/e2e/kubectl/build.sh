#!/bin/sh
# Prints the path of a real kubectl: the one on PATH, else one built here from its Go module.
#
#   build.sh           build it if need be (minutes, once); 1 where there is no Go either
#   build.sh --built   never build: print the folder where a built one is kept
#
# It is kept in the user's cache, by version and by what it is built from; never inside the tree.
set -eu
cd "$(dirname "$0")"

version=$(sed -n 's/^\tk8s.io\/kubectl v0\.\([0-9.]*\)$/1.\1/p' go.mod)
made_of=$(cat main.go go.mod go.sum | cksum | tr -d ' ')
folder=${XDG_CACHE_HOME:-$HOME/.cache}/gpushare/kubectl-$version-$made_of

if [ "${1:-}" = --built ]; then
    echo "$folder"
    exit
fi
if command -v kubectl; then
    exit
fi
if [ ! -x "$folder/kubectl" ]; then
    if ! command -v go >/dev/null; then
        echo "kubectl: there is none on PATH, and no Go to build it with" >&2
        exit 1
    fi
    echo "kubectl: building $version, once; this takes some minutes ..." >&2
    minor=${version#1.}
    package=k8s.io/component-base/version
    mkdir -p "$folder"
    # To another name first: an interrupted build must not look finished.
    go build -trimpath -buildvcs=false -o "$folder/building.$$" -ldflags "-s -w \
        -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}" .
    mv "$folder/building.$$" "$folder/kubectl"
fi
echo "$folder/kubectl"
