package relay

// Tests that change the relay's own lease.

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// freezing is a publisher during whose calls the lease ends.
type freezing struct {
	core.Publisher
	lease *lease
	sent  int
}

func (p *freezing) Publish(_ context.Context, batch []waybill.Envelope) core.Results {
	p.sent += len(batch)
	p.lease.until.Store(&time.Time{}) // long ago
	return make(core.Results, len(batch))
}

// RL-10: a call in parts begins none of them after the lease, which may end during the one before: the process was
// frozen, and others have its messages.
func TestNoPartBeginsAfterTheLease(t *testing.T) {
	t.Parallel()
	l := &lease{}
	until := time.Now().Add(time.Hour)
	l.until.Store(&until)
	p := &freezing{lease: l}
	c := &call{lease: l, route: &route{served: served{Route: Route{Publisher: p}}, maxBytes: 1}, envs: []waybill.Envelope{{Body: []byte("a")}, {Body: []byte("b")}, {Body: []byte("c")}}}
	res := c.publishParts(t.Context())
	if len(res) != 3 || p.sent != 1 || res[0] != nil || !errors.Is(res[1], errLate) || !errors.Is(res[2], errLate) {
		t.Errorf("%d messages were sent, with the results %v; want one, and that the others are late", p.sent, res)
	}
}
