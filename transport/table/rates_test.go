package table_test

import (
	"net/url"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/ratetest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/table"
)

// OP-24: a consumer of the table that sets no option is near the best settings, with the pool of the README. Not
// parallel: see ratetest.
func TestNearBest(t *testing.T) {
	tier.Nightly(t, "rounds end early beside other programs; each pair drains ten thousand messages and more")
	u, err := url.Parse(testenv.Postgres(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	link := ratetest.Link(t, u.Host)
	u.Host = link.Addr()
	const messages = 10_000
	drain := func() ratetest.Drain {
		b, _ := postgresBackendAt(t, u.String(), 20)
		sub := waybill.Subscription{Queue: waybill.NewID()}
		for range messages / 1000 {
			if err := b.stage(t.Context(), ratetest.Messages(1000, waybill.Routes(sub.Queue))...); err != nil {
				t.Fatal(err)
			}
		}
		return ratetest.Receive(t, link, newTable(t, b.store, table.Options{}), sub, messages)
	}
	ratetest.NearBest(t, drain, ratetest.Ideal(messages, 1000))
}
