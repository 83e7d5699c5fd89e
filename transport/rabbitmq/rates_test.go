package rabbitmq_test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/ratetest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// OP-24: a consumer and a relay that set no option are near the best settings. Not parallel: see ratetest.
func TestNearBest(t *testing.T) {
	tier.Nightly(t, "rounds end early beside other programs; each pair drains ten thousand messages and more")
	u, err := url.Parse(testenv.RabbitMQ(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	link := ratetest.Link(t, u.Host)
	u.Host = link.Addr()
	with := func(o rabbitmq.Options) ratetest.Open {
		return func(t *testing.T, n int) core.Transport {
			t.Helper()
			o.Exchange = fmt.Sprint("rates", n)
			return dial(t, u.String(), o)
		}
	}
	ratetest.Transport(t, ratetest.Bus{Link: link, Messages: 10_000, Batch: 1000, Open: with(rabbitmq.Options{}), Better: map[string]ratetest.Open{
		"more in flight": with(rabbitmq.Options{Window: 4096, PublishConnections: 4}),
	}})
}
