package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// step is one command.
type step struct {
	name    string
	newer   bool // on newer servers, not on this machine's
	random  bool // each run tries something else: it is repeated while there is time
	env     []string
	command []string
}

// test is a step that runs tests of a package.
func test(name, pkg, pattern string, env ...string) step {
	return step{name: name, random: true, env: env, command: []string{"go", "test", "-count=1", "-timeout", "60m", "-run", pattern, pkg}}
}

// flags adds flags of the test binary.
func (s step) flags(flags ...string) step {
	s.command = append(slices.Clone(s.command), flags...)
	return s
}

// onNewer is the same step on newer servers.
func (s step) onNewer() step {
	s.name, s.newer = s.name+" on newer", true
	return s
}

var (
	histories = test("histories", "./internal/checker", "^TestPostgresRabbitMQHistories$", "WAYBILL_CHECKER_REAL=100")
	kills     = test("server kills", "./internal/checker", "^TestServerKillHistories$", "WAYBILL_CHECKER_KILLS=4")
	replaced  = badDay("broker replaced", "BrokerReplaced")
	restarts  = test("daemon over restarts", "./cmd/waybill", "^TestRestarts$", "WAYBILL_TEST_DAEMON=100")
	outage    = test("outage", "./internal/tests/mistakes", "^TestBrokerKilledUnderLoad$", "WAYBILL_OUTAGE=60s")
)

// badDay is a step of internal/tests/outages, where each misfortune happens several times.
func badDay(name, pattern string) step {
	return test("bad day: "+name, "./internal/tests/outages", "^Test("+pattern+")$", "WAYBILL_BADDAY=long")
}

// noRace leaves out of the race detector what C became of SQLite: it is several times as slow there, and has nothing
// of ours to find.
var noRace = []string{"-gcflags=modernc.org/sqlite/lib=-race=false", "-gcflags=modernc.org/libc/...=-race=false"}

// steps returns all steps: those that run once, then those that repeat, in the order of a round.
func steps(part string) []step {
	return slices.Concat(once(part), repeated)
}

// partOf returns the part of the mutants and of the fuzz targets of a day: a sixth, since all of them take hours; in a
// run of four hours and more all of them.
func partOf(day time.Time, d time.Duration) string {
	if d >= 4*time.Hour {
		return "1/1"
	}
	return fmt.Sprintf("%d/6", day.YearDay()%6+1)
}

// share returns part k of n: every n-th step.
func share(all []step, part string) (some []step) {
	var k, n int
	_, _ = fmt.Sscanf(part, "%d/%d", &k, &n)
	for i := k - 1; i < len(all); i += n {
		some = append(some, all[i])
	}
	return some
}

// once are the steps that each night runs once. part is the part of the mutants and of the fuzz targets that is run.
func once(part string) []step {
	race := func(dir string) step {
		s := step{name: "race: " + dir, command: []string{"go", "run", "./internal/testenv/testservers", "go", "-C", dir, "test", "-race", "-timeout", "60m", "-count=1", "-p", "2"}}
		return s.flags(noRace...).flags("./...")
	}
	suites := step{
		name: "suites", newer: true,
		command: []string{"go", "test", "-count=1", "-timeout", "30m", "./transport/rabbitmq", "./transport/redisstreams", "./store/postgres", "./internal/tests/mistakes"},
	}
	// its MariaDB is this machine's, and a step like every module
	mysql := step{
		name: "mysql", newer: true,
		command: []string{"bash", "-c", "root=$(scripts/mysql) && WAYBILL_TEST_MYSQL_ROOT=$root go -C contrib/mysql test -count=1 -timeout 30m ./..."},
	}
	all := []step{race(".")}
	modules, _ := filepath.Glob("*/*/go.mod")
	more, _ := filepath.Glob("*/go.mod")
	for _, file := range append(modules, more...) {
		all = append(all, race(filepath.Dir(file)))
	}
	all = append(all, share(fuzzing(), part)...)
	return append(
		all, suites, mysql,
		// without the race detector, which makes allocations and seconds others than they are
		step{name: "costs and faults", command: []string{"go", "test", "-count=1", "-timeout", "30m", "-p", "1", "./internal/tests/costs", "./internal/tests/faults"}},
		step{name: "explore", command: []string{"go", "test", "-v", "-count=1", "-timeout", "120m", "-run", "^TestExplore$|^TestSameSeedSameHistory$", "./dispatch"}},
		step{name: "million rows", command: []string{"go", "test", "-count=1", "-timeout", "30m", "-run", "MillionRows", "./store/sqlite"}},
		millionKeys(part),
		// commands beside many messages, and a daemon with many small databases
		scaled("commands at scale", "./cli", "^TestManyRecords$", "WAYBILL_SCALE=300000"),
		scaled("fleet", "./cmd/waybill", "^TestIdleFleet$", "WAYBILL_TEST_FLEET=500"),
		step{name: "matrix", env: []string{"WAYBILL_MATRIX=all"}, command: []string{"go", "test", "-count=1", "-timeout", "60m", "./internal/tests/matrix"}},
		step{name: "mutants", command: []string{"go", "run", "./internal/testenv/testservers", "go", "run", "./internal/mutants", "-part", part}},
	)
}

// scaled is a test with more than the gate has.
func scaled(name, pkg, pattern, env string) step {
	s := test(name, pkg, pattern, env)
	s.random = false
	return s
}

// millionKeys has a million keys wait in one of six ways, in another one each night; with all mutants in all ways.
func millionKeys(part string) step {
	ways := []string{"retries", "retries killed", "blocked", "blocked killed", "paused", "paused killed"}
	way := "all"
	if k, n, _ := strings.Cut(part, "/"); n == strconv.Itoa(len(ways)) {
		i, _ := strconv.Atoi(k)
		way = ways[i-1]
	}
	return scaled("million keys", "./store/postgres", "^TestMillionKeysStopNobody$", "WAYBILL_MILLION="+way)
}

// fuzzing are the fuzz targets of all packages, each for 30 s. Go's cache keeps their corpus. An input that fails is in
// the package's testdata.
func fuzzing() (all []step) {
	target := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	_ = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".cache" || d.Name() == "testdata" || d.Name() == "node_modules"):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range target.FindAllSubmatch(text, -1) {
			dir := filepath.Dir(path)
			all = append(all, step{
				name:    "fuzz: " + dir + " " + string(m[1]),
				command: []string{"go", "-C", dir, "test", "-run", "^$", "-fuzz", "^" + string(m[1]) + "$", "-fuzztime", "30s", "."},
			})
		}
		return err
	})
	return all
}

// repeated are the steps of which each run is another.
var repeated = []step{
	histories, histories.onNewer(),
	kills, kills.onNewer(),
	outage, outage.onNewer(),
	test("reconnects", "./transport/rabbitmq", "^TestManyReconnects$", "WAYBILL_RECONNECTS=300"),
	test("sqlite histories", "./internal/checker", "^TestSQLiteHistories$", "WAYBILL_CHECKER_SQLITE=60"),
	{
		name: "mysql histories", random: true, env: []string{"WAYBILL_CHECKER_MYSQL=60"},
		command: []string{"go", "-C", "contrib/mysql", "test", "-count=1", "-timeout", "60m", "-run", "^TestHistories$", "."},
	},
	test("memory histories", "./internal/checker", "^TestHistories$", "WAYBILL_CHECKER_HISTORIES=20000"),
	test("scale", "./store/postgres", "^TestReadAndSettleScale$", "WAYBILL_SCALE=10000000"),
	test("system histories", "./waybilltest", "^Test(Simulate|SimulateOddOptions|SameSeedSameHistory)$", "WAYBILL_TEST_NIGHTLY=1", "GODEBUG=asyncpreemptoff=1"),
	test("dispatch histories", "./dispatch", "^TestHistories$").flags("-rapid.checks=2000"),
	test("bad day: relay frozen", "./internal/tests/faults", "^Test(FrozenRelay|FailOver|DatabaseClockJumps)$", "WAYBILL_ACCIDENTS=long"),
	badDay("standby promoted", "(Synchronous|Lagging)StandbyIsPromoted"),
	badDay("disk full", "(Database|Broker)DiskFull"),
	badDay("certificate expired", "(Database|Broker)CertificateExpires"),
	badDay("password rotated", "(Database|Broker)PasswordRotated"),
	badDay("clock wrong", "(Database|Producer)ClockIsWrong"),
	badDay("consumer frozen", "FrozenConsumer"),
	badDay("majority lost", "ClusterLosesItsMajority"),
	badDay("active consumer lost", "SingleActiveConsumerFailsOver"),
	replaced, replaced.onNewer(),
	restarts, restarts.onNewer(),
	{name: "orders under chaos", random: true, command: []string{"go", "run", "./examples/orders", "-chaos", "2m"}},
}
