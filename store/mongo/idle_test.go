package mongo

import (
	"context"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
)

// commandCounts counts commands by their name.
type commandCounts struct {
	mu    sync.Mutex
	by    map[string]int
	beats int // renewals
}

func (c *commandCounts) started(_ context.Context, e *event.CommandStartedEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by[e.CommandName]++
	if of, ok := e.Command.Lookup("update").StringValueOK(); ok && strings.HasSuffix(of, "members") {
		c.beats++
	}
}

func (c *commandCounts) counts() (beats int, by map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.beats, maps.Clone(c.by)
}

// DB-10: an idle relay without options sends 1,630 commands in 18 heartbeats, which take a minute, to a server without
// change streams. It looks four times a second there, which finds a new message within a quarter of a second
// (DefaultPollInterval). With looks that are a minute apart it sends 165, as to a server with change streams.
func TestIdleRelay(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "the real pauses of an idle relay: two minutes")
	for _, c := range []struct {
		name string
		poll time.Duration
		most int
	}{{"without change streams", 0, 1800}, {"rare looks", time.Minute, 250}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := testenv.MongoDB(t)
			n := &commandCounts{by: map[string]int{}}
			client, err := driver.Connect(options.Client().ApplyURI(m.URI).SetMonitor(&event.CommandMonitor{Started: n.started}))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Disconnect(context.Background()) }()
			r, err := relay.New(openIn(t, client.Database(m.Database), Options{PollInterval: c.poll}), &sharedtest.Publisher{}, relay.Options{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }()
			beats := func(want int) (int, map[string]int) {
				patience.Moving(t, "heartbeats", func() (int, bool) {
					n, _ := n.counts()
					return n, n >= want
				})
				return n.counts()
			}
			settled, before := beats(12)
			_, after := beats(settled + 18)
			total := 0
			for name := range after {
				total += after[name] - before[name]
			}
			t.Logf("%d commands in 18 heartbeats, before %v, after %v", total, before, after)
			if total > c.most {
				t.Errorf("%d commands in 18 heartbeats, want at most %d", total, c.most)
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
