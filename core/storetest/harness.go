package storetest

import (
	"context"
	"embed"
	"errors"

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
		stageChecks, sequenceChecks, timeChecks, readChecks, settleChecks, dedupeChecks, cancelChecks, blockChecks, waitChecks, cleanChecks,
		inspectChecks, redriveChecks, purgeChecks, headChecks, decideChecks, decideManyChecks, tellChecks,
		auditChecks, nameChecks, lastingChecks, waitManyChecks, yearChecks, ruleChecks,
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
