#!/bin/sh
# Puts into ./plugins the coscheduling plug-in of scheduler-plugins 0.34.7, ported to Kubernetes 1.37.
# The port: the framework's interfaces have moved to k8s.io/kube-scheduler, and Less is given
# entities, which are pods here, as the feature gate GenericWorkload is off.
set -eu
module=$(cd / && go mod download -json sigs.k8s.io/scheduler-plugins@v0.34.7 |
    sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
mkdir -p plugins/pkg plugins/apis
cp "$module/go.mod" plugins/
cp -r "$module/pkg/coscheduling" "$module/pkg/util" plugins/pkg/
cp -r "$module/apis/config" "$module/apis/scheduling" plugins/apis/
chmod -R u+w plugins
find plugins -name '*_test.go' -exec rm {} +
moved='Handle\|Plugin\|[A-Za-z]*Plugin\|EnqueueExtensions\|PreFilterResult\|PostFilterResult'
moved="$moved\|NodeToStatusReader\|WaitingPod\|PreFilterExtensions\|SharedLister"
sed -i "s/\bframework\.\($moved\)\b/fwk.\1/g
s/fwk\.QueuedPodInfo)/fwk.QueuedEntityInfo)/
s/\(podInfo[12]\)\.GetPodInfo()\.GetPod()/\1.(*framework.QueuedPodInfo).Pod/g" \
    plugins/pkg/coscheduling/coscheduling.go plugins/pkg/coscheduling/core/core.go
