package storetest

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/core/outboxtest"
)

// Harness is the store under test with the functions that the suite needs. Functions that only some backends have are
// optional interfaces: [Inspector], [Corrupter] and [Retainer].
type Harness interface {
	// Store returns the store under test, the same one every time. The suite also checks the capabilities that it
	// has.
	Store() core.OutboxStore
	// Begin starts a transaction in which messages can be staged.
	Begin(ctx context.Context) (Tx, error)
}

// Tx is a transaction of the application.
type Tx interface {
	// Stage stages msgs through the store's waybill.Stager. Only messages with a dedupe key can be cancellable.
	Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error)
	Commit(ctx context.Context) error
	// Rollback undoes the transaction. After Commit it does nothing.
	Rollback(ctx context.Context) error
}

// Canceller is a [Tx] that can cancel messages, through the store's waybill.Canceller. Without it the suite does not
// ask for cancelling and replacing.
type Canceller interface {
	Cancel(ctx context.Context, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error)
}

// Inspector is a harness that can look at stored records, as for package outboxtest. Without it the suite sees only the
// store's results.
type Inspector = outboxtest.Inspector

// StoredRecord is a record as an [Inspector] found it. State is the stored state. For a held record it can also be
// processing: the suite does not check it then.
type StoredRecord = outboxtest.Stored

// Corrupter is a harness that can make a stored row unreadable, as a bug or a foreign hand would.
type Corrupter interface {
	// Corrupt spoils the row of route with this sequence so that it cannot be decoded, but can be held and settled.
	Corrupt(ctx context.Context, route string, seq int64) error
}

// ErrNotDeclared reports that a check does not apply: the store's capabilities, or the harness, do not have what it
// tests.
var ErrNotDeclared = errors.New("not declared")

// Check is one promise.
type Check struct {
	// Name is unique and stable: words joined by dashes.
	Name string
	// Run returns nil if the promise holds, an error that matches ErrNotDeclared if it was not made, and else an
	// error that names the wrong behaviour, the promise, and the line of the check. It returns soon after ctx has
	// ended, even if the store does not.
	Run func(ctx context.Context, h Harness) error
}

// Checks returns all checks.
func Checks() []Check {
	var all []Check
	for _, group := range [...][]named{
		stageChecks, handOutChecks, dedupeChecks, cancelChecks, waitChecks, cleanChecks,
		inspectChecks, redriveChecks, purgeChecks, headChecks, decideChecks, tellChecks,
		auditChecks, nameChecks, lastingChecks, ruleChecks,
	} {
		for _, c := range group {
			all = append(all, Check{Name: c.name, Run: c.run})
		}
	}
	return all
}

// named is a check as it is written: it gives up in the way of package suitetest, which run turns into an error.
type named struct {
	name string
	fn   func(k *kit)
}

func (c named) run(ctx context.Context, h Harness) error {
	return source.Do(ctx, c.name, func() {
		k := newKit(ctx, h)
		if err := errors.Join(suitetest.Guard(func() { c.fn(k) }), suitetest.Guard(k.close)); err != nil {
			suitetest.Raise(err)
		}
	})
}

//go:embed *.go
var files embed.FS

var source = suitetest.Source{Files: files, NotDeclared: ErrNotDeclared}

// Timeout bounds one check in Run.
const Timeout = 2 * time.Minute

// Run makes every check a subtest with a new harness; a harness can be shared, since every check works on routes of its
// own. Checks of undeclared features are skipped, and told of in
// the log.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	conformance.Run(t, checksWith(newHarness))
}

// RunSpread is Run with a worker for each newHarness, side by side, since checks mostly wait. Every check runs once,
// with a harness of one worker. No two workers must share one database: some checks look at all of it.
func RunSpread(t *testing.T, newHarness ...func(t *testing.T) Harness) {
	t.Helper()
	suitetest.RunSpread(t, &conformance, checksWith, newHarness)
}

// RunInBubble is Run with every check in a testing/synctest bubble of its own, in which waiting takes no time. The
// harness is made inside the bubble.
func RunInBubble(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	conformance.RunInBubble(t, checksWith(newHarness))
}

var conformance = suitetest.Suite{Name: "storetest", Timeout: Timeout, NotDeclared: ErrNotDeclared}

func checksWith(newHarness func(t *testing.T) Harness) []suitetest.Check {
	return suitetest.With(Checks(), newHarness, func(c Check) (string, func(context.Context, Harness) error) { return c.Name, c.Run })
}

// Benchmark measures staging in several batch sizes. Reading and settling are the engine's: measure them with it.
func Benchmark(b *testing.B, newHarness func(b *testing.B) Harness) {
	b.Helper()
	for _, n := range []int{1, 100, 500} {
		b.Run(fmt.Sprintf("stage/%d", n), func(b *testing.B) {
			k := newKit(b.Context(), newHarness(b))
			msgs := k.msgs(n, waybill.Key("key"), waybill.ID("")) // new ids each time
			bench(b, n, func() error { return k.tryStage(k.ctx, msgs...) })
		})
	}
}

// bench runs fn, which handles n messages, for as long as b wants.
func bench(b *testing.B, n int, fn func() error) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		if err := fn(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*float64(n)/b.Elapsed().Seconds(), "msg/s")
}
