# Patchbay. `make test` is everything that must pass; the rest are parts of it
# or take longer.

GO      ?= go
DESTDIR ?=
CNI_BIN ?= $(DESTDIR)/opt/cni/bin
IMAGE   ?= ghcr.io/patchbay-net/patchbay:latest

# The routine that asks for a resident process before Go starts.
ENTRY   := $(if $(filter amd64,$(shell $(GO) env GOARCH)),-E=github.com/patchbay-net/patchbay/internal/handover.entry)

# Real callers and a second kernel need root: as anybody else `make test` stops
# after what an ordinary user can run, and says so.
ROOT    := $(filter 0,$(shell id -u))
BEGAN   := $(shell date +%s)

# One stage after the other: each wants the whole machine.
.NOTPARALLEL:
.PHONY: build test setup setup-nightly lint unit e2e test-kernel race fuzz bench install kube-e2e nightly demo image

build: ## bin/patchbay, bin/patchbayd and bin/patchbay-cnm: static, as they are released
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w $(ENTRY)' -o bin/patchbay ./cmd/patchbay
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/patchbayd ./cmd/patchbayd
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/patchbay-cnm ./cmd/patchbay-cnm

test: setup lint unit $(if $(ROOT),e2e test-kernel)
	@echo "make: test: ok, $$(($$(date +%s) - $(BEGAN))) s" >&2
	@$(if $(ROOT),:,echo 'make: not root: real callers (make e2e) and the second kernel (make test-kernel) were not run' >&2)

setup: ## fetches and builds what tests need; the stages after it fetch nothing
	scripts/setup

setup-nightly: ## what only nightly needs too: Kubernetes' own tests
	scripts/setup nightly

lint: setup
	scripts/stage lint scripts/lint

unit: setup
	scripts/stage unit scripts/unit

e2e: setup ## podman, containerd under a kubelet, dockerds, upstream libcni
	PATCHBAY_E2E=1 scripts/stage e2e $(GO) test -count=1 -timeout 40m ./test/e2e/...

test-kernel: setup ## what this kernel cannot decide, under Debian's 6.1
	scripts/stage test-kernel scripts/test-kernel

race: setup
	CGO_ENABLED=1 scripts/stage race $(GO) test -race -timeout 60m ./...

fuzz:
	scripts/fuzz

bench: setup ## beside the reference plugins; writes docs/bench
	$(GO) run ./test/bench
	$(GO) run ./test/bench/kubescale
	$(GO) run ./test/bench/kubescale -policies 0,1000,2000,5000
	scripts/bench-kernel

install: build
	bin/patchbay install $(CNI_BIN)

kube-e2e: setup-nightly ## Kubernetes' own tests of networks on three nodes, and clusters that a change need not wait for
	earlier=$$(mktemp -d) && scripts/earlier 2da032a8 $$earlier && \
		logs=$$(mktemp -d) && echo "logs in $$logs" && PATCHBAY_EARLIER_AGENT=$$earlier PATCHBAY_E2E=1 PATCHBAY_NIGHTLY=1 PATCHBAY_KUBE_E2E=$$logs \
		PATCHBAY_KUBE_CHURN=10m PATCHBAY_KUBE_FIRST=500 scripts/stage kube-e2e $(GO) test -count=1 -timeout 4h -v -run 'TestSigNetwork|TestNetpol|TestClusterNetworkPolicy|TestPolicy|TestDaemonSet|TestMigrate|TestPodNetworkIPv6|TestWhy|TestPodRate|TestDockerBesidePods|TestChurn' ./test/e2e

nightly: test race kube-e2e ## longer than a change can wait for
	FUZZTIME=1m scripts/fuzz
	PATCHBAY_CRASH_TRIES=5000 PATCHBAY_CHURN=10m $(GO) test -timeout 90m ./test/crash/...
	PATCHBAY_POLICY_CHURN=10m $(GO) test -count=1 -timeout 20m -v -run TestPolicyChurnOfANode ./node
	earlier=$$(mktemp -d) && scripts/earlier 17baa13 $$earlier && \
		PATCHBAY_E2E=1 PATCHBAY_EARLIER=$$earlier $(GO) test -count=1 -timeout 20m -run TestTwoSchemas ./test/e2e
	seed=$$(date +%s); echo "PATCHBAY_CHAOS_SEED=$$seed"; \
		PATCHBAY_CHAOS_SEED=$$seed PATCHBAY_CHAOS_TRIES=50000 $(GO) test -timeout 120m -run TestChaos ./hosts
	seed=$$(date +%s); echo "PATCHBAY_STORM_SEED=$$seed"; \
		PATCHBAY_E2E=1 PATCHBAY_STORM_SEED=$$seed scripts/stage storm $(GO) test -count=1 -timeout 60m -run TestKilled ./test/e2e/docker
	seed=$$(date +%s); echo "PATCHBAY_DIFF_SEED=$$seed"; \
		PATCHBAY_DIFF_SEED=$$seed PATCHBAY_DIFF_CASES=300 $(GO) test -timeout 240m ./test/differential
	$(GO) run ./test/bench

image: build ## bin/patchbay-image.tar, the Kubernetes agent for `ctr images import`
	$(GO) run ./dist/image bin/patchbay-image.tar $(IMAGE) bin/patchbay bin/patchbayd

demo: ## two containers, a published port and the way out, then nothing is left
	$(GO) run ./cmd/patchbay demo
