package kafka_test

import (
	"context"
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/ratetest"
	"github.com/waybill-go/waybill/internal/tier"
)

// OP-24: a consumer and a relay that set no option are near the best settings. Not parallel: see ratetest.
func TestNearBest(t *testing.T) {
	tier.Nightly(t, "rounds end early beside other programs; each pair drains ten thousand messages and more")
	address := startFake(t).address()
	link := ratetest.Link(t, address)
	// The broker tells its own address.
	dialer := kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, link.Addr())
	})
	ratetest.Transport(t, ratetest.Bus{Link: link, Messages: 10_000, Batch: 1000, Open: func(t *testing.T, _ int) core.Transport {
		t.Helper()
		return dial(t, address, kafka.Options{Bus: busName(), Client: []kgo.Opt{dialer}})
	}})
}
