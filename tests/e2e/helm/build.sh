#!/bin/sh
# Prints the folder with helm, built from its Go module; kept in the user's cache.
#
#   build.sh           build it if need be (some minutes, once); 1 where there is no Go
#   build.sh --built   never build: print the folder where a built one is kept
set -eu
cd "$(dirname "$0")"

hash=$(cat go.mod go.sum | sha256sum | cut -c 1-12)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/gpushare/helm/$hash
if [ "${1:-}" = --built ] || [ -x "$folder/helm" ]; then
    echo "$folder"
    exit
fi
if ! command -v go >/dev/null; then
    echo "helm: not built, and there is no Go to build it with" >&2
    exit 1
fi
echo "helm: building it, once; some minutes on two cores ..." >&2
# Built in a folder of its own and moved at the end: an interrupted build must not look finished.
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.building.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$work/helm" helm.sh/helm/v4/cmd/helm
chmod 755 "$work"
mv "$work" "$folder" 2>/dev/null || [ -x "$folder/helm" ] # another one was faster
echo "$folder"
