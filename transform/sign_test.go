package transform_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/transform"
)

var (
	ourKey   = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))
	theirKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{8}, ed25519.SeedSize))
)

// sign returns a step that knows the keys mac, ours and theirs; theirs is for messages of /mails. side is what it
// lacks of Ed25519: private at a consumer, public at a relay.
func sign(keyID, lacks string) transform.Sign {
	keys := map[string]transform.SigningKey{
		"mac":    {Secret: bytes.Repeat([]byte{1}, 32)},
		"ours":   {Private: ourKey, Public: ourKey.Public().(ed25519.PublicKey), Sources: []string{"/orders", "/payments"}},
		"theirs": {Private: theirKey, Public: theirKey.Public().(ed25519.PublicKey), Sources: []string{"/mails"}},
	}
	for id, key := range keys {
		switch lacks {
		case "private":
			key.Private = nil
		case "public":
			key.Public = nil
		}
		keys[id] = key
	}
	return transform.Sign{KeyID: keyID, Keys: transform.StaticSigningKeys(keys)}
}

// A signed message reaches the handler as it was, and no other one does: not with another body or attribute, not with a
// signature of another key, and not without one.
func TestSign(t *testing.T) { // SE-04
	t.Parallel()
	paid := payment
	paid.Time = time.Date(2026, 11, 26, 12, 0, 0, 123456000, time.UTC)
	for _, id := range []string{"mac", "ours"} {
		whole := sealed(t, paid, sign(id, "public"))
		if got, err := handle(t, whole, sign("", "private")); err != nil || !bytes.Equal(got.Envelope.Body, payment.Body) {
			t.Fatalf("%s: the message itself: %v, %v", id, got, err)
		}
		for name, change := range map[string]func(e *waybill.Envelope){
			"id":                       func(e *waybill.Envelope) { e.ID = "pay-2" },
			"source":                   func(e *waybill.Envelope) { e.Source = "/orders" },
			"topic":                    func(e *waybill.Envelope) { e.Topic = "payments.undone" },
			"type":                     func(e *waybill.Envelope) { e.Type = "refund" },
			"key":                      func(e *waybill.Envelope) { e.Key = "k2" },
			"tenant":                   func(e *waybill.Envelope) { e.Tenant = "evil" },
			"the border of two fields": func(e *waybill.Envelope) { e.Key, e.Tenant = "k1a", "cme" },
			"time":                     func(e *waybill.Envelope) { e.Time = e.Time.Add(time.Microsecond) },
			"no time":                  func(e *waybill.Envelope) { e.Time = time.Time{} },
			"codings before":           func(e *waybill.Envelope) { e.Headers[transform.Header] = "gzip, waybill-signed" },
			"body":                     func(e *waybill.Envelope) { e.Body = append(e.Body[:len(e.Body)-1:len(e.Body)-1], ' ') },
			"signature":                func(e *waybill.Envelope) { e.Body = bytes.Clone(e.Body); e.Body[10] ^= 1 },
			"a cut signature":          func(e *waybill.Envelope) { e.Body = e.Body[:20] },
			"nothing but the header":   func(e *waybill.Envelope) { e.Body = payment.Body },
			"no signature":             func(e *waybill.Envelope) { e.Body = payment.Body; delete(e.Headers, transform.Header) },
			"the id of another key": func(e *waybill.Envelope) {
				e.Body = append([]byte{1, 6}, append([]byte("theirs"), e.Body[2+len(id):]...)...)
			},
		} {
			e := whole.Clone()
			if change(&e); !refused(t, e, sign("", "private"), transform.Gzip{}) {
				t.Errorf("%s: a message with another %s reaches the handler", id, name)
			}
		}
	}
	// The key of one service signs nothing of another.
	forged := paid
	forged.Source = "/mails"
	e := sealed(t, forged, sign("theirs", ""))
	e.Source = paid.Source
	if !refused(t, e, sign("", "private")) {
		t.Error("the key of mails signs a payment")
	}
	w := &wire{}
	if err := publish(t, w, []waybill.Envelope{paid}, sign("theirs", "")).FirstErr(); waybill.ClassOf(err) != waybill.ClassPermanent || !strings.Contains(err.Error(), "SigningKey.Sources") {
		t.Errorf("the relay signs for another source: %v", err)
	}
	// A roll-out: unsigned ones come, forged ones do not.
	open := sign("", "private")
	open.AllowUnsigned = true
	if got, err := handle(t, paid, open); err != nil || !bytes.Equal(got.Envelope.Body, payment.Body) {
		t.Errorf("AllowUnsigned: %v, %v", got, err)
	}
	if bad := sealed(t, paid, sign("ours", "")); true {
		bad.ID = "pay-2"
		if !refused(t, bad, open) {
			t.Error("with AllowUnsigned a forged signature reaches the handler")
		}
	}
	// Beside the others, in any order.
	all := []transform.Step{transform.Gzip{MinBytes: 1}, sign("ours", ""), encrypt("old"), transform.ClaimCheck{Blobs: &blobs{}, MinBytes: 1}}
	if got, err := handle(t, sealed(t, paid, all...), all...); err != nil || !bytes.Equal(got.Envelope.Body, payment.Body) {
		t.Errorf("with all steps: %v, %v", got, err)
	}
}

// A forged message of the same id and source leaves no mark in the inbox: the true one has its effect.
func TestForgedMessageLeavesNoMark(t *testing.T) { // SE-04
	t.Parallel()
	store, err := memory.New(memory.Options{Source: "/billing"})
	if err != nil {
		t.Fatal(err)
	}
	billing, err := inbox.New(store, "billing", inbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	done := 0
	topic := waybill.NewTopic("payments.made", waybill.JSON[map[string]any]())
	h, err := transform.Handler(inbox.Handler(billing, topic, func(context.Context, *memory.Tx, map[string]any) error {
		done++
		return nil
	}), sign("", "private"))
	if err != nil {
		t.Fatal(err)
	}
	good := sealed(t, payment, sign("ours", ""))
	bad := good.Clone()
	bad.Topic = "mails.opened"
	for _, e := range []waybill.Envelope{bad, good} {
		_, err = h.Handle(t.Context(), &waybill.Delivery{Envelope: e, Queue: "q", Attempt: 1})
	}
	if done != 1 || err != nil {
		t.Errorf("%d effects, %v", done, err)
	}
}

// Keys that cannot be used are no message's fault: the error names key and cure.
func TestSigningKeys(t *testing.T) {
	t.Parallel()
	for want, key := range map[string]transform.SigningKey{
		"31 bytes": {Secret: make([]byte, 31)}, "one kind": {Secret: make([]byte, 32), Private: ourKey}, "no Ed25519 key": {Private: ourKey[:5]},
		"neither Secret nor Private": {Public: ourKey.Public().(ed25519.PublicKey)},
	} {
		step := transform.Sign{KeyID: "k", Keys: func(context.Context, string) (transform.SigningKey, error) { return key, nil }}
		if _, _, err := step.Do(t.Context(), &payment); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"k"`) {
			t.Errorf("%s: %v", want, err)
		}
	}
	e := sealed(t, payment, sign("ours", ""))
	for name, c := range map[string]struct {
		err   error
		class waybill.Class
	}{
		"no such key": {transform.ErrNoKey, waybill.ClassRejected}, "no answer": {errors.New("timeout"), waybill.ClassOutage},
	} {
		step := transform.Sign{Keys: func(context.Context, string) (transform.SigningKey, error) { return transform.SigningKey{}, c.err }}
		if _, err := handle(t, e, step); waybill.ClassOf(err) != c.class {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (transform.Sign{KeyID: strings.Repeat("x", 256)}).Validate(); err == nil || !strings.Contains(err.Error(), "Keys: is nil") || !strings.Contains(err.Error(), "256 bytes") {
		t.Error(err)
	}
}

// The format is a contract with other languages: Ed25519 with a known key gives these bytes.
func TestSignedFormat(t *testing.T) {
	t.Parallel()
	e := waybill.Envelope{ID: "1", Source: "/orders", Topic: "t", Type: "t", Time: time.UnixMicro(1), Body: []byte("body")}
	body, _, err := sign("ours", "public").Do(t.Context(), &e)
	if err != nil {
		t.Fatal(err)
	}
	data := "\x01" + "\x00\x00\x00\x11waybill-signed v1" + "\x00\x00\x00\x04ours" + "\x00\x00\x00\x00" + "\x00\x00\x00\x011" + "\x00\x00\x00\x07/orders" +
		"\x00\x00\x00\x01t" + "\x00\x00\x00\x01t" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01" + "body"
	want := "\x01\x04ours" + string(ed25519.Sign(ourKey, []byte(data))) + "body"
	if string(body) != want {
		t.Errorf("%s", hex.EncodeToString(body))
	}
}
