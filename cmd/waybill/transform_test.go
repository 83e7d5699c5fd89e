package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
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

	for _, c := range []struct{ step, want string }{
		{"encrypt: {key_id: k1}", "routes[0].encrypt.key: is missing"},
		{"encrypt: {key: aHVudGVyMjEyMzQ1Njc4OTA=}", "routes[0].encrypt.key_id: is missing"},
		{"encrypt: {key_id: k1, key: hunter2}", "routes[0].encrypt.key: is not base64"},
		{"encrypt: {key_id: k1, key: aHVudGVyMg==}", "routes[0].encrypt.key: has 7 bytes; it needs at least 32"},
		{"encrypt: {key_id: k1, key: {file: /nowhere}}", "routes[0].encrypt.key: cannot read the file"},
		{"encrypt: {key_id: " + strings.Repeat("k", 256) + ", key: aHVudGVyMg==}", "routes[0].encrypt.key_id: has 256 bytes"},
		{"sign: {key_id: k1}", "routes[0].sign.private_key: give either"},
		{"sign: {key_id: k1, secret: hunter2, private_key: hunter2}", "routes[0].sign.private_key: give either"},
		{"sign: {secret: hunter2}", "routes[0].sign.key_id: is missing"},
		{"sign: {key_id: k1, secret: aHVudGVyMg==}", "routes[0].sign.secret: has 7 bytes; it needs at least 32"},
		{"sign: {key_id: k1, private_key: hunter2}", "routes[0].sign.private_key: is no PEM"},
	} {
		other := newBench(t)
		conf := write(t, other.base()+"relays:\n  a:\n    routes:\n    - "+c.step+"\n")
		r := start(t, other.app(), "relay", "--config", conf)
		r.end(t, cli.ExitUsage)
		says(t, r.log.String(), "waybill.yaml:", "relays.a."+c.want)
		if text := r.log.String(); strings.Contains(text, "hunter2") || strings.Contains(text, "aHVudGVyM") {
			t.Errorf("tells the key:\n%s", text)
		}
	}
}

// ST-18: the relay signs the messages of a route, with HMAC or Ed25519, after the other steps. A new key is taken over
// when its file changes, without a signal or a restart, and so are those of other steps; a wrong one is told, and the
// old one stays.
func TestSignedRoute(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	first, second := []byte("0123456789abcdef0123456789abcdef"), []byte("fedcba9876543210fedcba9876543210")
	dir := t.TempDir()
	keep := func(name, text string) string {
		rewrite(t, filepath.Join(dir, name), text)
		return filepath.Join(dir, name)
	}
	text := base64.StdEncoding.EncodeToString
	pemFile := keep("pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	hmacFile, encryptFile := keep("hmac", text(first)), keep("encrypt", text(first))
	conf := write(t, b.base()+"relays:\n  a:\n    routes:\n    - compress: true\n      sign: {key_id: ed, private_key: {file: "+pemFile+"}}\n"+
		"    - name: hmac\n      encrypt: {key_id: e, key: {file: "+encryptFile+"}}\n      sign: {key_id: h, secret: {file: "+hmacFile+"}}\n")
	receiver, err := b.bus.Subscribe(t.Context(), core.Subscription{Queue: "q"})
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, b.app(), "relay", "--config", conf)
	defer func() {
		if t.Failed() {
			t.Log(r.log.String())
		}
	}()
	body := strings.Repeat("all is well. ", 1000)
	// coding returns how a message of a route comes, if a handler with these secrets takes it.
	coding := func(route string, secret, encrypt []byte) (coding string, err error) {
		t.Helper()
		stage(t, b.store, waybill.RawMessage("a.b", "text/plain", []byte(body), waybill.Routes(route)))
		ctx, _ := patience.Context(t.Context(), patience.Limit)
		ds, err := receiver.Receive(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		h, err := transform.Handler(waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			if string(d.Envelope.Body) != body {
				t.Errorf("handled %d bytes", len(d.Envelope.Body))
			}
			return waybill.HandlerProcessed, nil
		}}, transform.Gzip{}, transform.Encrypt{Keys: transform.StaticKeys(map[string][]byte{"e": encrypt}), AllowPlain: true},
			transform.Sign{Keys: transform.StaticSigningKeys(map[string]transform.SigningKey{"ed": {Public: public}, "h": {Secret: secret}})})
		if err != nil {
			t.Fatal(err)
		}
		coding = ds[0].Envelope.Headers[transform.Header]
		_, err = h.Handle(t.Context(), ds[0])
		if lost := receiver.Settle(t.Context(), []core.Ack{core.AckDone(ds[0])}).FirstErr(); lost != nil {
			t.Fatal(lost)
		}
		return coding, err
	}
	if c, err := coding(waybill.DefaultRoute, first, first); err != nil || c != "gzip, waybill-signed" {
		t.Errorf("Ed25519: %q, %v", c, err)
	}
	if c, err := coding("hmac", first, first); err != nil || c != "waybill-aes256gcm, waybill-signed" {
		t.Errorf("HMAC: %q, %v", c, err)
	}
	if _, err := coding("hmac", second, first); err == nil {
		t.Error("a handler with another secret takes it")
	}
	keep("hmac", "hunter2")
	patience.Until(t, "the wrong secret is told", func() bool {
		return strings.Contains(r.log.String(), "daemon.reload_refused") && strings.Contains(r.log.String(), "relays.a.routes[1].sign.secret: is not base64")
	})
	if _, err := coding("hmac", first, first); err != nil {
		t.Errorf("with a wrong file the old secret stays: %v", err)
	}
	keep("hmac", text(second))
	keep("encrypt", text(second))
	patience.Until(t, "the new secrets are taken over", func() bool {
		_, err := coding("hmac", second, second)
		return err == nil
	})
	if text := r.log.String(); strings.Contains(text, "hunter2") {
		t.Errorf("tells the secret:\n%s", text)
	}
	r.stop()
	r.end(t, cli.ExitOK)
}
