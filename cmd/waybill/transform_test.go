package main

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transform"
)

// ST-18: the relay compresses and encrypts the bodies of a route as the configuration says. A handler with the same
// steps reads them; a key that is wrong or missing is told before anything runs, and never shown.
func TestTransformedRoute(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	secret := []byte("0123456789abcdef0123456789abcdef")
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString(secret)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	conf := write(t, b.base()+"relays:\n  a:\n    routes:\n    - compress: true\n      encrypt: {key_id: k1, key: {file: "+file+"}}\n    - {name: plain}\n")
	body := strings.Repeat("all is well. ", 1000)
	stage(t, b.store, waybill.RawMessage("a.b", "text/plain", []byte(body), waybill.Routes(waybill.DefaultRoute, "plain")))
	r := start(t, b.app(), "relay", "--config", conf, "--until-empty", "--for", "50s")
	r.end(t, cli.ExitOK)
	receiver, err := b.bus.Subscribe(t.Context(), core.Subscription{Queue: "q"})
	if err != nil {
		t.Fatal(err)
	}
	h, err := transform.Handler(waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		if string(d.Envelope.Body) != body {
			t.Errorf("handled %d bytes", len(d.Envelope.Body))
		}
		return waybill.HandlerProcessed, nil
	}}, transform.Gzip{}, transform.Encrypt{Keys: transform.StaticKeys(map[string][]byte{"k1": secret}), AllowPlain: true})
	if err != nil {
		t.Fatal(err)
	}
	codings := map[string]bool{}
	for range 2 {
		ds, err := receiver.Receive(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		coding := ds[0].Envelope.Headers[transform.Header]
		if codings[coding] = true; coding != "" && len(ds[0].Envelope.Body) > 200 {
			t.Errorf("%d bytes", len(ds[0].Envelope.Body))
		}
		if _, err := h.Handle(t.Context(), ds[0]); err != nil {
			t.Error(err)
		}
	}
	if len(codings) != 2 || !codings["gzip, waybill-aes256gcm"] || !codings[""] {
		t.Errorf("codings %v", codings)
	}

	for _, c := range []struct{ encrypt, want string }{
		{"{key_id: k1}", "routes[0].encrypt.key: is missing"},
		{"{key: aHVudGVyMjEyMzQ1Njc4OTA=}", "routes[0].encrypt.key_id: is missing"},
		{"{key_id: k1, key: hunter2}", "routes[0].encrypt.key: is not base64"},
		{"{key_id: k1, key: aHVudGVyMg==}", "routes[0].encrypt.key: has 7 bytes; it needs at least 32"},
		{"{key_id: k1, key: {file: /nowhere}}", "routes[0].encrypt.key: cannot read the file"},
		{"{key_id: " + strings.Repeat("k", 256) + ", key: aHVudGVyMg==}", "routes[0].encrypt.key_id: has 256 bytes"},
	} {
		other := newBench(t)
		conf := write(t, other.base()+"relays:\n  a:\n    routes:\n    - encrypt: "+c.encrypt+"\n")
		r := start(t, other.app(), "relay", "--config", conf)
		r.end(t, cli.ExitUsage)
		says(t, r.log.String(), "waybill.yaml:", "relays.a."+c.want)
		if text := r.log.String(); strings.Contains(text, "hunter2") || strings.Contains(text, "aHVudGVyM") {
			t.Errorf("tells the key:\n%s", text)
		}
	}
}
