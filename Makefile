# Patchbay. `make test` is for every change, `make test-all` must pass before it lands,
# `make nightly` takes hours.

GO      ?= go
DESTDIR ?=
CNI_BIN ?= $(DESTDIR)/opt/cni/bin
IMAGE   ?= ghcr.io/patchbay-net/patchbay:latest

# Real callers and a second kernel need root: anybody else runs what an ordinary
# user can, and is told so.
ROOT    := $(filter 0,$(shell id -u))
BEGAN   := $(shell date +%s)
RUN      = env CGO_ENABLED=0 $(GO) test -count=1 -trimpath -ldflags=-w # built as scripts/unit builds
OK       = echo "make: $@: ok, $$(($$(date +%s) - $(BEGAN))) s" >&2

# One stage after the other: each wants the whole machine.
.NOTPARALLEL:
.PHONY: build test test-all test-rest setup unit podman lint draws race e2e test-kernel fuzz bench install nightly matrix scoreboard demo image release site

build: ## bin/patchbay, bin/patchbayd, bin/patchbay-cnm and bin/patchbay-conformance: static, as they are released
	scripts/build bin

test: setup unit $(if $(ROOT),podman) ## what a contributor runs, in minutes
	@scripts/left
	@$(OK)

test-all: test test-rest ## what a submission must pass

test-rest: lint draws race $(if $(ROOT),e2e test-kernel) ## what `make test` leaves out of that
	@$(OK)

setup: ## fetches what `make test` needs; the stages after it fetch nothing
	scripts/setup test

unit: setup ## vet and all packages' tests, with short draws
	scripts/stage unit scripts/unit

podman: setup ## Debian's podman with our plugins
	PATCHBAY_E2E=1 scripts/stage podman $(RUN) -run '^TestPodman$$' ./test/e2e

lint:
	scripts/setup lint
	scripts/stage lint scripts/lint

draws: setup ## tests that draw cases, repeat or run for a time: longer
	scripts/stage draws scripts/draws

race: setup
	CGO_ENABLED=1 scripts/stage race scripts/race

e2e: ## containerd under a kubelet, dockerds, upstream libcni, the pages for users
	scripts/setup e2e
	PATCHBAY_E2E=1 scripts/stage e2e $(RUN) -timeout 40m ./test/e2e/...

test-kernel: ## what this kernel cannot decide, under Debian's 6.1
	scripts/setup kernel
	scripts/stage test-kernel scripts/test-kernel

fuzz:
	scripts/fuzz

bench: setup ## beside the reference plugins; writes docs/bench
	scripts/setup e2e
	$(GO) run ./test/bench
	$(GO) run ./test/bench/kubescale
	$(GO) run ./test/bench/kubescale -policies 0,1000,2000,5000
	scripts/bench-kernel

install: build
	bin/patchbay install --backup $(CNI_BIN).before $(CNI_BIN)

matrix: ## other kernels, arm64, and runtimes of Debian's other releases; writes docs/tested.md
	scripts/setup matrix
	scripts/stage matrix scripts/matrix all
scoreboard: ## patchbay-conformance on plugins and runtimes of others; writes docs/scoreboard.md
	scripts/stage scoreboard scripts/scoreboard all

nightly: ## longer than a change can wait for; its draws say their seed
	scripts/nightly

image: build ## bin/patchbay-image.tar, the Kubernetes agent for `ctr images import`
	$(GO) run ./daemons/dist/image bin/patchbay-image.tar $(IMAGE) bin/patchbay bin/patchbayd

release: ## VERSION=v0.1.0 [OUT=dir] [KEY=file]: what users download, in bin/VERSION; docs/releases.md
	scripts/setup release
	scripts/release $(if $(KEY),-k $(KEY)) $(VERSION) $(or $(OUT),bin/$(VERSION))

site: ## the pages as HTML, in bin/site
	$(GO) run ./test/site bin/site

demo: ## two containers, a published port and the way out, then nothing is left
	$(GO) run ./cmd/patchbay demo
