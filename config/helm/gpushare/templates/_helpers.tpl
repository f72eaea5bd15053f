{{/* Labels of every object; give a dict of the context and the component, or "". */}}
{{- define "gpushare.labels" -}}
app.kubernetes.io/name: gpushare
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/managed-by: {{ .context.Release.Service }}
helm.sh/chart: {{ .context.Chart.Name }}-{{ .context.Chart.Version }}
{{- end }}

{{/* Our image. */}}
{{- define "gpushare.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The device plug-in's image, where it has one of its own. */}}
{{- define "gpushare.devicePluginImage" -}}
{{- $own := .Values.devicePlugin.image -}}
{{ $own.repository | default .Values.image.repository }}:{{ $own.tag | default .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The values of the device plug-in as YAML: what is empty is as the platform has it. */}}
{{- define "gpushare.devicePlugin" -}}
{{- $values := deepCopy .Values.devicePlugin -}}
{{- $preset := dict -}}
{{- with .Values.platform -}}
{{- $preset = index ($.Files.Get "platforms.yaml" | fromYaml) . -}}
{{- end -}}
{{- range $name, $value := $preset -}}
{{- if not (index $values $name) -}}
{{- $_ := set $values $name $value -}}
{{- end -}}
{{- end -}}
{{- if not $values.kubeletFolder -}}
{{- $_ := set $values "kubeletFolder" "/var/lib/kubelet" -}}
{{- end -}}
{{ toYaml $values }}
{{- end }}

{{/* kube-scheduler's image: the API server's version, without what a vendor adds to it. */}}
{{- define "gpushare.schedulerImage" -}}
{{- $version := semver .Capabilities.KubeVersion.Version -}}
{{- $own := printf "v%d.%d.%d" $version.Major $version.Minor $version.Patch -}}
{{ .Values.scheduler.image.repository }}:{{ .Values.scheduler.image.tag | default $own }}
{{- end }}

{{/* The version of kube-scheduler's configuration that its release reads. */}}
{{- define "gpushare.schedulerConfigVersion" -}}
{{- $tag := .Values.scheduler.image.tag -}}
{{- $version := ternary $tag .Capabilities.KubeVersion.Version (regexMatch "^v?1\\.[0-9]+" $tag) -}}
{{- if semverCompare ">=1.25-0" $version -}} v1
{{- else if semverCompare ">=1.23-0" $version -}} v1beta3
{{- else -}} v1beta2
{{- end -}}
{{- end }}

{{/* Fail with a sentence where the values or the cluster cannot work. */}}
{{- define "gpushare.check" -}}
{{- if ne .Release.Namespace "kube-system" -}}
{{- fail "gpushare: install it into kube-system (--namespace kube-system): the ConfigMaps of unhealthy devices are there, and some clusters take the priority class system-cluster-critical nowhere else" -}}
{{- end -}}
{{- $policies := or .Values.policies.placements .Values.policies.schedulerName .Values.policies.mistakes -}}
{{- if and $policies (not (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version)) -}}
{{- fail (printf "gpushare: policies need Kubernetes 1.30, and this is %s: leave policies.placements, .schedulerName and .mistakes false" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.extender.claims.driver (not (semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version)) -}}
{{- fail (printf "gpushare: extender.claims.driver needs Kubernetes 1.36, and this is %s: leave it empty" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.policies.schedulerName (ne .Values.wiring "second-scheduler") -}}
{{- fail "gpushare: policies.schedulerName belongs to wiring second-scheduler: with existing-scheduler GPU pods name no scheduler" -}}
{{- end -}}
{{- $tag := .Values.scheduler.image.tag -}}
{{- if regexMatch "^v?[0-9]+\\.[0-9]+" $tag -}}
{{- $server := semver .Capabilities.KubeVersion.Version -}}
{{- if not (semverCompare (printf ">=1.22-0, <1.%d-0" (add $server.Minor 1)) $tag) -}}
{{- fail (printf "gpushare: scheduler.image.tag %s: kube-scheduler must be from 1.22 on and not newer than the API server, which is %s" $tag .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled -}}
{{- fail "gpushare: podMonitor.enabled and serviceMonitor.enabled together would scrape each pod twice: choose one" -}}
{{- end -}}
{{- range $value, $kind := dict "podMonitor" "PodMonitor" "serviceMonitor" "ServiceMonitor" "rules" "PrometheusRule" -}}
{{- if and (index $.Values $value).enabled (not ($.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}
{{- fail (printf "gpushare: %s.enabled needs the Prometheus operator's %s, which this cluster does not have; with helm template, add --api-versions monitoring.coreos.com/v1" $value $kind) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The account of the extender, as a list of subjects: a static pod has a client certificate. */}}
{{- define "gpushare.extender" -}}
{{- if ne .Values.wiring "existing-scheduler" -}}
- kind: ServiceAccount
  name: gpushare-extender
  namespace: kube-system
{{- else -}}
- apiGroup: rbac.authorization.k8s.io
  kind: User
  name: gpushare-extender
{{- end -}}
{{- end }}
