package mongo

import (
	"context"
	"strings"
	"testing"

	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/ratetest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
)

// OP-24: a relay and a consumer with an inbox that set no option are near the best settings. Not parallel: see
// ratetest.
func TestNearBest(t *testing.T) {
	tier.Nightly(t, "rounds end early beside other programs; each pair drains ten thousand messages and more")
	m := testenv.MongoDB(t)
	link := ratetest.Link(t, hostOf(m.URI))
	client := connect(t, strings.Replace(m.URI, hostOf(m.URI), link.Addr(), 1))
	databases := 0
	store := func(t *testing.T) *Store {
		t.Helper()
		databases++
		db := client.Database(m.Database + "_" + string(rune('a'+databases)))
		t.Cleanup(func() { _ = db.Drop(context.WithoutCancel(t.Context())) })
		return openIn(t, db, Options{})
	}
	outbox := func(t *testing.T) (core.OutboxStore, ratetest.Stage) {
		t.Helper()
		s := store(t)
		return s, func(t *testing.T, msgs []waybill.Message) {
			t.Helper()
			unit, err := s.NewUnitOfWork()
			if err == nil {
				err = unit.Do(t.Context(), func(ctx context.Context, _ *driver.Session) error { return unit.Stage(ctx, msgs...) })
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	inbox := func(t *testing.T) core.Inbox[*driver.Session] {
		t.Helper()
		return store(t)
	}
	t.Run("relay", func(t *testing.T) { ratetest.Drained(t, link, 20_000, outbox, outbox) })
	t.Run("inbox", func(t *testing.T) { ratetest.Marked(t, link, 500, inbox, inbox) })
}
