package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
)

// OP-08: the rules that are shipped, loaded into a real Prometheus that reads a real daemon: the first message that is
// given up fires the alert, and nothing fires before.
func TestFirstAbandonedMessageFiresTheAlert(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := start(t, b.app(), "relay", "--config", write(t, b.base()+"relays:\n  a: {unroutable_timeout: -1s}\nhttp:\n  listen: 127.0.0.1:0\n"))
	at := address(t, &r.log)
	patience.Until(t, "ready", func() bool { code, _ := get(t, at+"/readyz"); return code == 200 })
	p := testenv.OwnPrometheus(t, "../../deploy/prometheus/waybill.rules.yaml", strings.TrimPrefix(at, "http://"))
	firing := func() []string {
		t.Helper()
		names, err := p.Firing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	// A rate needs two samples from before.
	patience.Until(t, "read twice", func() bool {
		n, err := p.Samples(t.Context(), "waybill_relay_abandoned_total")
		return err == nil && n >= 2
	})
	if names := firing(); len(names) > 0 {
		t.Errorf("without cause: %v", names)
	}
	stage(t, b.store, message(waybill.TTL(1)))
	patience.Until(t, "the alert fires", func() bool { return slices.Contains(firing(), "WaybillAbandoned") })
}
