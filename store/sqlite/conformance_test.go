package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core/outboxtest"
	"github.com/waybill-go/waybill/internal/sleep"
	"github.com/waybill-go/waybill/internal/tier"
)

// The members use two stores on one file, as two processes do.
// ST-01 ST-02 DB-01 DB-02 DB-03 DB-04 DB-05 DB-10 DB-16 DB-18 OR-02 OR-08
func TestConformance(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "test.db")
	h := &harness{openAt(t, path, Options{}), openAt(t, path, Options{}), dir}
	outboxtest.Run(t, func(*testing.T) outboxtest.Harness { return h })
}

// DB-13: the same on a database of the application's own, with deferred transactions and a rollback journal, another
// prefix, published records that are kept, and a clock that is moved instead of waiting.
func TestConformanceOnOwnDatabase(t *testing.T) { //nolint:tparallel // the checks share a clock that they move
	t.Parallel()
	dir := t.TempDir()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "own.db")+"?_pragma=busy_timeout(5000)&_pragma=synchronous(OFF)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	clk := newClock()
	s, err := New(db, Options{
		Source: "/own", AutoMigrate: true, Prefix: "own_",
		Retention: waybill.Retention{Published: waybill.Forever}, Now: clk.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.WithoutCancel(t.Context())) })
	h := &clocked{harness{s, s, dir}, clk}
	if tier.IsNightly() { // it repeats TestConformance: the gate runs what published records are in
		outboxtest.Run(t, func(*testing.T) outboxtest.Harness { return h })
		return
	}
	for _, c := range outboxtest.Checks() {
		if !strings.Contains(c.Name, "settle") && !strings.Contains(c.Name, "publish") {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Run(t.Context(), h); err != nil && !errors.Is(err, outboxtest.ErrNotDeclared) {
				t.Error(err)
			}
		})
	}
}

type clocked struct {
	harness
	*clock
}

// Sleep makes room for others too: without it one that reads over and over keeps writers from a rollback journal.
func (c *clocked) Sleep(ctx context.Context, d time.Duration) error {
	c.advance(d)
	return sleep.For(ctx, min(d, time.Millisecond))
}
