//go:build unix && !race

package faults_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// memberVariable is the variable that makes the test binary a relay. It holds a member.
const memberVariable = "WAYBILL_ACCIDENTS_MEMBER"

func TestMain(m *testing.M) {
	if text := os.Getenv(memberVariable); text != "" {
		if err := relayUntilTheEnd(text); err != nil {
			slog.Error("relay process", "error", err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

// nightly leaves the tests of this package to the night, on a machine without other work: promises in seconds, over
// processes and real leases, are measured in seconds.
func nightly(tb testing.TB) {
	tb.Helper()
	tier.Nightly(tb, "kills and freezes processes and servers, with real leases: 5 to 15 seconds each")
}

// member says what relay a process is.
type member struct {
	Name, DSN, Broker string
	Routes            []string
	Partitions        int
	Lease             time.Duration
	Batch, Window     int

	// Slow is how long the publisher takes for each call, Poison the message that kills the process at once.
	// Refuses says that the publisher is of no use, and Pipelined that it takes several messages of a key in a
	// call.
	Slow               time.Duration
	Poison             string
	Refuses, Pipelined bool
}

func (m member) String() string {
	text, _ := json.Marshal(m)
	return string(text)
}

// relayUntilTheEnd relays until it is interrupted or killed, or its parent has ended.
func relayUntilTheEnd(text string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	go func() {
		sharedtest.AwaitParent()
		os.Exit(2)
	}()
	var m member
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	pool, err := connect(ctx, m.DSN, 6)
	if err != nil {
		return err
	}
	sink, err := connect(ctx, m.Broker, 6)
	if err != nil {
		return err
	}
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/accidents"})
	if err != nil {
		return err
	}
	opts := relay.Options{Name: m.Name, Lease: m.Lease, BatchSize: m.Batch, Window: m.Window, CleanInterval: -1}
	for _, name := range m.Routes {
		opts.Routes = append(opts.Routes, relay.Route{Name: name, Partitions: m.Partitions})
	}
	r, err := relay.New(o, &publisher{m, sink}, opts)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

func connect(ctx context.Context, dsn string, most int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = most
	return pgxpool.NewWithConfig(ctx, cfg)
}

// publisher writes down what arrives.
type publisher struct {
	member
	sink *pgxpool.Pool
}

func (p *publisher) Traits() core.PublisherTraits {
	t := core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true, DetectsUnroutable: true}
	if p.Pipelined { // a call arrives as a whole or not at all
		t.KeyOrder = core.KeyOrderPipelinedPrefix
	}
	return t
}

func (p *publisher) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	began := time.Now()
	if p.Refuses {
		return core.AllFailed(len(batch), waybill.Outage(errors.New("the publisher refuses everything")))
	}
	ids, names, nums := make([]string, len(batch)), make([]string, len(batch)), make([]int, len(batch))
	for i := range batch {
		m := &batch[i]
		if m.ID == p.Poison {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // it takes a moment
		}
		num, err := strconv.Atoi(string(m.Body))
		if err != nil {
			return core.AllFailed(len(batch), waybill.Reject(err))
		}
		ids[i], names[i], nums[i] = m.ID, m.Key, num
	}
	select {
	case <-time.After(p.Slow):
	case <-ctx.Done():
		return core.AllFailed(len(batch), waybill.Outage(ctx.Err()))
	}
	_, err := p.sink.Exec(ctx, `
INSERT INTO arrivals (id, key, num, pid, began)
SELECT u.id, u.key, u.num, $4::int, $5::timestamptz FROM unnest($1::text[], $2::text[], $3::int[]) WITH ORDINALITY AS u(id, key, num, i) ORDER BY u.i`,
		ids, names, nums, os.Getpid(), began)
	if err != nil {
		return core.AllFailed(len(batch), waybill.Outage(err))
	}
	return make(core.Results, len(batch))
}

// process is a relay in a process of its own.
type process struct {
	*world
	*sharedtest.Process
	name string
}

// start starts a relay. It ends with the test, or with this process.
func (w *world) start(m member) *process {
	w.Helper()
	m.DSN, m.Broker = cmp.Or(m.DSN, w.dsn), w.broker
	p := &process{world: w, name: m.Name, Process: sharedtest.StartProcess(w, memberVariable+"="+m.String())}
	w.Cleanup(func() {
		if w.Failed() {
			w.Logf("log of %s, process %d:\n%s", p.name, p.PID, tail(&p.Log))
		}
	})
	return p
}

// startAll starts relays that differ in their name, and waits until each owns partitions.
func (w *world) startAll(m member, names ...string) (all []*process) {
	w.Helper()
	for _, name := range names {
		m.Name = name
		all = append(all, w.start(m))
	}
	w.until(20*time.Second, "everybody has partitions", func() bool {
		return !slices.ContainsFunc(all, func(p *process) bool { return p.partitions() == 0 })
	})
	return all
}

// session returns the session of the relay; 0 if it has none.
func (p *process) session() int {
	p.Helper()
	return p.number(p.pool, "SELECT coalesce(max(session), 0) FROM waybill.waybill_outbox_members WHERE name = $1", p.name)
}

func (p *process) partitions() int {
	p.Helper()
	return p.number(p.pool, `
SELECT count(*) FROM waybill.waybill_outbox_partitions u JOIN waybill.waybill_outbox_members m ON m.session = u.owner WHERE m.name = $1`, p.name)
}

// tail returns the last lines of a log, cut.
func tail(log *sharedtest.Log) string {
	lines := strings.Split(log.String(), "\n")
	lines = lines[max(len(lines)-20, 0):]
	for i, line := range lines {
		lines[i] = line[:min(len(line), 300)]
	}
	return strings.Join(lines, "\n")
}
