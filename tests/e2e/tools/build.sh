#!/bin/sh
# Prints the folder with a tool that tests need, built from its Go module; kept in the user's cache.
#
#   build.sh TOOL           build it if need be (some minutes, once); 1 where there is no Go
#   build.sh TOOL --built   never build: print the folder where a built one is kept
#
# TOOL is a folder beside this file. Its go.mod has a line `tool PACKAGE` for each program, or the source
# of a program is beside it; where there is a port.sh, that makes in a copy of the folder what else the
# program is built from.
set -eu
cd "$(dirname "$0")/$1"

tool=$1
# Names without blanks.
own="$(ls go.mod go.sum 2>/dev/null) $(find . -name '*.go' | sort) $(find . -name '*.sh' | sort)"
hash=$(cat $own | sha256sum | cut -c 1-12)
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
if [ -x port.sh ]; then
    mkdir "$work/source"
    cp $own "$work/source/"
    cd "$work/source"
    ./port.sh
fi
# Of promtool's: without what finds hosts in the clouds of this world, which is half of it.
go build -tags remove_all_sd -trimpath -buildvcs=false -ldflags "-s -w" -o "$work/" ${packages:-.}
rm -rf "$work/source"
chmod 755 "$work"
mv "$work" "$folder" 2>/dev/null || [ -x "$folder/$tool" ] # another one was faster
echo "$folder"
