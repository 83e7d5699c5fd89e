package sqs_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/ratetest"
	"github.com/waybill-go/waybill/internal/tier"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

// OP-24: a consumer and a relay that set no option are near the best settings. Not parallel: see ratetest.
func TestNearBest(t *testing.T) {
	tier.Nightly(t, "rounds end early beside other programs; each pair drains ten thousand messages and more")
	u, err := url.Parse(startFake(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	link := ratetest.Link(t, u.Host)
	u.Host = link.Addr()
	// A request carries ten messages. A client of the SDK keeps ten connections, so more than the 16 requests of
	// the default would open new ones.
	const more = 45 * time.Microsecond // by hand 15,000 messages a second are received
	ratetest.Transport(t, ratetest.Bus{
		Link: link, Messages: 4000, Batch: 160, More: more,
		Open: func(t *testing.T, n int) core.Transport {
			t.Helper()
			o := sqstransport.Options{Bindings: map[string][]string{fmt.Sprint("rates", n): {ratetest.Topic}}}
			return newBus(t, newClient(t, u.String()), o)
		},
	})
}
