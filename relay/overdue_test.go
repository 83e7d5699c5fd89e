package relay_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
)

// stubborn ignores its context, and returns when it may go.
type stubborn struct {
	*bus
	goOn chan struct{}
}

func (s *stubborn) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	<-s.goOn
	return s.bus.Publish(context.WithoutCancel(ctx), batch)
}

// TestOverduePublishIsSaid: a Publish call that does not return is reported once its time is over, by log and health,
// and that it has returned.
func TestOverduePublishIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, p := newStore(t), &stubborn{newBus(), make(chan struct{})}
		var buf sharedtest.Log
		r := newRelay(t, s, p, relay.Options{Logger: slog.New(slog.NewTextHandler(&buf, nil)), PublishTimeout: 3 * time.Second})
		stage(t, s, msg("a", ""))
		stop := begin(t, r)
		patience.Pass(t, 3500*time.Millisecond)
		expect(t, r.Health(t.Context()), "route default", waybill.HealthOK, "")
		patience.Pass(t, time.Second)
		expect(t, r.Health(t.Context()), "route default", waybill.HealthDegraded, "PublishTimeout, 3s, is over; 1 messages wait")
		close(p.goOn)
		within(t, time.Second, "it is published", func() bool { return p.count() == 1 })
		synctest.Wait()
		expect(t, r.Health(t.Context()), "route default", waybill.HealthOK, "")
		if err := stop(); err != nil {
			t.Error(err)
		}
		if l := buf.Take(); strings.Count(l, "event=relay.publish_overdue") != 1 || strings.Count(l, "event=relay.publish_returned") != 1 {
			t.Errorf("want one line when it is overdue, and one when it has returned:\n%s", l)
		}
	})
}
