package relay_test

// A machine whose clock is fast stamps what it stages far ahead. The messages are sent, and the log names the source.

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
)

func TestStampsTooFarAheadAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, p := newStore(t), newBus()
		var buf sharedtest.Log
		r := newRelay(t, s, p, relay.Options{Logger: slog.New(slog.NewTextHandler(&buf, nil))})
		ahead := func(id string, d time.Duration) waybill.Message {
			m := msg(id, "k")
			m.Source, m.HLC = "/fast", hlc.Timestamp(time.Now().Add(d).UnixMilli()<<16)
			return m
		}
		stage(t, s, msg("a", "k"), ahead("near", 30*time.Second), ahead("far", time.Hour), msg("b", "k"))
		stop := begin(t, r)
		within(t, time.Minute, "all are sent", func() bool { return p.count() == 4 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		l := buf.Take()
		if strings.Count(l, "event=relay.stamp_ahead") != 1 || !strings.Contains(l, "source=/fast") || !strings.Contains(l, "id=far") {
			t.Errorf("want one line, of the message that is too far ahead:\n%s", l)
		}
	})
}
