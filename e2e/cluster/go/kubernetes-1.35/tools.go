//go:build tools

// Package tools lets the Go module know of the test program of Kubernetes' end-to-end suite, which is no "tool" in go.mod: it is built by go test -c.
package tools

import _ "k8s.io/kubernetes/test/e2e"
