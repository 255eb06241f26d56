{{/* cistern.workload changes a Deployment or DaemonSet to what the values say. */}}
{{- define "cistern.workload" -}}
{{- $values := .root.Values -}}
{{- $object := .object -}}
{{- $component := trimPrefix "cistern-" $object.metadata.name -}}
{{- $chosen := index $values $component -}}
{{- $template := $object.spec.template -}}
{{- $pod := $template.spec -}}
{{- $_ := set $template.metadata "labels" (merge (include "cistern.labels" . | fromYaml) $template.metadata.labels) -}}
{{- if hasKey $chosen "replicas" -}}
{{- $_ := set $object.spec "replicas" $chosen.replicas -}}
{{- end -}}
{{- range $key := list "nodeSelector" "tolerations" -}}
{{- $_ := unset $pod $key -}}
{{- with index $chosen $key }}{{ $_ := set $pod $key . }}{{ end -}}
{{- end -}}
{{- with $values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end -}}
{{- if and (eq $component "controller") $values.snapshots.enabled -}}
{{- $patch := .root.Files.Get "files/snapshots/snapshotter.yaml" | fromYaml -}}
{{- $_ := set $pod "containers" (concat $patch.spec.template.spec.containers $pod.containers) -}}
{{- end -}}
{{- if and (eq $component "controller") $values.snapshotMetadata.enabled -}}
{{- $patch := .root.Files.Get "files/snapshot-metadata/sidecar.yaml" | fromYaml -}}
{{- $_ := set $pod "containers" (concat $patch.spec.template.spec.containers $pod.containers) -}}
{{- $_ := set $pod "volumes" (concat $patch.spec.template.spec.volumes $pod.volumes) -}}
{{- end -}}
{{- range $container := $pod.containers -}}
{{- $resources := $chosen.resources -}}
{{- if eq $component "controller" }}{{ $resources = index $chosen.resources $container.name }}{{ end -}}
{{- with $resources }}{{ $_ := set $container "resources" . }}{{ end -}}
{{- include "cistern.container" (dict "root" $.root "container" $container) -}}
{{- end -}}
{{- if eq $component "node" -}}
{{- with $chosen.env }}{{ include "cistern.env" (dict "variables" . "container" (first $pod.containers)) }}{{ end -}}
{{- include "cistern.kubeletRoot" (dict "root" .root "pod" $pod) -}}
{{- with $chosen.poolDirectories }}{{ include "cistern.poolDirectories" (dict "directories" . "pod" $pod) }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* cistern.container sets the image, and how Cistern's own processes log. */}}
{{- define "cistern.container" -}}
{{- $values := .root.Values -}}
{{- $container := .container -}}
{{- $image := index $values.image $container.name -}}
{{- $reference := printf "%s:%s" $image.repository (default .root.Chart.AppVersion $image.tag) -}}
{{- with $image.digest }}{{ $reference = printf "%s@%s" $reference . }}{{ end -}}
{{- $_ := set $container "image" $reference -}}
{{- $_ := set $container "imagePullPolicy" $image.pullPolicy -}}
{{- if has $container.name (list "driver" "operator") -}}
{{- $env := $container.env -}}
{{- with $values.logLevel }}{{ $env = append $env (dict "name" "LOG_LEVEL" "value" .) }}{{ end -}}
{{- with $values.logFormat }}{{ $env = append $env (dict "name" "LOG_FORMAT" "value" .) }}{{ end -}}
{{- $_ := set $container "env" $env -}}
{{- end -}}
{{- end -}}

{{/* cistern.env adds environment variables. A number of a file of values is a float64, whose own text has an exponent. */}}
{{- define "cistern.env" -}}
{{- $container := .container -}}
{{- range $name, $value := .variables -}}
{{- if not (kindIs "string" $value) }}{{ $value = int64 $value | toString }}{{ end -}}
{{- $_ := set $container "env" (append $container.env (dict "name" $name "value" $value)) -}}
{{- end -}}
{{- end -}}

{{/* cistern.kubeletRoot sets what manifests/components/kubelet-root sets. */}}
{{- define "cistern.kubeletRoot" -}}
{{- $path := .root.Values.kubeletRoot -}}
{{- range $container := .pod.containers -}}
{{- range $variable := $container.env -}}
{{- if eq $variable.name "KUBELET_ROOT" }}{{ $_ := set $variable "value" $path }}{{ end -}}
{{- end -}}
{{- range $mount := $container.volumeMounts -}}
{{- if eq $mount.name "kubelet" }}{{ $_ := set $mount "mountPath" $path }}{{ end -}}
{{- end -}}
{{- end -}}
{{- range $volume := .pod.volumes -}}
{{- if eq $volume.name "kubelet" }}{{ $_ := set $volume.hostPath "path" $path }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* cistern.poolDirectories adds what manifests/components/pool-directory adds for one directory. */}}
{{- define "cistern.poolDirectories" -}}
{{- $pod := .pod -}}
{{- $container := first $pod.containers -}}
{{- $variable := dict "name" "POOL_DIRECTORIES" "value" (join ":" .directories) -}}
{{- $_ := set $container "env" (prepend $container.env $variable) -}}
{{- range $index, $path := .directories -}}
{{- $name := printf "pool-directory-%d" $index -}}
{{- $mount := dict "name" $name "mountPath" $path "mountPropagation" "HostToContainer" -}}
{{- $_ := set $container "volumeMounts" (prepend $container.volumeMounts $mount) -}}
{{- $volume := dict "name" $name "hostPath" (dict "path" $path "type" "DirectoryOrCreate") -}}
{{- $_ := set $pod "volumes" (prepend $pod.volumes $volume) -}}
{{- end -}}
{{- end -}}
