package waybillmysql_test

import (
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/internal/patience"
)

// TestLongTransactions: a process that starts while two transactions run tells one from the other. When one of them
// ends, the process says so between two looks, and in the next one, though the other goes on.
func TestLongTransactions(t *testing.T) { // OR-02
	t.Parallel()
	ctx := t.Context()
	dsn := newDatabase(t, func(database string) string { return dsnOf(t, database) })
	s := openAt(t, dsn, waybillmysql.Options{})
	if err := s.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	begin := func(id string) (commit func() error) {
		tx, err := s.DB().BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback() })
		if _, err := s.Stage(ctx, tx, waybill.RawMessage("t", "text/plain", nil, waybill.ID(id))); err != nil {
			t.Fatal(err)
		}
		return tx.Commit
	}
	first := begin("a")
	patience.Pass(t, 200*time.Millisecond) // another row of waybill_outbox_marks is that of the moment
	begin("b")
	late := openAt(t, dsn, waybillmysql.Options{})
	var running []int64
	look := func(n int) func() bool {
		return func() bool {
			var err error
			if running, err = late.Sight(ctx); err != nil {
				t.Fatal(err)
			}
			return len(running) == n
		}
	}
	patience.Until(t, "two transactions run", look(2))
	two := running
	if got, err := late.MaybeEnded(ctx, two); len(got) != 0 || err != nil {
		t.Errorf("of two that run %v may have ended, %v", got, err)
	}
	if err := first(); err != nil {
		t.Fatal(err)
	}
	ended, err := late.MaybeEnded(ctx, two)
	if len(ended) != 1 || err != nil {
		t.Fatalf("one of two has ended, and %v may have, %v", ended, err)
	}
	patience.Until(t, "one transaction runs", look(1))
	if slices.Contains(running, ended[0]) {
		t.Errorf("%d has ended, and %v run", ended[0], running)
	}
	if again, err := late.MaybeEnded(ctx, two); !slices.Equal(again, ended) || err != nil {
		t.Errorf("a look later %v may have ended, %v; want %v", again, err, ended)
	}
}
