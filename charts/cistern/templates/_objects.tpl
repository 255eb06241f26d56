{{/*
The chart has no objects of its own: it reads the manifests (files/ links to them), and changes what the values and the
release say. So kustomize and Helm cannot come to differ.

cistern.objects renders the objects of the files that match a pattern. Nothing in them is a template.
*/}}
{{- define "cistern.objects" -}}
{{- $root := .root -}}
{{- $keep := .keep -}}
{{- range $path, $content := $root.Files.Glob .files -}}
{{- range $document := splitList "\n---\n" (toString $content) -}}
{{- $object := fromYaml $document -}}
{{- if hasKey $object "Error" }}{{ fail (printf "%s: %s" $path $object.Error) }}{{ end -}}
{{- if not (and (eq $object.kind "Namespace") (not $root.Values.namespace.create)) -}}
{{- include "cistern.metadata" (dict "root" $root "object" $object "keep" $keep) -}}
{{- if has $object.kind (list "Deployment" "DaemonSet") -}}
{{- include "cistern.workload" (dict "root" $root "object" $object) -}}
{{- end }}
---
{{ toYaml $object }}
{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* cistern.metadata sets labels, the namespace, and the annotation that keeps an object. */}}
{{- define "cistern.metadata" -}}
{{- $object := .object -}}
{{- $namespace := .root.Release.Namespace -}}
{{- $metadata := $object.metadata -}}
{{- $_ := set $metadata "labels" (merge (include "cistern.labels" . | fromYaml) (default dict $metadata.labels)) -}}
{{- if has $object.kind (list "PodMonitor" "PrometheusRule") -}}
{{- $_ := set $metadata "labels" (merge $metadata.labels .root.Values.monitoring.labels) -}}
{{- end -}}
{{- if .keep -}}
{{- $_ := set $metadata "annotations" (merge (dict "helm.sh/resource-policy" "keep") (default dict $metadata.annotations)) -}}
{{- end -}}
{{- if eq $object.kind "Namespace" -}}
{{- $_ := set $metadata "name" $namespace -}}
{{- else if has $object.kind (include "cistern.namespaced" . | fromYamlArray) -}}
{{- $_ := set $metadata "namespace" $namespace -}}
{{- end -}}
{{- range $subject := $object.subjects -}}
{{- $_ := set $subject "namespace" $namespace -}}
{{- end -}}
{{- end -}}

{{- define "cistern.labels" -}}
app.kubernetes.io/name: cistern
app.kubernetes.io/part-of: cistern
{{- end -}}

{{/* The namespaced kinds of the manifests. */}}
{{- define "cistern.namespaced" -}}
- ConfigMap
- DaemonSet
- Deployment
- NetworkPolicy
- PodDisruptionBudget
- PodMonitor
- PrometheusRule
- Role
- RoleBinding
- Service
- ServiceAccount
{{- end -}}
