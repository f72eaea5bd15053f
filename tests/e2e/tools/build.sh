#!/bin/sh
# Prints the folder with a tool that tests need, built from its Go module; kept in the user's cache.
#
#   build.sh TOOL           build it if need be (some minutes, once); 1 where there is no Go
#   build.sh TOOL --built   never build: print the folder where a built one is kept
#
# TOOL is a folder beside this file, whose go.mod has a line `tool PACKAGE` for a program of that name,
# and may have more for programs beside it.
set -eu
cd "$(dirname "$0")/$1"

tool=$1
# shellcheck disable=SC2046 # names without blanks
hash=$(cat go.mod go.sum $(find . -name '*.go' | sort) | sha256sum | cut -c 1-12)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/gpushare/$tool/$hash
if [ "${2:-}" = --built ] || [ -x "$folder/$tool" ]; then
    echo "$folder"
    exit
fi
if ! command -v go >/dev/null; then
    echo "$tool: not built, and there is no Go to build it with" >&2
    exit 1
fi
echo "$tool: building it, once; some minutes on two cores ..." >&2
# Built in a folder of its own and moved at the end: an interrupted build must not look finished.
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.building.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
packages=$(sed -n 's/^tool //p' go.mod)
# Of promtool's: without what finds hosts in the clouds of this world, which is half of it.
# shellcheck disable=SC2086 # a list of packages
go build -tags remove_all_sd -trimpath -buildvcs=false -ldflags "-s -w" -o "$work/" $packages
chmod 755 "$work"
mv "$work" "$folder" 2>/dev/null || [ -x "$folder/$tool" ] # another one was faster
echo "$folder"
