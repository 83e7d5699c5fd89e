package outboxtest

import (
	"context"
	"embed"
	"errors"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

// Harness is the store under test with the functions that the suite needs. Functions that only some backends have are
// optional interfaces of the harness ([Reopener], [Clock], [Inspector], [Restorer], [SingleWriter], [Resolution],
// [Meter]) and of its transactions ([Locker], [Savepointer], [Redriver], [Teller]); core.As finds them.
type Harness interface {
	// Store returns the store under test, the same one every time.
	Store() core.OutboxStore
	// Begin starts a transaction of the application. Several can run at once, unless the harness is a
	// [SingleWriter].
	Begin(ctx context.Context) (Tx, error)
}

// Tx is a transaction of the application.
type Tx interface {
	// Stage writes rows, in order, as the store's stager would. It can be called several times.
	Stage(ctx context.Context, rows ...core.StagedRow) error
	Commit(ctx context.Context) error
	// Rollback undoes the transaction. After Commit it does nothing.
	Rollback(ctx context.Context) error
}

// Locker is a [Tx] that can lock a record, as an application does that cancels a message. Without it the suite cannot
// test which calls wait for a lock.
type Locker interface {
	Lock(ctx context.Context, route, id string) error
}

// Savepointer is a [Tx] with savepoints.
type Savepointer interface {
	Savepoint(ctx context.Context) error
	// RollbackTo undoes what was done since the latest savepoint.
	RollbackTo(ctx context.Context) error
}

// Redriver is a [Tx] that can put an abandoned record back in line, as an operator does, and so writes a control
// record. Without it the suite does not know notices.
type Redriver interface {
	Redrive(ctx context.Context, route, id string) error
}

// Teller is a [Tx] that can write a notice, as those commands of the store do that write such ones. Its number
// is the store's. Without it the suite does not know core.NoticeDecide and core.NoticeReread.
type Teller interface {
	Tell(ctx context.Context, c core.Notice) error
}

// Reopener is a harness that can open another store on the same data, as another process would. Without it all members
// use one store.
type Reopener interface {
	// Reopen returns a second store, the same one every time.
	Reopen(ctx context.Context) (core.OutboxStore, error)
}

// Clock is a harness whose store counts delays by a clock that the harness moves. Without it they are real.
type Clock interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration) error
}

// Resolution is a harness whose store counts times in steps of more than 10 ms.
type Resolution interface {
	Resolution() time.Duration
}

// Meter is a harness that can say how much its store touches. Without it the suite does not know whether reads are
// bounded.
type Meter interface {
	// Touched returns how many rows, documents, blocks or the like the store has touched so far. No other program
	// uses the store meanwhile.
	Touched(ctx context.Context) (int64, error)
}

// SingleWriter is a harness whose database has one writer at a time: while a transaction of the application is open,
// the store's methods can wait or fail. Without it they must not.
type SingleWriter interface {
	SingleWriter() bool
}

// Inspector is a harness that can look at stored records. Without it the suite sees only the store's results.
type Inspector interface {
	// Records returns the stored records of a route, in any order.
	Records(ctx context.Context, route string) ([]Stored, error)
}

// Stored is a record as an [Inspector] found it. State is what is stored: a hold does not show in it.
type Stored struct {
	ID        string
	State     core.State
	Attempts  int
	Crashes   int
	Reason    waybill.Reason
	LastError string
}

// Restorer is a harness that can set the database back, sequence and all, as a restore of a backup does.
type Restorer interface {
	// Save returns a function that brings back what is stored now, and declares the restore where the store needs
	// that.
	Save(ctx context.Context) (restore func(ctx context.Context) error, err error)
}

// ErrNotDeclared reports that a check does not apply: the store's traits, or the harness, do not have what it tests.
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
		heartbeatChecks, presenceChecks, evictChecks, readChecks, snapshotChecks, watermarkChecks, waitingChecks, noticeChecks, holdChecks,
		releaseChecks, dueChecks, settleChecks, outcomeChecks, storeChecks, manyChecks,
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
		defer k.close()
		c.fn(k)
	})
}

//go:embed *.go
var files embed.FS

var source = suitetest.Source{Files: files, NotDeclared: ErrNotDeclared}

// Timeout bounds one check in Run.
const Timeout = 2 * time.Minute

// Run makes every check a subtest with a new harness; a harness can be shared, since every check works on routes of its
// own. Checks of undeclared features are skipped, and told of in the log.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	conformance.Run(t, checksWith(newHarness))
}

// RunSpread is Run with a worker for each newHarness, side by side, since checks mostly wait. Every check runs once,
// with a harness of one worker. No two workers must share one database: some checks set it back.
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

var conformance = suitetest.Suite{Name: "outboxtest", Timeout: Timeout, NotDeclared: ErrNotDeclared}

func checksWith(newHarness func(t *testing.T) Harness) []suitetest.Check {
	return suitetest.With(Checks(), newHarness, func(c Check) (string, func(context.Context, Harness) error) { return c.Name, c.Run })
}
