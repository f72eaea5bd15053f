{{/* Read by both containers of the pod. */}}
{{- define "gpushare.schedulerConfig" -}}
apiVersion: kubescheduler.config.k8s.io/{{ include "gpushare.schedulerConfigVersion" . }}
kind: KubeSchedulerConfiguration
# No kubeconfig: the account of the pod.
leaderElection:
  leaderElect: true
  # Not kube-scheduler's own Lease: else only one of the two schedulers of the cluster would work.
  resourceName: gpushare-scheduler
  resourceNamespace: kube-system
percentageOfNodesToScore: 100
profiles:
  - schedulerName: gpushare-scheduler
extenders:
{{- if .Values.extender.claims.driver }}
  # For pods with claims (config/extender/claims/extender-entry.yaml).
  - urlPrefix: http://127.0.0.1:32766/gpushare-scheduler
    filterVerb: rank
    enableHTTPS: false
    httpTimeout: 1s
    nodeCacheCapable: true
    ignorable: true
{{- end }}
  - urlPrefix: http://127.0.0.1:32766/gpushare-scheduler
    filterVerb: filter
    prioritizeVerb: prioritize
    weight: 150
    bindVerb: bind
    preemptVerb: preempt
    enableHTTPS: false
    httpTimeout: 30s
    nodeCacheCapable: true
    ignorable: false
    managedResources:
      - name: aliyun.com/gpu-mem
        ignoredByScheduler: false
      - name: aliyun.com/gpu-core.percentage
        ignoredByScheduler: false
      - name: aliyun.com/gpu-mem.percentage
        ignoredByScheduler: true
{{- end }}
