# Waybill's commands. A bare Debian machine needs Go, make and nothing else: `make test` installs the rest.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MODULES := $(sort $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path '*/.cache/*' -not -path '*/testdata/*' -not -path '*/node_modules/*')))
COUNT := $(if $(CI),-count=1)
SOAK ?= 10m
# What C became of SQLite: the race detector makes it several times as slow and has nothing of ours to find there.
NORACE := -gcflags=modernc.org/sqlite/lib=-race=false -gcflags=modernc.org/libc/...=-race=false
GENERATED := ./core ./internal/docs -run '^(TestStateMachineDoc|TestOptionsPage)$$'

# Runs one command in every module: $(call each,command)
each = @set -e; for m in $(MODULES); do echo "== $$m: $(1)" >&2; (cd $$m && $(1)); done

help: ## what each command is for
	@sed -n 's/^\([a-z]*\):[^#]*## */  make \1\t/p' Makefile | expand -t 20

test: servers lint unit ## everything that must pass: servers installed, lint, all tests with -race in every module

servers: ## install the servers of the tests and a C compiler if missing (Debian, Ubuntu; root); starts nothing
	@scripts/servers

unit: ## all tests with -race, without installing or linting
	@go run ./internal/testenv/testservers $(MAKE) --no-print-directory beside alone

beside:
	@$(MAKE) --no-print-directory -j2 root others

RACE = go test -race $(NORACE) -timeout 12m $(COUNT)
# They take longest: first. The other modules run beside them.
SLOW := ./store/postgres ./internal/checker ./transport/rabbitmq ./transport/table ./internal/e2e

root:
	$(RACE) -p 2 $(SLOW) ./...

# Beside the root module.
others: MODULES := $(filter-out .,$(MODULES))
others:
	$(call each,$(RACE) ./...)
	go test -p 1 $(COUNT) -run 'MillionRows|^TestHistories$$' ./store/sqlite ./internal/checker
	go test $(COUNT) -run '^Test(Histories|Rules)$$' ./dispatch -rapid.checks=50

# It counts seconds, over relays that are processes: after all others.
alone: beside
	go test $(COUNT) ./internal/accidents

lint: ## golangci-lint with .golangci.yml, in every module
	@bin=$$(scripts/tools) && for m in $(MODULES); do echo "== $$m: lint" >&2; (cd $$m && "$$bin/golangci-lint" run --allow-parallel-runners --config $(CURDIR)/.golangci.yml ./...) || exit 1; done

fmt: ## format the code (gofumpt, goimports)
	@bin=$$(scripts/tools) && for m in $(MODULES); do (cd $$m && "$$bin/golangci-lint" fmt --config $(CURDIR)/.golangci.yml ./...) || exit 1; done

generate: ## rewrite the generated pages: docs/options.md, docs/state-machine.md
	@go test $(GENERATED) -update

verify: ## go.mod files are tidy, generated pages are up to date
	$(call each,go mod tidy -diff)
	@go test -count=1 $(GENERATED) || { echo 'verify: run make generate and commit what it changes' >&2; exit 1; }

bench: servers ## benchmarks beside the raw limits; writes bench/RESULTS.md (bench/README.md)
	cd bench && go run . -out RESULTS.md

soak: servers ## the long histories of the checker, then the orders example under chaos for as long as asked: make soak SOAK=1h
	WAYBILL_CHECKER_REAL=200 go test -count=1 -v -timeout 30m -run '^TestPostgresRabbitMQHistories$$' ./internal/checker
	WAYBILL_CHECKER_KILLS=10 go test -count=1 -v -timeout 30m -run '^TestServerKillHistories$$' ./internal/checker
	WAYBILL_CHECKER_SQLITE=60 WAYBILL_CHECKER_HISTORIES=50000 go test -count=1 -v -timeout 60m -run '^Test(SQLite)?Histories$$' ./internal/checker
	go test -count=1 -v -timeout 60m -run '^TestHistories$$' ./dispatch -rapid.checks=5000
	WAYBILL_RECONNECTS=1000 go test -count=1 -v -run '^TestManyReconnects$$' ./transport/rabbitmq
	WAYBILL_OUTAGE=60s go test -count=1 -v -run '^TestBrokerKilledUnderLoad$$' ./internal/e2e
	go run ./examples/orders -chaos $(SOAK)

newer: servers ## the suites and real histories on newer servers: PostgreSQL 18 and RabbitMQ 4.3 (Debian, root)
	@root=$$(scripts/newer) && export WAYBILL_TEST_ROOT=$$root WAYBILL_TEST_DIR=/dev/shm WAYBILL_CHECKER_REAL=20 && \
	unset WAYBILL_TEST_POSTGRES WAYBILL_TEST_RABBITMQ WAYBILL_TEST_RABBITMQ_MANAGEMENT && \
	go test -count=1 -timeout 20m ./transport/rabbitmq ./store/postgres ./internal/e2e && \
	go test -count=1 -timeout 20m -v -run '^TestPostgresRabbitMQHistories$$' ./internal/checker

quickstart: ## run the example of the README
	go run ./examples/quickstart

vuln: ## known vulnerabilities in what we depend on (needs the Go vulnerability database)
	@scripts/vuln $(MODULES)

.PHONY: help test servers unit beside root others alone lint fmt generate verify bench soak newer quickstart vuln
