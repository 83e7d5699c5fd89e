package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/core"
)

// clock is a time that tests move.
type clock struct{ us atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.us.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
	return c
}

func (c *clock) Now() time.Time          { return time.UnixMicro(c.us.Load()) }
func (c *clock) advance(d time.Duration) { c.us.Add(d.Microseconds()) }

func open(tb testing.TB, opts Options) *Store {
	tb.Helper()
	return openAt(tb, filepath.Join(tb.TempDir(), "test?100%.db"), opts)
}

func openAt(tb testing.TB, path string, opts Options) *Store {
	tb.Helper()
	if opts.Source == "" {
		opts.Source = "/test"
	}
	opts.AutoMigrate = true
	s, err := Open(tb.Context(), path, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func raw(id, key string, opts ...core.MessageOption) core.Message {
	return core.RawMessage("orders.placed", "text/plain", []byte("body of "+id), append(opts, core.ID(id), core.Key(key))...)
}

func stage(tb testing.TB, s *Store, msgs ...core.Message) []core.Staged {
	tb.Helper()
	staged, err := tryStage(tb.Context(), s, msgs...)
	if err != nil {
		tb.Fatal(err)
	}
	return staged
}

func tryStage(ctx context.Context, s *Store, msgs ...core.Message) ([]core.Staged, error) {
	tx, err := s.DB().BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	staged, err := s.Stage(ctx, tx, msgs...)
	if err != nil {
		return nil, err
	}
	return staged, tx.Commit()
}

func request(n int) core.ClaimRequest {
	return core.ClaimRequest{Owner: "tester", Routes: []core.RouteOrder{{Route: core.DefaultRoute}}, MaxRecords: n, Lease: time.Minute}
}

func claim(tb testing.TB, s *Store, req core.ClaimRequest) core.Claim {
	tb.Helper()
	c, err := s.Claim(tb.Context(), req)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func settle(tb testing.TB, s *Store, out ...core.Outcome) {
	tb.Helper()
	if err := s.Settle(tb.Context(), out).FirstErr(); err != nil {
		tb.Fatal(err)
	}
}

func ids(c core.Claim) string {
	var out strings.Builder
	for i := range c.Records {
		out.WriteString(c.Records[i].Envelope.ID + " ")
	}
	return out.String()
}

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	goleak.VerifyTestMain(m)
}

// ST-01 ST-02 DB-02 DB-03 DB-13
func TestStageClaimSettle(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Stage(t.Context(), tx, raw("lost", "")); err != nil {
		t.Fatal(err)
	}
	tx.Rollback()
	got := stage(t, s, raw("a", "k"), raw("b", "k"), raw("a", "k"), raw("c", "", core.Routes("default", "other")))
	if want := "[{a default false not found} {b default false not found} {a default true not found} {c default false not found} {c other false not found}]"; fmt.Sprint(got) != want {
		t.Fatalf("staged %v, want %s", got, want)
	}
	if got := stage(t, s, raw("b", "k")); !got[0].Duplicate {
		t.Fatal("the second b is no duplicate")
	}
	c := claim(t, s, request(10))
	if ids(c) != "a b c " || c.More {
		t.Fatalf("claimed %s, more %v", ids(c), c.More)
	}
	if string(c.Records[0].Envelope.Body) != "body of a" || c.Records[0].Envelope.Source != "/test" {
		t.Fatalf("record %+v", c.Records[0])
	}
	if c := claim(t, s, request(10)); len(c.Records) != 0 || c.NextIn <= 0 || c.NextIn > time.Minute {
		t.Fatalf("second claim: %s next in %s", ids(c), c.NextIn)
	}
	settle(t, s, core.Published(&c.Records[0]), core.Retry(&c.Records[1], errors.New("no"), time.Hour), core.Release(&c.Records[2], 0))
	for _, err := range s.Settle(t.Context(), []core.Outcome{core.Published(&c.Records[0]), core.Release(&c.Records[1], 0)}) {
		if !errors.Is(err, core.ErrLeaseLost) {
			t.Fatalf("stale settle: %v", err)
		}
	}
	if c := claim(t, s, request(10)); ids(c) != "c " {
		t.Fatalf("claimed %s", ids(c))
	}
}

// IN-01 IN-02 IN-03 IN-04 IN-07
func TestInboxOnce(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	if _, err := s.DB().ExecContext(t.Context(), "CREATE TABLE effects (id TEXT)"); err != nil {
		t.Fatal(err)
	}
	key := core.InboxKey{Consumer: "c", Source: "/s", ID: "1"}
	var runs atomic.Int32
	effect := func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES ('1')"); err != nil {
			return err
		}
		if runs.Add(1) == 1 {
			return errors.New("first run fails")
		}
		return nil
	}
	var wg sync.WaitGroup
	var processed, duplicate, failed atomic.Int32
	for range 8 {
		wg.Go(func() {
			switch st, err := s.Do(t.Context(), key, effect); {
			case err != nil:
				failed.Add(1)
			case st == core.InboxProcessed:
				processed.Add(1)
			case st == core.InboxDuplicate:
				duplicate.Add(1)
			}
		})
	}
	wg.Wait()
	if processed.Load() != 1 || failed.Load() != 1 || duplicate.Load() != 6 {
		t.Fatalf("processed %d failed %d duplicates %d", processed.Load(), failed.Load(), duplicate.Load())
	}
	var n int
	if err := s.DB().QueryRowContext(t.Context(), "SELECT count(*) FROM effects").Scan(&n); err != nil || n != 1 {
		t.Fatalf("%d effects, %v", n, err)
	}
}

// DB-10
func TestWaitHearsOtherConnections(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	a, b := openAt(t, path, Options{}), openAt(t, path, Options{})
	for i := range 20 {
		if c := claim(t, a, request(10)); len(c.Records) != 0 {
			t.Fatal("not empty")
		}
		staged := make(chan time.Time, 1)
		go func() {
			if _, err := tryStage(t.Context(), b, raw(strconv.Itoa(i), "")); err != nil {
				t.Error(err)
			}
			staged <- time.Now()
		}()
		cause, err := a.Wait(t.Context(), []string{"default"}, 30*time.Second)
		if err != nil || cause != core.WakeNotify {
			t.Fatalf("%s %v", cause, err)
		}
		if late := time.Since(<-staged); late > 2*time.Second {
			t.Fatalf("woke %s after the commit", late)
		}
		c := claim(t, a, request(10))
		if len(c.Records) != 1 {
			t.Fatal("nothing to claim")
		}
		settle(t, a, core.Published(&c.Records[0]))
	}
}
