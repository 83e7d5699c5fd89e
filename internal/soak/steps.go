package main

import "slices"

// step is one command, run in the root of the repository.
type step struct {
	name    string
	newer   bool // on newer servers, not on this machine's
	env     []string
	command []string
}

// test is a step that runs tests of a package.
func test(name, pkg, pattern string, env ...string) step {
	return step{name: name, env: env, command: []string{"go", "test", "-count=1", "-timeout", "60m", "-run", pattern, pkg}}
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
	outage    = test("outage", "./internal/e2e", "^TestBrokerKilledUnderLoad$", "WAYBILL_OUTAGE=60s")
)

// badDay is a step of internal/badday, where each misfortune happens several times.
func badDay(name, pattern string) step {
	return test("bad day: "+name, "./internal/badday", "^Test("+pattern+")$", "WAYBILL_BADDAY=long")
}

// steps are all steps, in the order of a round.
var steps = []step{
	histories, histories.onNewer(),
	kills, kills.onNewer(),
	outage, outage.onNewer(),
	test("reconnects", "./transport/rabbitmq", "^TestManyReconnects$", "WAYBILL_RECONNECTS=300"),
	test("sqlite histories", "./internal/checker", "^TestSQLiteHistories$", "WAYBILL_CHECKER_SQLITE=60"),
	test("memory histories", "./internal/checker", "^TestHistories$", "WAYBILL_CHECKER_HISTORIES=20000"),
	test("scale", "./store/postgres", "^TestReadAndSettleScale$", "WAYBILL_SCALE=10000000"),
	test("dispatch histories", "./dispatch", "^TestHistories$").flags("-rapid.checks=2000"),
	test("bad day: relay frozen", "./internal/accidents", "^Test(FrozenRelay|FailOver|DatabaseClockJumps)$", "WAYBILL_ACCIDENTS=long"),
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
	{name: "orders under chaos", command: []string{"go", "run", "./examples/orders", "-chaos", "2m"}},
}
