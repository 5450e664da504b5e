{{- define "weir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "weir.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "weir.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: {{ include "weir.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weir.labels" -}}
{{ include "weir.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "weir.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "weir.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* Whether a KubeProxyConfiguration of these values decides. */}}
{{- define "weir.ownConfig" -}}
{{- if and .Values.kubeProxyConfig.config (not .Values.kubeProxyConfig.import.enabled) }}true{{ end }}
{{- end }}

{{- /* Port of a bind address; of the KubeProxyConfiguration if it has one. */}}
{{- define "weir.port" -}}
{{- $own := .own | default "" -}}
{{- $address := ternary $own .setting (ne $own "") -}}
{{- $last := splitList ":" $address | last -}}
{{- if regexMatch "^[0-9]+$" $last }}{{ $last }}{{ else }}{{ .default }}{{ end }}
{{- end }}

{{- define "weir.healthzPort" -}}
{{- $own := ternary (.Values.kubeProxyConfig.config.healthzBindAddress | default ":10256") "" (eq (include "weir.ownConfig" .) "true") -}}
{{- if .Values.kubeProxyConfig.import.enabled }}10256{{ else }}{{ include "weir.port" (dict "own" $own "setting" .Values.settings.healthzBindAddress "default" "10256") }}{{ end }}
{{- end }}

{{- define "weir.metricsPort" -}}
{{- $own := ternary (.Values.kubeProxyConfig.config.metricsBindAddress | default ":10249") "" (eq (include "weir.ownConfig" .) "true") -}}
{{- if .Values.kubeProxyConfig.import.enabled }}10249{{ else }}{{ include "weir.port" (dict "own" $own "setting" .Values.settings.metricsBindAddress "default" "10249") }}{{ end }}
{{- end }}
