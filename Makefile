# Waybill's commands. A bare Debian machine needs Go, make and nothing else: `make test` installs the rest.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MODULES := $(sort $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path '*/.cache/*' -not -path '*/testdata/*' -not -path '*/node_modules/*')))
COUNT := $(if $(CI),-count=1)
SOAK ?= 10m
# What C became of SQLite: the race detector makes it several times as slow and has nothing of ours to find there.
NORACE := -gcflags=modernc.org/sqlite/lib=-race=false -gcflags=modernc.org/libc/...=-race=false
GENERATED := ./core ./internal/docs -run '^(TestStateMachineDoc|TestOptionsPage|TestCapabilitiesPage|TestCLIPage|TestSchema)$$'

# Runs one command in every module: $(call each,command)
each = @set -e; for m in $(MODULES); do echo "== $$m: $(1)" >&2; (cd $$m && $(1)); done

help: ## what each command is for
	@sed -n 's/^\([a-z]*\):[^#]*## */  make \1\t/p' Makefile | expand -t 20

test: export BESIDE = newer
test: servers lint unit ## everything that must pass: lint, all tests with -race in every module, the suites on newer servers

servers: ## install the servers of the tests and a C compiler if missing (Debian, Ubuntu; root); starts nothing
	@scripts/servers
	@scripts/mongodb

unit: ## all tests with -race, without installing or linting
	@go run ./internal/testenv/testservers $(MAKE) --no-print-directory beside alone

beside:
	@$(MAKE) --no-print-directory -j2 root others $(BESIDE)

RACE = go test -race $(NORACE) -timeout 15m $(COUNT)
# They take longest: first. The other modules run beside them, then the newer servers: with three at a time, histories
# on two cores need longer than a minute to drain.
SLOW := ./store/postgres ./transport/rabbitmq ./store/mongo ./internal/e2e ./transport/table ./relay ./internal/badday ./transport/sqs

root:
	$(RACE) -p 2 $(SLOW) $$(go list ./... | grep -v /internal/checker$$)

# Beside the root module.
others: MODULES := $(filter-out .,$(MODULES))
others:
	$(call each,$(RACE) ./...)
	go test -p 1 $(COUNT) -run 'MillionRows|^TestHistories$$' ./store/sqlite ./internal/checker
	go test $(COUNT) -run '^Test(Histories|Rules)$$' ./dispatch -rapid.checks=50

# After all others: the relays of the first have leases of 0.8 s, which a busy machine cannot keep; the second counts
# allocations, which the race detector makes too; the third counts seconds, over relays that are processes.
alone: beside
	$(RACE) ./internal/checker
	go test $(COUNT) ./internal/costs
	go test $(COUNT) ./internal/accidents

lint: ## golangci-lint with .golangci.yml, in every module
	@bin=$$(scripts/tools) && for m in $(MODULES); do echo "== $$m: lint" >&2; (cd $$m && "$$bin/golangci-lint" run --allow-parallel-runners --config $(CURDIR)/.golangci.yml ./...) || exit 1; done

fmt: ## format the code (gofumpt, goimports)
	@bin=$$(scripts/tools) && for m in $(MODULES); do (cd $$m && "$$bin/golangci-lint" fmt --config $(CURDIR)/.golangci.yml ./...) || exit 1; done

generate: ## rewrite the generated pages: options.md, state-machine.md, capabilities.md, cli.md, waybill.schema.json
	@go test $(GENERATED) -update

verify: ## go.mod files are tidy, generated pages are up to date
	$(call each,go mod tidy -diff)
	@go test -count=1 $(GENERATED) || { echo 'verify: run make generate and commit what it changes' >&2; exit 1; }

bench: servers ## benchmarks beside the raw limits; writes bench/RESULTS.md (bench/README.md)
	cd bench && go run . -out RESULTS.md

sizing: servers ## the tables of docs/sizing.md, by waybill bench beside the raw limits; takes a quarter of an hour
	cd bench && go run . -sizing ../docs/sizing.md

soak: servers ## what takes too long for make test, on both versions of the servers, as long as asked, with one table: make soak SOAK=1h
	@root=$$(scripts/newer) || [ -n "$$WAYBILL_TEST_ALLOW_SKIP" ] && go run ./internal/soak -for $(SOAK) -newer "$$root"

matrix: servers ## every store with every transport: relay and consumer are killed, each effect is there once
	WAYBILL_MATRIX=all go run ./internal/testenv/testservers go test -count=1 -v ./internal/matrix

mutants: servers ## break the code in one place at a time: the tests must notice; MUTANTS=pattern selects some
	@go run ./internal/testenv/testservers go run ./internal/mutants -run '$(MUTANTS)' -out internal/mutants/RESULTS.md

newer: servers ## the suites and real histories on newer servers: PostgreSQL 18, RabbitMQ 4.3 and Redis 8 (Debian, root)
	@if root=$$(scripts/newer); then \
		unset WAYBILL_TEST_POSTGRES WAYBILL_TEST_RABBITMQ WAYBILL_TEST_RABBITMQ_MANAGEMENT WAYBILL_TEST_REDIS && \
		WAYBILL_TEST_ROOT=$$root go run ./internal/testenv/testservers $(MAKE) --no-print-directory suites; \
	else [ -n "$$WAYBILL_TEST_ALLOW_SKIP" ]; fi

# What depends on the version of a server, on the servers that the variables name.
suites:
	go test -timeout 20m $(COUNT) ./transport/rabbitmq ./transport/redisstreams ./store/postgres ./internal/e2e
	go test -timeout 20m $(COUNT) -run '^TestBrokerReplaced$$' ./internal/badday
	WAYBILL_CHECKER_REAL=20 go test -timeout 20m $(COUNT) -run '^TestPostgresRabbitMQHistories$$' ./internal/checker

quickstart: ## run the example of the README
	go run ./examples/quickstart

vuln: ## known vulnerabilities in what we depend on (needs the Go vulnerability database)
	@scripts/vuln $(MODULES)

.PHONY: help test servers unit beside root others alone lint fmt generate verify bench sizing soak matrix mutants newer suites quickstart vuln
