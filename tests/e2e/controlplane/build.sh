#!/bin/sh
# Prints the folder with Kubernetes' own programs of one version, built from their Go modules.
#
#   build.sh VERSION           build them if need be (ten minutes, once); 1 where there is no Go
#   build.sh --built VERSION   never build: print the folder where built ones are kept
#
# From 1.23 on: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl, links to one
# program; of 1.33, and from 1.37 on, the kubelet and a runtime for it, too. Up to 1.22, whose API
# server does not build from modules: kube-scheduler alone. The versions that the tests name have
# their go.mod and go.sum here; any other gets its own, by module.py and go mod tidy.
# They are kept in the user's cache, by version and by what they are built from; never in the tree.
set -eu
cd "$(dirname "$0")"

only=
if [ "${1:-}" = --built ]; then
    only=yes
    shift
fi
version=${1#v}
case $version in
    *[!0-9.]* | *.*.*.*) version= ;;
    1.*.*) ;;
    *) version= ;;
esac
if [ -z "$version" ]; then
    echo "controlplane: a version is written like 1.37.0" >&2
    exit 2
fi
minor=${version#1.}
minor=${minor%%.*}

module=.
names="etcd kube-apiserver kube-controller-manager kube-scheduler kubectl"
sources=main.go
if [ "$minor" -ge 37 ] || [ "$minor" -eq 33 ]; then
    names="$names kubelet fake-runtime"
    sources="main.go node.go"
elif [ "$minor" -le 22 ]; then
    module=scheduler
    names=kube-scheduler
    sources=scheduler/main.go
fi
if grep -q "k8s.io/kubernetes v$version\$" $module/go.mod; then
    made_of="$sources $module/go.mod $module/go.sum"
else
    made_of="$sources module.py"
fi
hash=$(cat $made_of | sha256sum | cut -c 1-12)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/gpushare/controlplane/$version-$hash

if [ -n "$only" ] || [ -x "$folder/kube-scheduler" ]; then
    echo "$folder"
    exit
fi
if ! command -v go >/dev/null; then
    echo "controlplane: $version is not built, and there is no Go to build it with" >&2
    exit 1
fi
echo "controlplane: building $version, once; ten minutes on two cores ..." >&2
# Built in a folder of its own and moved at the end: an interrupted build must not look finished.
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.building.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cp $made_of "$work/"
# Up to 1.33 the kubelet's command takes no context.
[ "$minor" -gt 33 ] || sed -i 's/NewKubeletCommand(.*())/NewKubeletCommand()/' "$work"/*.go
if [ ! -f "$work/go.mod" ]; then
    python3 module.py "$version" "$work"
    (cd "$work" && GOFLAGS=-mod=mod go mod tidy)
fi
# Without its version the API server calls itself v0.0.0 and believes that it emulates it.
package=k8s.io/component-base/version
(cd "$work" && go build -trimpath -buildvcs=false -o kubernetes -ldflags "-s -w \
    -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=$minor" .)
for name in $names; do
    ln -s kubernetes "$work/$name"
done
rm -f "$work/main.go" "$work/node.go" "$work/module.py"
chmod 755 "$work"
mv "$work" "$folder" 2>/dev/null || [ -x "$folder/kube-scheduler" ] # another one was faster
echo "$folder"
