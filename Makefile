# The commands of developers and CI. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# Cargo profile of `make run`: dev, which compiles in minutes and shares its crates with the tests, or release. `make bench`
# uses release.
PROFILE ?= dev
DATA_DIR ?= .data
# Further arguments for `signalbox up`, for example: make run ARGS="--exit-when-idle"
ARGS ?=

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
SIGNALBOX = $(TARGET_DIR)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/signalbox
# All tests use the feature of the fault campaign, so that everything is compiled once.
TEST_FEATURES := --features system-tests/chaos
# The fault campaign's programs.
CHAOS := -p system-tests -p signalbox --bins $(TEST_FEATURES)
# For `make chaos`: number of faults, seed, and further arguments, for example: make chaos ARGS=recovery. With PLANTED
# (names of planted bugs, or `all`) the campaign checks that it finds those bugs.
FAULTS ?= 200
SEED ?= 1
# With SIM, `make chaos` runs this many seeds of the simulation instead, from SEED on, in a release build.
SIM ?=
PLANTED ?=

# For `make deny`: repository of RustSec's advisories, or a copy of it (git://host/path, branch main).
ADVISORY_DB ?= https://github.com/RustSec/advisory-db

# For `make containers`: the commit to upgrade from and to roll back to.
BEFORE ?=

# For `make bench`: words in the names of the rows to run; empty for all rows.
ROWS ?=

# For `make fuzz`: number of inputs for each parser, and a part of the parser's name. SEED applies, too.
RUNS ?= 200000
TARGET ?=

# Tools are installed in this folder and not in the user's folders.
TOOLS := $(CURDIR)/.tools
export PATH := $(TOOLS)/bin:$(PATH)

.PHONY: help run test ci chaos nightly age contract clients conformance fuzz bench bench-peers bench-micro lint fmt schemas images env manifests digests containers provision build smoke rust nextest deny

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: provision build ## Start Signalbox with its own NATS, Postgres and demo agent, and the sample (ARGS=, PROFILE=release, DATA_DIR=)
	exec $(SIGNALBOX) up --data-dir $(DATA_DIR) --sample examples/notifications.ndjson $(ARGS)

test: provision rust nextest ## Run all tests except those of `make nightly`
	cargo nextest run --workspace $(TEST_FEATURES)

ci: provision rust nextest ## Check what CI checks on a change: formatting, lints, dependencies, manifests, tests without campaigns, schemas, the sample
	cargo fmt --all --check
	cargo fmt --manifest-path tests/containers/Cargo.toml --check
	$(MAKE) lint
	$(MAKE) deny
	$(MAKE) manifests
	tests/chaos/planted/apply
	cargo nextest run --workspace $(TEST_FEATURES) --profile ci
	$(MAKE) schemas
	@git diff --exit-code -- schemas || { echo "ci: schemas/ is out of date: run make schemas and commit" >&2; exit 1; }
	@untracked=$$(git ls-files --others --exclude-standard -- schemas); \
	[ -z "$$untracked" ] || { echo "ci: not committed: $$untracked" >&2; exit 1; }
	$(MAKE) smoke

chaos: provision rust ## Run the fault campaign (FAULTS=, SEED=, ARGS=, PLANTED=), or SIM= seeds of the simulation
ifneq ($(PLANTED),)
	tests/chaos/planted/run planted $(PLANTED) --without --seed $(SEED) $(ARGS)
else
	cargo build $(CHAOS) $(if $(SIM),--release)
	$(TARGET_DIR)/$(if $(SIM),release,debug)/chaos $(if $(SIM),simulate --seeds $(SIM) --from $(SEED),--faults $(FAULTS) --seed $(SEED) $(ARGS))
endif

nightly: provision rust nextest ## Run what takes too long for every change: all tests at full length, containers, campaign, contract, clients, conformance, 20,000 seeds, age
	SIGNALBOX_NIGHTLY=1 cargo nextest run --workspace $(TEST_FEATURES) --profile nightly
	$(MAKE) containers
	$(MAKE) chaos FAULTS=500 SEED=$(SEED) ARGS="--again 2"
	$(MAKE) contract
	$(MAKE) clients
	$(MAKE) conformance
	$(MAKE) chaos SIM=20000
	$(MAKE) age

age: provision rust ## Simulate a day in an installation with millions of rows (ARGS=)
	cargo build $(CHAOS) --release
	$(TARGET_DIR)/release/chaos age $(ARGS)

contract: provision build ## Check the HTTP API against its OpenAPI document, with generated requests to a running `signalbox up` (ARGS=)
	tests/python contract $(SIGNALBOX) $(ARGS)

CLIENTS = tests/clients
clients: provision build ## Try Signalbox with programs of others: oidc-provider, aiosmtpd, nats-py, nats.js (needs node and npm)
	npm ci --prefix $(CLIENTS) --ignore-scripts --no-audit --no-fund
	tests/python clients $(SIGNALBOX)

fuzz: provision rust nextest ## Fuzz every parser (TARGET=, RUNS= for each, SEED=)
	SIGNALBOX_FUZZ_RUNS=$(RUNS) SIGNALBOX_FUZZ_SEED=$(SEED) cargo nextest run --workspace $(TEST_FEATURES) --profile fuzz \
	    -E 'test(/(^|::)fuzz::.*$(TARGET)/)'

bench: PROFILE = release
bench: provision rust ## Measure Signalbox against the floor of its stack (ROWS= chooses, ARGS=)
	cargo build -p bench -p signalbox --bins --profile $(PROFILE)
	$(dir $(SIGNALBOX))bench $(ROWS) --json $(TARGET_DIR)/bench.json --markdown $(TARGET_DIR)/bench.md $(ARGS)

PEERS = bench/peers
bench-peers: PROFILE = release
bench-peers: provision rust ## Measure Signalbox beside graphile-worker and Restate, from their packages (needs node and npm; ARGS=)
	npm ci --prefix $(PEERS) --ignore-scripts --no-audit --no-fund
	cargo build --manifest-path $(PEERS)/restate-service/Cargo.toml --release --target-dir $(TARGET_DIR)/peers
	cargo build -p bench -p signalbox --bins --profile $(PROFILE)
	$(dir $(SIGNALBOX))bench peers --json $(TARGET_DIR)/peers.json --markdown $(TARGET_DIR)/peers.md $(ARGS)

bench-micro: rust ## Measure single functions that use much CPU (ARGS= takes part of a name)
	cargo bench --workspace --bench micro -- $(ARGS)

lint: rust ## Lint everything; a warning fails
	cargo clippy --workspace --all-targets $(TEST_FEATURES) -- -D warnings

fmt: rust ## Format everything
	cargo fmt --all
	cargo fmt --manifest-path tests/containers/Cargo.toml

schemas: build ## Write schemas/ from the code
	$(SIGNALBOX) schemas --dir schemas

images: env ## Build the container image, and base images that cannot be pulled (SIGNALBOX_BINARY= packs a built program)
	deploy/images/make.sh

env: ## Create .env for docker compose, with random secrets, unless it exists
	@deploy/env.sh

# The image packs the program that the tests were built with, so that nothing is compiled for it.
containers: provision rust nextest ## Run the container tests (BEFORE=commit to upgrade from), or the public scenario against a deployment (SIGNALBOX_TARGET=url)
	$(if $(SIGNALBOX_TARGET),,$(MAKE) build)
	SIGNALBOX_BINARY=$(SIGNALBOX) SIGNALBOX_TARGET=$(SIGNALBOX_TARGET) SIGNALBOX_BEFORE=$(BEFORE) tests/containers/run

manifests: ## Check the Kubernetes manifests against Kubernetes' schemas and this project's rules
	@deploy/k8s/check/run

digests: ## Get the digests of third-party images from the registry and write them beside their tags
	@deploy/images/digests.py

provision: ## Install nats-server, Postgres and a linker if they are missing
	@deploy/provision/provision.sh

conformance: provision build ## Check Signalbox's queue against the cases of queue-conformance, with one and two replicas (ARGS=)
	cargo build -p queue-conformance --bins --profile $(PROFILE)
	for replicas in 1 2; do \
		$(dir $(SIGNALBOX))queue-conformance $(ARGS) \
			--driver "$(dir $(SIGNALBOX))queue-conformance-signalbox --signalbox $(SIGNALBOX) --replicas $$replicas"; \
	done

build: rust
	@echo "building signalbox alone, profile $(PROFILE)"
	cargo build -p signalbox --bin signalbox --profile $(PROFILE)

# Runs the sample once through all services, in a temporary folder. Postgres does not run as root and needs access to it.
smoke: provision build
	@data_dir=$$(mktemp -d); chmod 711 "$$data_dir"; trap 'rm -rf "$$data_dir"' EXIT; \
	timeout 300 $(SIGNALBOX) up --data-dir "$$data_dir/data" --http 127.0.0.1:0 \
	    --sample examples/notifications.ndjson --exit-when-idle || \
	    { echo "smoke: the end of the log:" >&2; tail -n 50 "$$data_dir/data/signalbox.log" >&2; exit 1; }

# Checks dependencies: licences, sources, bans, and RustSec's advisories if their database can be fetched.
deny: rust
	@deploy/provision/cargo-tool.sh cargo-deny
	cargo deny check bans licenses sources
	cargo deny --manifest-path tests/containers/Cargo.toml --config deny.toml check --allow license-not-encountered bans licenses sources
	@config=$(TARGET_DIR)/deny.toml; mkdir -p $(TARGET_DIR); \
	sed 's|^db-urls = .*|db-urls = ["$(ADVISORY_DB)"]|' deny.toml >$$config; \
	if ! cargo deny --config $$config fetch db >/dev/null 2>&1; then \
	    echo "deny: ADVISORIES WERE NOT CHECKED: $(ADVISORY_DB) cannot be fetched from here (ADVISORY_DB= names a copy)" >&2; \
	else \
	    cargo deny --config $$config check advisories && \
	    cargo deny --manifest-path tests/containers/Cargo.toml --config $$config check advisories; \
	fi

nextest: rust
	@deploy/provision/cargo-tool.sh cargo-nextest

rust:
	@command -v cargo >/dev/null || { echo "Rust is missing: install it with rustup" >&2; exit 1; }
