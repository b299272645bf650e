{{/* The only list of rights. deploy/kubernetes/ is written from it, and tests hold it against what the daemon uses. */}}

{{- define "adlro.rights.reading" -}}
- apiGroups: [""]
  resources: [nodes, pods, persistentvolumeclaims, persistentvolumes]
  verbs: [list, watch]
- apiGroups: [storage.k8s.io] # how many volumes a node can attach
  resources: [csinodes]
  verbs: [list, watch]
- apiGroups: [scheduling.x-k8s.io, scheduling.k8s.io]
  resources: [podgroups]
  verbs: [list, watch]
- apiGroups: [scheduling.k8s.io]
  resources: [workloads]
  verbs: [list, watch]
{{- end -}}

{{- define "adlro.rights.binding" -}}
- apiGroups: [""] # after a lost answer: was the pod bound?
  resources: [pods]
  verbs: [get]
- apiGroups: [""]
  resources: [pods/binding]
  verbs: [create]
{{- end -}}

{{- define "adlro.rights.scheduling" -}}
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [""] # the condition PodScheduled=False
  resources: [pods/status]
  verbs: [patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{/* In the daemon's own namespace: the Lease, and the label of the pod that leads. */}}
{{- define "adlro.rights.leading" -}}
- apiGroups: [coordination.k8s.io] # RBAC cannot limit create to a name
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "adlro.name" . }}]
  verbs: [get, update]
- apiGroups: [""] # the label by which the Service finds the leader
  resources: [pods]
  resourceNames: [{{ range $number := until (int .Values.replicas) }}{{ if $number }}, {{ end }}{{ include "adlro.name" $ }}-{{ $number }}{{ end }}]
  verbs: [patch]
{{- end -}}
