package sqs_test

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

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
	// The pool of HTTP connections is that of a program that makes its client by the SDK's defaults.
	pool := func(idle int) *http.Transport {
		p := awshttp.NewBuildableClient().GetTransport()
		if idle > 0 {
			p.MaxIdleConnsPerHost = idle
		}
		t.Cleanup(p.CloseIdleConnections)
		return p
	}
	open := func(idle, requests int) ratetest.Open {
		return func(t *testing.T, n int) core.Transport {
			t.Helper()
			o := sqstransport.Options{Bindings: map[string][]string{fmt.Sprint("rates", n): {ratetest.Topic}}, Requests: requests}
			return newBus(t, newClient(t, u.String(), func(o *awssqs.Options) { o.HTTPClient = clientOf(pool(idle)) }), o)
		}
	}
	const more = 45 * time.Microsecond // by hand 15,000 messages a second are received
	ratetest.Transport(t, ratetest.Bus{
		Link: link, Messages: 4000, Batch: 160, More: more, Open: open(0, 0),
		Better: map[string]ratetest.Open{"64 requests": open(64, 64)},
	})
}
