package redisstreams_test

import (
	"net/url"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/ratetest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// OP-24: a consumer and a relay that set no option are near the best settings. Not parallel: see ratetest.
func TestNearBest(t *testing.T) {
	tier.Nightly(t, "rounds end early beside other programs; each pair drains ten thousand messages and more")
	u, err := url.Parse(testenv.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	link := ratetest.Link(t, u.Host)
	u.Host = link.Addr()
	ratetest.Transport(t, ratetest.Bus{Link: link, Messages: 10_000, Batch: 1000, Open: func(t *testing.T, _ int) core.Transport {
		t.Helper()
		return dial(t, u.String(), redisstreams.Options{})
	}})
}
