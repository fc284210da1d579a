# Everything a developer or CI runs. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# Cargo profile of `make run`: dev compiles in minutes and shares its crates with the tests; or release. `make bench`
# and images use release.
PROFILE ?= dev
DATA_DIR ?= .data
# Further arguments for `signalbox up`, as in: make run ARGS="--exit-when-idle"
ARGS ?=

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
SIGNALBOX = $(TARGET_DIR)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/signalbox
# Features of all tests, so that everything is compiled once: the fault campaign.
TEST_FEATURES := --features system-tests/chaos
# The fault campaign's programs.
CHAOS := -p system-tests -p signalbox --bins $(TEST_FEATURES)
# For `make chaos`: number of faults, seed, and further arguments, as in: make chaos ARGS=recovery. PLANTED names
# planted bugs to hunt instead, or `all`.
FAULTS ?= 200
SEED ?= 1
# Run so many seeds of the simulation instead, from SEED on; in a release build, which pays off for very many.
SIM ?=
PLANTED ?=

# For `make deny`: source of RustSec's advisories; may be a copy (git://host/path, branch main).
ADVISORY_DB ?= https://github.com/RustSec/advisory-db

# For `make containers`: a commit to upgrade from and to roll back to.
BEFORE ?=

# For `make bench`: words in the names of the rows; empty for all rows.
ROWS ?=

# For `make fuzz`: number of inputs for each parser, and a part of the parser's name. It takes SEED, too.
RUNS ?= 200000
TARGET ?=

# Tools are installed here and not into the user's own folders.
TOOLS := $(CURDIR)/.tools
export PATH := $(TOOLS)/bin:$(PATH)

.PHONY: help run test ci chaos nightly age contract fuzz bench bench-micro lint fmt schemas images env manifests digests containers provision build smoke rust nextest deny

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: provision build ## Start Signalbox with its own NATS, Postgres and demo agent, and the sample (ARGS=, PROFILE=release, DATA_DIR=)
	exec $(SIGNALBOX) up --data-dir $(DATA_DIR) --sample examples/notifications.ndjson $(ARGS)

test: provision rust nextest ## Run all tests but those of `make nightly`
	cargo nextest run --workspace $(TEST_FEATURES)

ci: provision rust nextest ## What CI runs on a change: formatting, lints, dependencies, manifests, tests but campaigns, schemas, the sample
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

chaos: provision rust ## Break everything and check what is left (FAULTS=, SEED=, ARGS=, PLANTED=), or run SIM= seeds of the simulation
ifneq ($(PLANTED),)
	tests/chaos/planted/run planted $(PLANTED) --without --seed $(SEED) $(ARGS)
else
	cargo build $(CHAOS) $(if $(SIM),--release)
	$(TARGET_DIR)/$(if $(SIM),release,debug)/chaos $(if $(SIM),simulate --seeds $(SIM) --from $(SEED),--faults $(FAULTS) --seed $(SEED) $(ARGS))
endif

nightly: provision rust nextest ## What takes too long for every change: all tests at full length, containers, a campaign, 20,000 seeds, age
	SIGNALBOX_NIGHTLY=1 cargo nextest run --workspace $(TEST_FEATURES) --profile nightly
	$(MAKE) containers
	$(MAKE) chaos FAULTS=500 SEED=$(SEED) ARGS="--again 2"
	$(MAKE) contract
	$(MAKE) chaos SIM=20000
	$(MAKE) age

age: provision rust ## An installation with millions of rows, in which a day goes by (ARGS=)
	cargo build $(CHAOS) --release
	$(TARGET_DIR)/release/chaos age $(ARGS)

contract: provision build ## Hold the HTTP API to its OpenAPI document, by made-up requests to a running `signalbox up` (ARGS=)
	tests/contract/run $(SIGNALBOX) $(ARGS)

fuzz: provision rust nextest ## Try made-up inputs on every parser (TARGET=, RUNS= for each, SEED=)
	SIGNALBOX_FUZZ_RUNS=$(RUNS) SIGNALBOX_FUZZ_SEED=$(SEED) cargo nextest run --workspace $(TEST_FEATURES) --profile fuzz \
	    -E 'test(/(^|::)fuzz::.*$(TARGET)/)'

bench: PROFILE = release
bench: provision rust ## Measure Signalbox against the floor of its stack (ROWS= chooses, ARGS=)
	cargo build -p bench -p signalbox --bins --profile $(PROFILE)
	$(dir $(SIGNALBOX))bench $(ROWS) --json $(TARGET_DIR)/bench.json --markdown $(TARGET_DIR)/bench.md $(ARGS)

bench-micro: rust ## Measure what is hot in the CPU, piece by piece (ARGS= takes part of a name)
	cargo bench --workspace --bench micro -- $(ARGS)

lint: rust ## Lint everything; a warning fails
	cargo clippy --workspace --all-targets $(TEST_FEATURES) -- -D warnings

fmt: rust ## Format everything
	cargo fmt --all
	cargo fmt --manifest-path tests/containers/Cargo.toml

schemas: build ## Write schemas/ from the code
	$(SIGNALBOX) schemas --dir schemas

images: env ## Build the container image, and base images where none can be pulled (SIGNALBOX_BINARY= for a program that is built)
	deploy/images/make.sh

env: ## Make .env for docker compose, with secrets of its own, unless there is one
	@deploy/env.sh

# Around the program that the tests were built with, so that nothing is compiled for it.
containers: provision rust nextest ## Run the tests in containers (BEFORE=commit to upgrade from), or the public scenario against a deployment (SIGNALBOX_TARGET=url)
	$(if $(SIGNALBOX_TARGET),,$(MAKE) build)
	SIGNALBOX_BINARY=$(SIGNALBOX) SIGNALBOX_TARGET=$(SIGNALBOX_TARGET) SIGNALBOX_BEFORE=$(BEFORE) tests/containers/run

manifests: ## Hold the Kubernetes manifests to Kubernetes' schemas and to the rules of this installation
	@deploy/k8s/check/run

digests: ## Ask the registry for the digests of others' images and write them beside their tags
	@deploy/images/digests.py

provision: ## Install nats-server, Postgres and a linker where they are missing
	@deploy/provision/provision.sh

build: rust
	@echo "building signalbox alone, profile $(PROFILE)"
	cargo build -p signalbox --bin signalbox --profile $(PROFILE)

# The sample through the whole path, once, in a folder of its own. Postgres, which is not root, has to pass through it.
smoke: provision build
	@data_dir=$$(mktemp -d); chmod 711 "$$data_dir"; trap 'rm -rf "$$data_dir"' EXIT; \
	timeout 300 $(SIGNALBOX) up --data-dir "$$data_dir/data" --http 127.0.0.1:0 \
	    --sample examples/notifications.ndjson --exit-when-idle || \
	    { echo "smoke: the end of the log:" >&2; tail -n 50 "$$data_dir/data/signalbox.log" >&2; exit 1; }

# Dependencies: licences, sources, what is forbidden, and RustSec's advisories where their database can be fetched.
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
