{{- define "skylarkmq.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "skylarkmq.broker" -}}{{ include "skylarkmq.fullname" . }}-broker{{- end -}}
{{- define "skylarkmq.namesrv" -}}{{ include "skylarkmq.fullname" . }}-namesrv{{- end -}}

{{- define "skylarkmq.console" -}}{{ include "skylarkmq.fullname" . }}-console{{- end -}}

{{/* With LOCAL clients go to the pods by name, and keep the address of one that was replaced for a while. */}}
{{- define "skylarkmq.grpcProxyMode" -}}
{{- .Values.broker.config.grpcProxyMode | default "CLUSTER" -}}
{{- end -}}

{{- define "skylarkmq.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "skylarkmq.selector" -}}
app.kubernetes.io/name: skylarkmq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "skylarkmq.labels" -}}
{{ include "skylarkmq.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "skylarkmq.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ include "skylarkmq.fullname" . }}{{ else }}default{{ end -}}
{{- end -}}

{{/* host:port of all name servers, with semicolons */}}
{{- define "skylarkmq.namesrvAddr" -}}
{{- $name := include "skylarkmq.namesrv" . -}}
{{- $domain := printf "%s.%s.svc.%s" $name .Release.Namespace .Values.clusterDomain -}}
{{- range $index := until (int .Values.nameServers.replicas) -}}
{{- if $index }};{{ end }}{{ $name }}-{{ $index }}.{{ $domain }}:9876
{{- end -}}
{{- end -}}

{{- define "skylarkmq.scheme" -}}
{{- if eq .Values.tls.mode "enforcing" }}HTTPS{{ else }}HTTP{{ end -}}
{{- end -}}

{{/* keys that brokers and name servers share */}}
{{- define "skylarkmq.sharedConfig" -}}
tls.server.mode={{ .Values.tls.mode }}
{{- if .Values.tls.existingSecret }}
tls.server.certPath=/etc/skylarkmq/tls/tls.crt
tls.server.keyPath=/etc/skylarkmq/tls/tls.key
tls.client.trustCertPath=/etc/skylarkmq/tls/ca.crt
{{- end }}
{{- if .Values.acl.enabled }}
aclEnable=true
rocketmqHome=/etc/skylarkmq/acl
{{- end }}
{{- end -}}

{{- define "skylarkmq.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "skylarkmq.mounts" -}}
- {name: data, mountPath: /data}
- {name: tmp, mountPath: /tmp}
- {name: config, mountPath: /etc/skylarkmq/config, readOnly: true}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /etc/skylarkmq/tls, readOnly: true}
{{- end }}
{{- if .Values.acl.enabled }}
- {name: acl, mountPath: /etc/skylarkmq/acl/conf, readOnly: true}
{{- end }}
{{- end -}}

{{- define "skylarkmq.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .Values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ .Values.tls.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- if .Values.acl.enabled }}
- name: acl
  secret:
    secretName: {{ required "acl.enabled needs acl.existingSecret, with the key plain_acl.yml" .Values.acl.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* what pods of both kinds share */}}
{{- define "skylarkmq.pod" -}}
serviceAccountName: {{ include "skylarkmq.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false # they look like settings of ours: SKYLARKMQ_SERVICE_HOST
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}
