package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"modernc.org/sqlite"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/transport/memory"
)

// wrapping is a driver around SQLite's, as one for tracing is: its connections have the methods of database/sql only.
type wrapping struct{ name string }

func (w wrapping) Connect(context.Context) (driver.Conn, error) { return w.Open(w.name) }

func (w wrapping) Driver() driver.Driver { return w }

func (w wrapping) Open(name string) (driver.Conn, error) {
	conn, err := new(sqlite.Driver).Open(name)
	return struct{ driver.Conn }{conn}, err
}

// A database whose driver hides the commit hook is refused when a consumer starts, before the first message.
func TestWrappedDriverIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	dsn, err := dataSource(filepath.Join(t.TempDir(), "w.db"), DefaultBusyTimeout)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(wrapping{dsn})
	t.Cleanup(func() { _ = db.Close() })
	s := newStore(t, db, Options{})
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	clear := func(when string, err error) {
		t.Helper()
		if !errors.Is(err, waybill.ErrMisconfigured) || strings.Count(err.Error(), "commit hook") != 1 || !strings.Contains(err.Error(), "modernc.org/sqlite") {
			t.Errorf("%s: %v, want one error that matches waybill.ErrMisconfigured, with cause and cure", when, err)
		}
	}
	clear("check", s.Check(t.Context()))
	_, err = s.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "/s", ID: "1"}, func(context.Context, *sql.Tx) error {
		t.Error("the handler ran")
		return nil
	})
	clear("do", err)

	bus, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Declare("q", "t.x"); err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New(s, "test", inbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(bus, consumer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	topic := waybill.NewTopic("t.x", waybill.Bytes("text/plain"))
	if err := c.Handle(waybill.Subscription{Queue: "q"}, inbox.Handler(box, topic, func(context.Context, *sql.Tx, []byte) error { return nil })); err != nil {
		t.Fatal(err)
	}
	clear("run", c.Run(t.Context()))
}
