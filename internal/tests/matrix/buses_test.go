package matrix_test

import (
	"context"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/redisstreams"
	"github.com/waybill-go/waybill/transport/table"
)

// bus is a column of the matrix.
type bus struct {
	name string
	// start returns the address of a broker that no other test uses.
	start func(t *testing.T) string
	// dial connects to it. The publisher is nil if the consumer takes messages straight from db.
	dial func(ctx context.Context, address string, db *database) (core.Publisher, subscriber, error)
	// noRelay says that before anything is dialled.
	noRelay bool
}

type subscriber interface {
	core.Subscriber
	Close(ctx context.Context) error
}

// whole is dial of a transport in both directions.
func whole(t core.Transport, err error) (core.Publisher, subscriber, error) { return t, t, err }

var buses = []bus{
	{name: "rabbitmq", start: func(t *testing.T) string { t.Helper(); return testenv.RabbitMQ(t).URL }, dial: func(ctx context.Context, address string, _ *database) (core.Publisher, subscriber, error) {
		return whole(rabbitmq.Dial(ctx, address, rabbitmq.Options{Exchange: "shop"}))
	}},
	{name: "redis", start: func(t *testing.T) string { t.Helper(); return testenv.OwnRedis(t, testenv.RedisOptions{}).URL() }, dial: func(ctx context.Context, address string, _ *database) (core.Publisher, subscriber, error) {
		return whole(redisstreams.Dial(ctx, address, redisstreams.Options{Bus: "shop", HoldFor: 2 * time.Second}))
	}},
	{name: "table", noRelay: true, start: func(*testing.T) string { return "" }, dial: func(_ context.Context, _ string, db *database) (core.Publisher, subscriber, error) {
		t, err := table.New(db.outbox, table.Options{Lease: 2 * time.Second})
		return nil, t, err
	}},
	{name: "sqs", start: startSQS, dial: dialSQS(false)},
	{name: "sqs-fifo", start: startSQS, dial: dialSQS(true)},
}
