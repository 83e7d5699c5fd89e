package nats_test

// A user who sets no option has the messages of a killed process again within ten seconds. The ack_wait of the consumer
// bounds that on a machine of any speed.

import (
	"strconv"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/killtest"
	"github.com/waybill-go/waybill/internal/tier"
)

// mostMissed is how long the messages of a killed process may wait. The rest of ten seconds is for the server, which
// looks for them a moment later, and for round trips.
const mostMissed = 9 * time.Second

// TestAckWaitOfDefault: with no option set, the server gives a delivery to another receiver within ten seconds after it
// was sent, or renewed for the last time.
//
// TR-11.
func TestAckWaitOfDefault(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{})
	subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	if got := info(t, client(t, s)).Config; got.AckWait > mostMissed || len(got.BackOff) > 0 {
		t.Errorf("the server waits for %s, then %v; want %s at most", got.AckWait, got.BackOff, mostMissed)
	}
}

// TestKilledProcessIsMissed: with no option set, the messages of a killed process come to another consumer. The process
// has renewed them before. The clock is that of a server: nightly.
//
// TR-11.
func TestKilledProcessIsMissed(t *testing.T) {
	tier.Nightly(t, "the server's clock waits for a renewal, and for ack_wait: 12 s")
	t.Parallel()
	s := startServer(t, nil)
	renewals := make(chan *natsgo.Msg, 1000)
	if _, err := client(t, s).Conn().ChanSubscribe("$JS.ACK.waybill."+killtest.HeldQueue+".>", renewals); err != nil {
		t.Fatal(err)
	}
	m := killtest.Missed{
		Bus: dial(t, s.url(), nats.Options{}), Env: []string{portEnv + "=" + strconv.Itoa(s.port)},
		Held: func() { <-renewals },
	}
	m.Run(t)
}
