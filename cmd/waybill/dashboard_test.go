package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/internal/patience"
)

// OP-07: the daemon shows the dashboard if the settings ask for it, over its stores, relays and subscriptions, and ends
// although somebody looks.
func TestDashboard(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conf := b.base() + "relays:\n  a: {}\nsubscriptions:\n- queue: q\n- queue: mails\ndashboard: {enabled: true, read_only: true}\nhttp:\n  listen: 127.0.0.1:0\n"
	r := start(t, b.app(), "relay", "--config", write(t, conf))
	at := address(t, &r.log)
	patience.Until(t, "ready", func() bool { code, _ := get(t, at+"/readyz"); return code == 200 })
	for path, want := range map[string]string{"": "Overview", "/": "data-label=\"parked\">0</td>", "/messages": "No message matches", "/parked?queue=q": "Parked messages of q"} {
		if code, text := get(t, at+"/dashboard"+path); code != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %d\n%s", path, code, text)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at+"/dashboard/live", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if _, err := stream.Body.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.end(t, cli.ExitOK)
}
