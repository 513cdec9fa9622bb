{{/* With `-gateway-metrics` behind it a name may have 63 characters. */}}
{{- define "tritone.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 47 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 47 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "tritone.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "tritone.labels" -}}
{{ include "tritone.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* What every object begins with. */}}
{{- define "tritone.metadata" -}}
name: {{ include "tritone.name" . }}
{{ include "tritone.place" . }}
{{- end }}

{{- define "tritone.place" -}}
namespace: {{ .Release.Namespace | quote }}
labels:
  {{- include "tritone.labels" . | nindent 2 }}
{{- end }}

{{- define "tritone.image" -}}
{{- $repository := .Values.image.repository | default (ternary "tritone/server" "tritone/server-slim" (gt (int .Values.gpu.count) 0)) }}
{{- with .Values.image.registry }}{{ . }}/{{ end }}{{ $repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* A limit that ends the preStop hook before the grace period ends everything; then 45 s for Triton itself. */}}
{{- define "tritone.gracePeriod" -}}
{{ add (int .Values.drain.limitSeconds) 45 }}
{{- end }}

{{/* Where the server finds its models: KServe's own initialiser puts them into /mnt/models. */}}
{{- define "tritone.models" -}}
{{- if .Values.kserve.enabled }}/mnt/models{{ else if (include "tritone.storage" . | fromYaml).url }}{{ (include "tritone.storage" . | fromYaml).url }}{{ else }}/models{{ end }}
{{- end }}

{{/* The container, of a Deployment and of KServe's runtime alike. */}}
{{- define "tritone.container" -}}
image: {{ include "tritone.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - {{ printf "--start-timeout-s=%v" .Values.startup.timeoutSeconds | quote }}
  - --drain-s=5
  - {{ printf "--log-level=%v" .Values.serve.logLevel | quote }}
  {{- if and (include "tritone.storage" . | fromYaml).url (not .Values.kserve.enabled) (include "tritone.storage" . | fromYaml).pollSeconds }}
  - {{ printf "--poll-s=%v" ((include "tritone.storage" . | fromYaml).pollSeconds) | quote }}
  {{- end }}
  {{- if .Values.tls.secretName }}
  - --tls-certificate=/tls/tls.crt
  - --tls-key=/tls/tls.key
  {{- with .Values.tls.clientCaKey }}
  - {{ printf "--tls-client-ca=/tls/%v" . | quote }}
  {{- end }}
  {{- end }}
  {{- range .Values.serve.args }}
  - {{ . | quote }}
  {{- end }}
env:
  - name: MODELS
    value: {{ include "tritone.models" . | quote }}
  - name: TRITONE_CACHE
    value: /cache
  - name: NUMBA_CACHE_DIR
    value: /cache/numba
  - name: HOME
    value: /tmp
  {{- with .Values.serve.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- if and (include "tritone.storage" . | fromYaml).secretName (not .Values.kserve.enabled) }}
envFrom:
  - secretRef:
      name: {{ (include "tritone.storage" . | fromYaml).secretName | quote }}
{{- end }}
ports:
  - name: http
    containerPort: 8000
  - name: grpc
    containerPort: 8001
  - name: metrics
    containerPort: 8002
# At the metrics port, which has no TLS and answers also where all connections of clients are taken.
startupProbe:
  httpGet:
    path: /v2/health/ready
    port: 8002
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div (add (int .Values.startup.timeoutSeconds) (int .Values.startup.downloadSeconds) 4) 5 }}
readinessProbe:
  httpGet:
    path: /v2/health/ready
    port: 8002
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
livenessProbe:
  httpGet:
    path: /v2/health/live
    port: 8002
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
lifecycle:
  preStop:
    exec:
      command:
        - tritone
        - drain
        - {{ printf "--settle-s=%v" .Values.drain.settleSeconds | quote }}
        - {{ printf "--limit-s=%v" .Values.drain.limitSeconds | quote }}
resources:
  requests:
    {{- include "tritone.resources" . | nindent 4 }}
  limits:
    {{- include "tritone.resources" . | nindent 4 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  runAsUser: {{ int64 .Values.user }}
  runAsGroup: {{ int64 .Values.user }}
  capabilities:
    drop:
      - ALL
  seccompProfile:
    type: RuntimeDefault
volumeMounts:
  - name: shm
    mountPath: /dev/shm
  - name: tmp
    mountPath: /tmp
  - name: cache
    mountPath: /cache
  {{- if and .Values.models.volume.source (not .Values.kserve.enabled) }}
  - name: models
    mountPath: /models
    readOnly: true
    {{- with .Values.models.volume.subPath }}
    subPath: {{ . | quote }}
    {{- end }}
  {{- end }}
  {{- if .Values.tls.secretName }}
  - name: tls
    mountPath: /tls
    readOnly: true
  {{- end }}
{{- end }}

{{- define "tritone.resources" -}}
cpu: {{ .Values.resources.cpu | quote }}
memory: {{ .Values.resources.memory | quote }}
{{- if gt (int .Values.gpu.count) 0 }}
{{ .Values.gpu.resource }}: {{ .Values.gpu.count }}
{{- end }}
{{- end }}

{{- define "tritone.volumes" -}}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.sharedMemory }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.temporary }}
- name: cache
  {{- if .Values.cache.source }}
  {{- toYaml .Values.cache.source | nindent 2 }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ .Values.cache.size }}
  {{- end }}
{{- if and .Values.models.volume.source (not .Values.kserve.enabled) }}
- name: models
  {{- toYaml .Values.models.volume.source | nindent 2 }}
{{- end }}
{{- if .Values.tls.secretName }}
- name: tls
  secret:
    secretName: {{ .Values.tls.secretName | quote }}
{{- end }}
{{- end }}

{{/* Where pods of any kind may run. */}}
{{- define "tritone.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A quantity of memory, in bytes. */}}
{{- define "tritone.bytes" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mulf (float64 (regexFind "^[0-9.]+" .)) (float64 (get $units (regexFind "[A-Za-z]*$" .))) }}
{{- end }}

{{/* Values that exclude or need each other. */}}
{{- define "tritone.check" -}}
{{- if and (include "tritone.storage" . | fromYaml).url .Values.models.volume.source }}
{{- fail "models.storage.url and models.volume.source are both given: name one place for the models" }}
{{- end }}
{{- if not (or (include "tritone.storage" . | fromYaml).url .Values.models.volume.source) }}
{{- fail "no models: set models.storage.url, or models.volume.source to a volume such as {persistentVolumeClaim: {claimName: models}}" }}
{{- end }}
{{- if and .Values.models.s3.url .Values.models.storage.url }}
{{- fail "models.s3 is the old name of models.storage, and both have a url: use models.storage alone" }}
{{- end }}
{{- if and .Values.kserve.enabled (hasPrefix "az://" (include "tritone.storage" . | fromYaml).url) }}
{{- fail "KServe reads no az:// addresses: serve without kserve.enabled, or from a volume" }}
{{- end }}
{{- if ge (float64 (include "tritone.bytes" .Values.sharedMemory)) (float64 (include "tritone.bytes" .Values.resources.memory)) }}
{{- fail (printf "sharedMemory (%s) must be less than resources.memory (%s), which contains it" .Values.sharedMemory .Values.resources.memory) }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) }}
{{- fail "ingress.enabled needs ingress.host" }}
{{- end }}
{{- $routes := include "tritone.routes" . | fromYaml }}
{{- if and $routes.enabled (not $routes.name) }}
{{- fail "routes.enabled needs routes.name, the Gateway that the routes belong to" }}
{{- end }}
{{- if and .Values.gateway.name .Values.routes.enabled }}
{{- fail "gateway.name is the old name of routes.name, and routes.enabled is set too: use routes alone" }}
{{- end }}
{{- if and .Values.gateway.ingress.enabled (not .Values.gateway.ingress.host) }}
{{- fail "gateway.ingress.enabled needs gateway.ingress.host" }}
{{- end }}
{{- if and .Values.gateway.autoscaling.enabled (gt (int .Values.gateway.autoscaling.minReplicas) (int .Values.gateway.autoscaling.maxReplicas)) }}
{{- fail "gateway.autoscaling.minReplicas is more than gateway.autoscaling.maxReplicas" }}
{{- end }}
{{- $riva := int .Values.gateway.rivaPort }}
{{- $wyoming := int .Values.gateway.wyomingPort }}
{{- if or (has $riva (list 9000 9002)) (has $wyoming (list 9000 9002)) (and $riva (eq $riva $wyoming)) }}
{{- fail "gateway.rivaPort and gateway.wyomingPort must differ from each other, and from 9000 and 9002, which the gateway has already" }}
{{- end }}
{{- if and (has (toString .Values.rollout.maxSurge) (list "0" "0%")) (has (toString .Values.rollout.maxUnavailable) (list "0" "0%")) }}
{{- fail "rollout.maxSurge and rollout.maxUnavailable are both 0, so that no pod can ever be replaced: give one of them" }}
{{- end }}
{{- if ge (int .Values.drain.settleSeconds) (int .Values.drain.limitSeconds) }}
{{- fail (printf "drain.settleSeconds (%d) must be less than drain.limitSeconds (%d)" (int .Values.drain.settleSeconds) (int .Values.drain.limitSeconds)) }}
{{- end }}
{{- if and .Values.autoscaling.enabled (not .Values.autoscaling.streamsPerReplica) (not .Values.autoscaling.queueMilliseconds) }}
{{- fail "autoscaling.enabled needs autoscaling.streamsPerReplica or autoscaling.queueMilliseconds" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- fail "autoscaling.minReplicas is more than autoscaling.maxReplicas" }}
{{- end }}
{{- end }}

{{/* What the outside may ask for, by the protocol and the type of the path: nothing that needs the server's key. */}}
{{- define "tritone.paths" -}}
{{- if eq . "http" }}
Exact:
  - /v2
  - /v2/health/live
  - /v2/health/ready
Prefix:
  - /v2/models
{{- else }}
Exact:
  {{- range splitList " " "ModelInfer ModelStreamInfer ModelReady ModelMetadata ModelConfig ModelStatistics ServerLive ServerReady ServerMetadata" }}
  - /inference.GRPCInferenceService/{{ . }}
  {{- end }}
  - /grpc.health.v1.Health/Check
{{- end }}
{{- end }}

{{- define "tritone.parent" -}}
{{- $routes := include "tritone.routes" . | fromYaml }}
parentRefs:
  - name: {{ $routes.name | quote }}
    {{- with $routes.namespace }}
    namespace: {{ . | quote }}
    {{- end }}
{{- with $routes.hostnames }}
hostnames:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* KServe fetches a bucket, or mounts a claim. */}}
{{- define "tritone.storageUri" -}}
{{- if (include "tritone.storage" . | fromYaml).url }}{{ (include "tritone.storage" . | fromYaml).url }}
{{- else if .Values.models.volume.source.persistentVolumeClaim -}}
pvc://{{ .Values.models.volume.source.persistentVolumeClaim.claimName }}{{ with .Values.models.volume.subPath }}/{{ . }}{{ end }}
{{- else }}{{ fail "kserve.enabled takes models from models.storage.url or from a persistentVolumeClaim" }}
{{- end }}
{{- end }}

{{/* The service for clients; KServe makes one of its own. Its first port is 80. */}}
{{- define "tritone.service" -}}
{{ include "tritone.name" . }}{{ if .Values.kserve.enabled }}-predictor{{ end }}
{{- end }}

{{/* The place of models in storage. Until 0.2 its values were called s3. */}}
{{- define "tritone.storage" -}}
{{- if .Values.models.s3.url }}
{{- toYaml .Values.models.s3 }}
{{- else }}
{{- toYaml .Values.models.storage }}
{{- end }}
{{- end }}

{{/* Routes of the Gateway API. Until 0.2 their values were called gateway, which is told by its name. */}}
{{- define "tritone.routes" -}}
{{- if .Values.gateway.name }}
{{- $old := pick .Values.gateway "enabled" "name" "namespace" "hostnames" "envoyPolicy" }}
{{- if not (hasKey $old "envoyPolicy") }}{{ $_ := set $old "envoyPolicy" true }}{{ end }}
{{- toYaml $old }}
{{- else }}
{{- toYaml .Values.routes }}
{{- end }}
{{- end }}

{{/* Whether there is a gateway for applications. */}}
{{- define "tritone.hasGateway" -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.name) }}true{{ end }}
{{- end }}

{{- define "tritone.gatewayName" -}}
{{ include "tritone.name" . }}-gateway
{{- end }}

{{- define "tritone.gatewaySelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-gateway
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "tritone.gatewayMetadata" -}}
name: {{ include "tritone.gatewayName" . }}
namespace: {{ .Release.Namespace | quote }}
labels:
  {{- include "tritone.gatewaySelector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tritone.gatewayImage" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}{{ .Values.gateway.image.repository }}
{{- with .Values.gateway.image.digest }}@{{ . }}{{ else }}:{{ .Values.gateway.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Where the gateway finds Triton. */}}
{{- define "tritone.triton" -}}
{{- .Values.gateway.triton | default (printf "%s://%s:%d" (ternary "https" "http" (ne .Values.tls.secretName "")) (include "tritone.service" .) (ternary 80 8000 .Values.kserve.enabled)) }}
{{- end }}

{{/* The ports on which the gateway's clients come, by their names. */}}
{{- define "tritone.gatewayPorts" -}}
http: 9000
{{- with .Values.gateway.rivaPort }}
riva: {{ . }}
{{- end }}
{{- with .Values.gateway.wyomingPort }}
wyoming: {{ . }}
{{- end }}
{{- end }}
