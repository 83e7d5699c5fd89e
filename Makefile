# Waybill's commands. A bare Debian machine needs Go, make and nothing else: `make test` installs the rest.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MODULES := $(sort $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path '*/.cache/*' -not -path '*/testdata/*' -not -path '*/node_modules/*')))
COUNT := $(if $(CI),-count=1)
HOURS ?= 1.5
# What C became of SQLite: the race detector makes it several times as slow and has nothing of ours to find there.
NORACE := -gcflags=modernc.org/sqlite/lib=-race=false -gcflags=modernc.org/libc/...=-race=false
GENERATED := ./core ./internal/tests/docs -run '^(TestStateMachineDoc|TestOptionsPage|TestCapabilitiesPage|TestCLIPage|TestSchema)$$'

# Runs one command in every module: $(call each,command)
each = @set -e; for m in $(MODULES); do echo "== $$m: $(1)" >&2; (cd $$m && $(1)); done

help: ## what each command is for
	@sed -n 's/^\([a-z]*\):[^#]*## */  make \1\t/p' Makefile | expand -t 20

# The gate: two parts at a time, the longest first. Tests without servers run beside the installation of the servers.
# -trimpath: what one clone has compiled serves each other one, such as CI's.
test: export WAYBILL_TEST_SERVERS ?= required
test: export GOFLAGS += -trimpath
test: ## what must pass before a change lands: lint, and every test that decides by counting or in virtual time
	@$(MAKE) --no-print-directory -j2 servers lint alone waiting raced served others

servers: ## install the servers of the tests and a C compiler if missing (Debian, Ubuntu; root); starts nothing
	@scripts/servers
	@scripts/mongodb
	@scripts/kafka

# Less garbage collection, in the tests, the compiler and the linker: in the tests of dispatch the collector takes 5 s
# of processor time instead of 18 s.
GATE = GOGC=400 go test -timeout 20m $(COUNT)

# Long histories in virtual time. The race detector makes them up to five times as long, and sees the same code in the
# shorter tests of their packages. So here they run without it; the nightly run has them with it.
HISTORIES := ^Test($(subst $() ,|,$(strip \
	BackWithinTwoSeconds EachTickOnce FaultsLoseNothingAndKeepOrder FreeProcessesTakeAll HoldsATenthOfASecond Loop \
	OneTickADay OutageOfAllEnds OutagesAtTheHead OutagesOfFewAtRandom QuickHandlersNeedFewCalls SameSeedSameHistory SharedLimitsAtRandom Simulate \
	SimulateOddOptions TwoRelays UnroutableAfterALongOutage UnroutableBacklogIsProbed UnroutableHasItsOwnHorizon \
	WithinATenthOfTheBest)))$$

SHARED = go run ./internal/testenv/testservers

alone:
	$(GATE) $$(scripts/packages alone)
	$(GATE) -run '$(HISTORIES)' $$(scripts/packages histories)

# Tests that wait for a server leave the processors to others: more packages at a time than processors.
waiting: servers
	$(SHARED) env $(GATE) -race $(NORACE) -skip '$(HISTORIES)' -p 3 $$(scripts/packages served-race)

# They need the C compiler, which a bare machine gets with the servers.
raced: servers
	$(GATE) -race $(NORACE) -skip '$(HISTORIES)' $$(scripts/packages alone-race)

served: servers
	$(SHARED) env $(GATE) -p 3 $$(scripts/packages served)

others: servers
	$(SHARED) $(MAKE) --no-print-directory modules

modules: MODULES := $(filter-out .,$(MODULES))
modules:
	$(call each,$(GATE) ./...)

# Nothing is installed, started or asked for over a network. The end of the output lists the skipped servers.
quick: export WAYBILL_TEST_SERVERS := none
quick: ## what to run at each save: every test that needs no server
	@skipped=$$(mktemp); trap 'rm -f "$$skipped"' EXIT; export WAYBILL_TEST_SKIPPED=$$skipped; \
	go vet ./... && go test ./... && sort -u "$$skipped" | sed 's/^/skipped: /'

nightly: servers ## everything, with the race detector, newer servers, processes and servers that die, mutants: HOURS=8, ONLY=step
	@root=$$(scripts/newer) && export WAYBILL_TEST_OAUTH2_PROXY=$$(scripts/oauth2proxy) && go run ./internal/nightly -for "$$(awk 'BEGIN { print int(60 * $(HOURS)) }')m" -newer "$$root" -only '$(ONLY)'

repeat: ## run tests many times beside busy loops: make repeat PKG=./relay RUN=TestX N=200
	@scripts/repeat $(PKG) $(or $(RUN),.) $(or $(N),50)

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

systems: servers ## the table of docs/comparison.md: outboxes for Python beside Waybill; needs Python 3.13 and PyPI
	python3 -m venv .cache/systems && .cache/systems/bin/pip install --quiet --requirement bench/systems/requirements.txt
	cd bench && go run . -systems ../docs/comparison.md -python ../.cache/systems/bin/python

matrix: servers ## every store with every transport: relay and consumer are killed, each effect is there once
	WAYBILL_MATRIX=all go run ./internal/testenv/testservers go test -count=1 -v ./internal/tests/matrix

mutants: servers ## break the code in one place at a time: the tests must notice; MUTANTS=pattern selects some
	@go run ./internal/testenv/testservers go run ./internal/mutants -run '$(MUTANTS)' -out internal/mutants/RESULTS.md

# What depends on the version of a server, on the servers that the variables name.
suites: ## the tests that depend on a server's version, nightly tests included, on the servers that the WAYBILL_TEST_ variables name
	WAYBILL_TEST_NIGHTLY=1 go test -timeout 30m $(COUNT) ./transport/rabbitmq ./transport/redisstreams ./store/postgres ./internal/tests/mistakes
	WAYBILL_TEST_NIGHTLY=1 go test -timeout 20m $(COUNT) -run '^TestBrokerReplaced$$' ./internal/tests/outages
	WAYBILL_CHECKER_REAL=20 go test -timeout 20m $(COUNT) -run '^TestPostgresRabbitMQHistories$$' ./internal/checker

quickstart: ## run the example of the README
	go run ./examples/quickstart

vuln: ## known vulnerabilities in what we depend on (needs the Go vulnerability database)
	@scripts/vuln $(MODULES)

.PHONY: help test servers alone waiting raced served others modules quick nightly repeat lint fmt generate verify bench sizing systems matrix mutants suites quickstart vuln
