{{/* The name of everything in this release: that of the release, with "adlro" in it. */}}
{{- define "adlro.name" -}}
{{- $name := .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- contains "adlro" $name | ternary $name (printf "%s-adlro" $name) -}}
{{- end -}}

{{/* What finds the pods of this release; it never changes. */}}
{{- define "adlro.selector" -}}
app.kubernetes.io/name: adlro
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "adlro.labels" -}}
{{ include "adlro.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ .Values.mode }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "adlro.account" -}}
{{- .Values.serviceAccount.name | default (include "adlro.name" .) -}}
{{- end -}}

{{- define "adlro.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* The Secret with tokens.json, which the daemon reads. */}}
{{- define "adlro.tokens" -}}
{{- .Values.api.tokensSecret | default (printf "%s-tokens" (include "adlro.name" .)) -}}
{{- end -}}

{{/* adlro.toml: what follows from the mode and from where the daemon runs, then `config`. */}}
{{- define "adlro.config" -}}
{{- if eq .Values.schedulerName "default-scheduler" -}}
{{- fail "schedulerName is default-scheduler, which is kube-scheduler's own name. Choose another one, as in adlro." -}}
{{- end -}}
{{- $name := include "adlro.name" . -}}
{{- $space := .Release.Namespace -}}
{{- $kubernetes := dict "scheduler_name" .Values.schedulerName -}}
{{- if eq .Values.mode "scheduler" -}}
{{- $_ := set $kubernetes "lease" (printf "%s/%s" $space $name) -}}
{{- end -}}
{{- $hosts := list $name (printf "%s.%s" $name $space) (printf "%s.%s.svc" $name $space) -}}
{{- $api := dict "host" "0.0.0.0" "port" (int .Values.api.port) "hosts" (concat $hosts .Values.api.hosts) "tokens" "/etc/adlro/tokens/tokens.json" -}}
{{- if .Values.api.tlsSecret -}}
{{- $_ := set $api "tls_cert" "/etc/adlro/tls/tls.crt" -}}
{{- $_ := set $api "tls_key" "/etc/adlro/tls/tls.key" -}}
{{- else -}}
{{- $_ := set $api "plain_http" true -}}
{{- end -}}
{{- $backend := dict "kind" (eq .Values.mode "shadow" | ternary "shadow" "kubernetes") -}}
{{- $ours := dict "backend" $backend "kubernetes" $kubernetes "api" $api "store" (dict "url" "sqlite:/var/lib/adlro/adlro.db") -}}
{{- if eq .Values.mode "shadow" -}}
{{- $_ := set $ours "shadow" (dict "backend" "kubernetes") -}}
{{- end -}}
{{- mergeOverwrite $ours (deepCopy .Values.config) | toToml -}}
{{- end -}}

{{- define "adlro.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "adlro.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The root file system is read-only: all that is written is in the volume or in /tmp. */}}
{{- define "adlro.folders" -}}
- {name: HOME, value: /var/lib/adlro}
- {name: STATE_DIRECTORY, value: /var/lib/adlro}
- {name: XDG_CACHE_HOME, value: /var/lib/adlro/cache}
- {name: MPLCONFIGDIR, value: /tmp/matplotlib}
{{- end -}}

{{/* Where pods may go, and what else is the same for all of our pods. */}}
{{- define "adlro.podPlace" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "adlro.selector" . | nindent 8 }}
{{- end -}}
