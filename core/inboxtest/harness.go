package inboxtest

import (
	"context"
	"embed"
	"errors"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

// Harness is the inbox under test with its transaction type and the functions that the suite needs. Functions that only
// some backends have are the optional interfaces [Breaker], [Transactor], [Clock] and
// [Disposable].
type Harness[Tx any] interface {
	// Inbox returns the inbox under test, the same one every time.
	Inbox() core.Inbox[Tx]
	// Effect writes one effect with this name in tx, as a handler would. The same name can be written again; each
	// write is one more effect.
	Effect(ctx context.Context, tx Tx, name string) error
	// Effects returns how many effects with this name are committed.
	Effects(ctx context.Context, name string) (int, error)
}

// Breaker is a harness that can lose a transaction: one of its statements fails, and the database rolls the transaction
// back, at once or at the commit. On PostgreSQL any failed statement does that. On MySQL and SQLite most do not: use
// one that does, such as a deadlock or INSERT OR ROLLBACK. Without it the suite cannot test a handler that swallows
// such an error.
type Breaker[Tx any] interface {
	// Break runs a statement in tx that fails in the database, and returns its error.
	Break(ctx context.Context, tx Tx) error
}

// ErrNotDeclared reports that a check does not apply: the harness does not have what it tests.
var ErrNotDeclared = errors.New("not declared")

// Check is one promise.
type Check[Tx any] struct {
	// Name is unique and stable: words joined by dashes.
	Name string
	// Run returns nil if the promise holds, an error that matches ErrNotDeclared if it was not made, and else an
	// error that names the wrong behaviour, the promise, and the line of the check. It returns soon after ctx has
	// ended, even if the inbox does not.
	Run func(ctx context.Context, h Harness[Tx]) error
}

// Checks returns all checks.
func Checks[Tx any]() []Check[Tx] {
	var all []Check[Tx]
	for _, c := range []struct {
		name string
		fn   func(k *kit[Tx])
	}{
		{"mark-and-effect-commit-together", markAndEffect[Tx]},
		{"duplicate-does-not-run", duplicateDoesNotRun[Tx]},
		{"key-is-consumer-source-and-id", keyIsConsumerSourceAndID[Tx]},
		{"bad-key-is-refused", badKeyIsRefused[Tx]},
		{"failure-leaves-no-mark", failureLeavesNoMark[Tx]},
		{"panic-leaves-no-mark", panicLeavesNoMark[Tx]},
		{"ended-context-leaves-no-mark", endedContextLeavesNoMark[Tx]},
		{"effect-is-hidden-until-commit", effectIsHiddenUntilCommit[Tx]},
		{"concurrent-duplicate-waits", concurrentDuplicateWaits[Tx]},
		{"concurrent-runs-after-rollback", concurrentRunsAfterRollback[Tx]},
		{"storm-has-one-effect", stormHasOneEffect[Tx]},
		{"different-keys-all-run", differentKeysAllRun[Tx]},
		{"waiting-heeds-its-context", waitingHeedsItsContext[Tx]},
		{"swallowed-failure-is-a-failure", swallowedFailureIsAFailure[Tx]},
		{"batch-commits-together", batchCommitsTogether[Tx]},
		{"batch-skips-duplicates", batchSkipsDuplicates[Tx]},
		{"batch-failure-leaves-nothing", batchFailureLeavesNothing[Tx]},
		{"batch-waits-for-others", batchWaitsForOthers[Tx]},
		{"batches-do-not-deadlock", batchesDoNotDeadlock[Tx]},
		{"batch-of-thousands", batchOfThousands[Tx]},
		{"mark-in-own-transaction", markInOwnTransaction[Tx]},
		{"purge-deletes-old-marks", purgeDeletesOldMarks[Tx]},
		{"purge-keeps-young-marks", purgeKeepsYoungMarks[Tx]},
		{"purge-of-all-consumers", purgeOfAllConsumers[Tx]},
		{"mark-lasts", markLasts[Tx]},
		{"batch-refuses-bad-keys", batchRefusesBadKeys[Tx]},
		{"outage-leaves-no-mark", outageLeavesNoMark[Tx]},
		{"lost-transaction-has-no-effect", lostTransactionHasNoEffect[Tx]},
		{"handler-context-has-its-values", handlerContextHasItsValues[Tx]},
		{"other-content-is-a-conflict", otherContentIsAConflict[Tx]},
		{"concurrent-content-is-a-conflict", concurrentContentIsAConflict[Tx]},
		{"batch-tells-conflicts", batchTellsConflicts[Tx]},
		{"mark-tells-conflicts", markTellsConflicts[Tx]},
	} {
		all = append(all, Check[Tx]{Name: c.name, Run: func(ctx context.Context, h Harness[Tx]) error {
			return source.Do(ctx, c.name, func() {
				c.fn(&kit[Tx]{base: base{ctx}, h: h, box: h.Inbox(), consumer: "c-" + waybill.NewID()})
			})
		}})
	}
	return all
}

//go:embed *.go
var files embed.FS

var source = suitetest.Source{Files: files, NotDeclared: ErrNotDeclared}
