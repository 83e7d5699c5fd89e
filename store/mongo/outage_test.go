package mongo

import (
	"context"
	"errors"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
)

// A server that is away is an outage for every call, and costs nothing; when it is back all goes on. DB-15.
func TestServerAway(t *testing.T) {
	t.Parallel()
	m := testenv.MongoDB(t)
	if !m.Emulated {
		t.Skip("the proxy stands before one server, and a replica set tells its own addresses")
	}
	direct := openIn(t, connect(t, m.URI).Database(m.Database), Options{})
	proxy := testenv.NewProxy(t, hostOf(m.URI))
	s, err := New(connect(t, "mongodb://"+proxy.Addr()+"/?directConnection=true&serverSelectionTimeoutMS=300").Database(m.Database),
		Options{Source: "/test", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	self := join(t, s, benchRoute)
	in(t, direct, func(ctx context.Context, tx Tx) error {
		_, err := direct.Stage(ctx, tx, message(1))
		return err
	})
	request := core.ReadRequest{Ranges: []core.Range{{RouteSlots: all(benchRoute), UpToSeq: 1 << 62}}}
	p, err := s.Read(t.Context(), self.Session, request)
	if err != nil {
		t.Fatal(err)
	}
	outcome := core.Published(&p.Ranges[0].Records[0])
	proxy.Refuse()
	proxy.Cut()
	_, read := s.Read(t.Context(), self.Session, request)
	_, heartbeat := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: self})
	_, take := s.Hold(t.Context(), self.Session, core.HoldRequest{KeylessSlots: all(benchRoute), KeylessLimit: 1})
	_, do := s.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "/s", ID: "1"}, func(context.Context, Tx) error { return nil })
	settle := s.Settle(t.Context(), self.Session, []core.Outcome{outcome}).FirstErr()
	for what, err := range map[string]error{"read": read, "heartbeat": heartbeat, "hold": take, "do": do, "settle": settle, "check": s.Check(t.Context())} {
		if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) {
			t.Errorf("%s: %v (%s)", what, err, waybill.ClassOf(err))
		}
	}
	if err := proxy.Accept(); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "the server is back", func() bool {
		return s.Settle(t.Context(), self.Session, []core.Outcome{outcome}).FirstErr() == nil
	})
}
