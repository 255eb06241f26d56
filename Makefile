# The commands for developers and CI. `make` lists them.
SHELL := /bin/bash

# KUBERNETES=1.35 runs a target with that version of Kubernetes, on a cluster of its own.
ifdef KUBERNETES
export CISTERN_KUBERNETES := $(KUBERNETES)
export CISTERN_CLUSTER ?= cistern-$(KUBERNETES)
endif

CACHE := $(or $(CISTERN_CACHE),$(HOME)/.cache/cistern)
DENY := $(CACHE)/cargo-deny-0.20.2/bin/cargo-deny
MDBOOK := $(CACHE)/mdbook-0.5.4/bin/mdbook
SBOM := $(CACHE)/cargo-cyclonedx-0.5.9/bin/cargo-cyclonedx
KUBECONFIG_OF_CLUSTER := $(CACHE)/clusters/$(or $(CISTERN_CLUSTER),cistern)/kubeconfig
SCRIPTS := $(shell grep -rlE '^\#!/bin/(ba)?sh|^\# shellcheck shell=' e2e release .ci --include='*' --exclude-dir=src --exclude-dir=tests)

.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install Debian packages (root) and build the programs that tests and demo need, into a cache
	e2e/cluster/prepare

build: ## Compile everything for development
	cargo build --workspace

kubectl-plugin: ## Compile the kubectl plugin, and print how to install it
	cargo build --release --locked --package kubectl-cistern
	@echo 'Copy it to a folder in your PATH, for example:  sudo install $(or $(CARGO_TARGET_DIR),target)/release/kubectl-cistern /usr/local/bin/'
	@echo 'Completion for the command kubectl-cistern:  source <(kubectl-cistern completion bash)'

generate: ## Write crds/*.yaml and two pages of docs from the Rust types, and the alert rules for prometheus-operator
	cargo run --quiet --package cistern-crds --bin crdgen crds docs
	e2e/prometheus-rule >manifests/monitoring/prometheus-operator/rules.yaml

# The book is built from a copy, with the documents at the same places as in the repository, so that links out of docs/ work in it.
docs: $(MDBOOK) ## Build the book of docs/ into target/book
	rm -rf target/book target/book-source
	mkdir -p target/book-source
	cp -r *.md LICENSE docs manifests docs/book.toml target/book-source
	sed -E 's#\]\(([a-z])#](docs/\1#; s#\]\(\.\./#](#' docs/SUMMARY.md >target/book-source/SUMMARY.md
	rm target/book-source/docs/SUMMARY.md target/book-source/docs/book.toml
	$(MDBOOK) build --dest-dir $(CURDIR)/target/book target/book-source

fmt: ## Format the code
	cargo fmt --all

check: ## The quick checks: format, lints, unit tests, generated files, requirements, licences
	e2e/steps check

check-moving: ## Check the model of moving with all parts together, which takes long, and write its counterexamples
	cargo run --quiet --locked --package cistern-model
	cargo run --quiet --locked --package cistern-model -- mutations >target/counterexamples.md
	mv target/counterexamples.md model/counterexamples.md

test: ## What CI runs: check, host, virtual machine, API server, csi-sanity, and the cluster's tests on kind
	e2e/steps test

nightly: ## What takes too long for each commit: all tests in virtual machines, and 50 moves with kills (root)
	e2e/steps nightly

test-host: ## Pools, images and mounts on real loop devices (root)
	e2e/steps host

test-vm: ## The same on Debian's kernel in a virtual machine, where a mounted ext4 grows
	e2e/steps vm

test-vm-node: ## The agent on a node with Debian's kernel, in a virtual machine, against a real API server
	e2e/steps vm-node

test-api: ## Operator, controller, agent and csi-sanity against a real API server (root)
	e2e/steps api

test-cluster: ## The tests on kind
	e2e/steps cluster

requirements: ## List the test of each CSI requirement; fails if one has none
	@cargo run --quiet --locked --package cistern-e2e --bin requirements $(if $(QUIET),>/dev/null)

bench: ## Benchmarks, each with a reference measured in the same run (root)
	e2e/steps bench

bench-bulk: ## Many pods with volumes at a time on kind, beside as many without; PODS="50 200" sets how many (root)
	e2e/steps bench-bulk

bench-scale: ## Operator and controller with many nodes and volumes; SIZES="10x1000 ... 1000x100000" sets others (root)
	e2e/steps bench-scale

storage-suite: ## Kubernetes' own storage tests on the running cluster
	e2e/cluster/prepare --what storage-suite
	e2e/cluster/load storage-suite
	KUBECONFIG=$(KUBECONFIG_OF_CLUSTER) e2e/storage-suite/run

conformance: ## All of Kubernetes' own storage tests, on a kind cluster; takes more than an hour; RUNS="btrfs one-node" selects; KUBERNETES=1.35 for that version (root)
	e2e/cluster/prepare --what cluster storage-suite
	e2e/cluster/up
	e2e/cluster/build-images
	e2e/cluster/load storage-suite
	KUBECONFIG=$(KUBECONFIG_OF_CLUSTER) e2e/storage-suite/conformance $(RUNS)

cluster-up: ## Bring up a kind cluster with three workers; needs no registry
	e2e/cluster/up

cluster-down: ## Remove the cluster and everything it created
	e2e/cluster/down

images: ## Build the images and load them into the cluster
	e2e/cluster/build-images

demo: ## Install Cistern on a kind cluster, and show a volume that outlives its pod
	@e2e/demo --plan
	e2e/cluster/prepare --what cluster
	e2e/cluster/up
	PROFILE=quick e2e/cluster/build-images
	KUBECONFIG=$(KUBECONFIG_OF_CLUSTER) e2e/demo

release: ## Images, manifests, plugin, SBOM and checksums in dist; VERSION=v0.1.0 states the tag; ARCHITECTURES=amd64 makes one only
	@VERSION='$(VERSION)' release/make

lint-scripts: # shellcheck, and actionlint for the workflows
	@shellcheck --external-sources --source-path=e2e/cluster --source-path=e2e/offline $(SCRIPTS)
	@"$$(e2e/cluster/tool actionlint)"

deny: $(DENY)
	@$(DENY) --config .deny.toml --log-level error check --hide-inclusion-graph bans licenses sources

sbom-tool: $(SBOM)
	@echo $(SBOM)

# The folder of each program is named after its crate and version. Nothing goes to standard output: sbom-tool prints a path there.
$(DENY) $(MDBOOK) $(SBOM): crate = $(notdir $@)
$(DENY) $(MDBOOK) $(SBOM): root = $(patsubst %/bin/,%,$(dir $@))
$(DENY) $(MDBOOK) $(SBOM):
	CARGO_TARGET_DIR=$(CACHE)/build-$(crate) cargo install --quiet --locked $(crate) --version $(patsubst $(crate)-%,%,$(notdir $(root))) --root $(root) >&2
	rm -rf $(CACHE)/build-$(crate)

clean: ## Remove cargo's output (the cache of programs and images is kept)
	cargo clean

.PHONY: help docs kubectl-plugin requirements bench bench-bulk bench-scale storage-suite conformance setup build generate fmt check check-moving test test-host test-vm test-vm-node test-api test-cluster cluster-up cluster-down images demo release lint-scripts deny sbom-tool clean
