#!/bin/sh
# Keeps Kueue's CustomResourceDefinitions and webhook configurations beside the program.
set -eu
components=$(go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)/config/components
cp -r "$components/crd/bases" ../crd
cp "$components/webhook/manifests.yaml" ../webhooks.yaml
chmod -R u+w ../crd ../webhooks.yaml
