package transform_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"os"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/transform"
)

// sealed is a message as it is on the wire after steps.
func sealed(t *testing.T, e waybill.Envelope, steps ...transform.Step) waybill.Envelope {
	t.Helper()
	w := &wire{}
	if err := publish(t, w, []waybill.Envelope{e}, steps...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return w.sent()[0]
}

// refused reports whether the handler was not reached, and the message is parked as undecodable.
func refused(t *testing.T, e waybill.Envelope, steps ...transform.Step) bool {
	t.Helper()
	got, err := handle(t, e, steps...)
	return got == nil && waybill.ClassOf(err) == waybill.ClassPermanent && waybill.ReasonOf(err) == waybill.ReasonUndecodable
}

var payment = waybill.Envelope{
	ID: "pay-1", Source: "/payments", Topic: "payments.made", Type: "payment", Key: "k1", Tenant: "acme",
	Headers: map[string]string{"a": "b"}, Body: []byte(`{"to":"shop","amount":5}`),
}

// A program that may publish cannot give an encrypted body to another message of the same key: not the body alone, and
// not with any one attribute of the message.
func TestBodyIsBoundToItsMessage(t *testing.T) { // ST-18, SE-05
	t.Parallel()
	whole := sealed(t, payment, encrypt("old"))
	if got, err := handle(t, whole, encrypt("")); err != nil || !bytes.Equal(got.Envelope.Body, payment.Body) {
		t.Fatalf("the message itself: %v, %v", got, err)
	}
	for name, change := range map[string]func(e *waybill.Envelope){
		"id":     func(e *waybill.Envelope) { e.ID = "pay-2" },
		"source": func(e *waybill.Envelope) { e.Source = "/mails" },
		"topic":  func(e *waybill.Envelope) { e.Topic = "payments.undone" },
		"type":   func(e *waybill.Envelope) { e.Type = "refund" },
		"key":    func(e *waybill.Envelope) { e.Key = "k2" },
		"tenant": func(e *waybill.Envelope) { e.Tenant = "evil" },
		"the border of two fields": func(e *waybill.Envelope) {
			e.Key, e.Tenant = "k1a", "cme"
		},
		"body": func(e *waybill.Envelope) {
			other := payment
			other.ID, other.Tenant, other.Body = "pay-2", "evil", []byte(`{"to":"evil","amount":9999}`)
			e.Body = sealed(t, other, encrypt("old")).Body
		},
		"codings before": func(e *waybill.Envelope) { e.Headers[transform.Header] = "gzip, waybill-aes256gcm" },
	} {
		e := whole.Clone()
		if change(&e); !refused(t, e, encrypt(""), transform.Gzip{}) {
			t.Errorf("a body that is used with another %s reaches the handler", name)
		}
	}
	large := payment
	large.Body = bytes.Repeat(payment.Body, 10)
	e := sealed(t, large, transform.Gzip{MinBytes: 1}, encrypt("old"))
	if e.Headers[transform.Header] != "gzip, waybill-aes256gcm" {
		t.Fatal(e.Headers)
	}
	e.Headers[transform.Header] = "waybill-aes256gcm"
	if !refused(t, e, encrypt(""), transform.Gzip{}) {
		t.Error("a coding was left out of the header, and the handler got the compressed body")
	}
}

// A program that may publish cannot switch encryption off: a handler with Encrypt refuses plain text under each header.
// A named option lets it through during a roll-out.
func TestPlainTextIsRefused(t *testing.T) { // ST-18, SE-05
	t.Parallel()
	kept := &blobs{}
	claimed := sealed(t, payment, transform.ClaimCheck{Blobs: kept, MinBytes: 1})
	large := payment
	large.Body = bytes.Repeat(payment.Body, 10)
	zipped := sealed(t, large, transform.Gzip{MinBytes: 1})
	steps := func(plain bool) []transform.Step {
		return []transform.Step{
			transform.Gzip{}, transform.Encrypt{Keys: transform.StaticKeys(keys), AllowPlain: plain}, transform.ClaimCheck{Blobs: kept},
		}
	}
	for name, e := range map[string]waybill.Envelope{"no header": payment, "gzip": zipped, "claim-check": claimed} {
		if !refused(t, e, steps(false)...) {
			t.Errorf("%s: plain text reaches the handler", name)
		}
		if got, err := handle(t, e, steps(true)...); err != nil || !bytes.HasPrefix(got.Envelope.Body, payment.Body) {
			t.Errorf("%s: AllowPlain: %v, %v", name, got, err)
		}
	}
	for _, header := range []string{"", "identity", ",", " , identity", "identity,identity"} {
		e := payment.Clone()
		e.Headers[transform.Header] = header
		if !refused(t, e, steps(false)...) {
			t.Errorf("header %q: plain text reaches the handler", header)
		}
	}
	_, err := handle(t, payment, steps(false)...)
	if err == nil || !strings.Contains(err.Error(), "set Encrypt.AllowPlain while the relay does not encrypt yet") {
		t.Errorf("the error names no cure: %v", err)
	}
	if got, err := handle(t, sealed(t, payment, encrypt("old")), steps(true)...); err != nil || !bytes.Equal(got.Envelope.Body, payment.Body) {
		t.Errorf("AllowPlain, encrypted: %v, %v", got, err)
	}
}

// A body that Node.js sealed, by the format on docs/transform.md, can be read: the format has another implementation,
// testdata/seal.mjs.
func TestFormat(t *testing.T) { // ST-18
	t.Parallel()
	text, err := os.ReadFile("testdata/sealed.b64")
	if err != nil {
		t.Fatal(err)
	}
	body, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	secret := []byte("0123456789abcdef0123456789abcdef")
	step := transform.Encrypt{Keys: transform.StaticKeys(map[string][]byte{"2026-11": secret})}
	e := waybill.Envelope{
		ID: "pay-1", Source: "/payments", Topic: "payments.made", Type: "payments.made", Tenant: "acme", Body: body,
		Headers: map[string]string{transform.Header: "GZIP"},
	}
	if got, err := step.Undo(t.Context(), &e); err != nil || string(got) != "I am the walrus" {
		t.Errorf("%q, %v", got, err)
	}
}

// Each time the same body looks different.
func TestSaltIsNew(t *testing.T) { // ST-18
	t.Parallel()
	e := &waybill.Envelope{Body: []byte("the same")}
	a, _, err1 := encrypt("old").Do(t.Context(), e)
	b, _, err2 := encrypt("old").Do(t.Context(), e)
	if err1 != nil || err2 != nil || bytes.Equal(a, b) {
		t.Error(err1, err2, "or the same twice")
	}
}

// No body from outside makes a step panic, or read beyond its end, and a body that no step sealed is not opened.
func FuzzUndo(f *testing.F) { // ST-18
	step := encrypt("old")
	own, _, err := step.Do(f.Context(), &waybill.Envelope{ID: "1", Body: []byte("own")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"blob":"00","size":3}`))
	f.Add([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 1})
	f.Add(own)
	f.Add(own[:len(own)-1])
	f.Add([]byte{1, 255, 'o'})
	f.Add([]byte{1, 0})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, s := range []transform.Step{transform.Gzip{MaxBytes: 1 << 20}, step, sign("mac", ""), transform.ClaimCheck{Blobs: &blobs{}}} {
			got, err := s.Undo(t.Context(), &waybill.Envelope{Body: body})
			if err != nil {
				continue
			}
			if s.Coding() == step.Coding() || s.Coding() == (transform.Sign{}).Coding() || len(got) > 1<<20 {
				t.Errorf("%s: %d bytes", s.Coding(), len(got))
			}
		}
	})
}

// BenchmarkEncrypt is a body of 4 KiB, beside the cipher alone.
func BenchmarkEncrypt(b *testing.B) {
	e := &waybill.Envelope{Body: random(4096)}
	b.Run("step", func(b *testing.B) {
		b.SetBytes(int64(len(e.Body)))
		for b.Loop() {
			if _, _, err := encrypt("old").Do(b.Context(), e); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("cipher", func(b *testing.B) {
		block, err := aes.NewCipher(keys["old"])
		if err != nil {
			b.Fatal(err)
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			b.Fatal(err)
		}
		out := make([]byte, 0, len(e.Body)+64)
		b.SetBytes(int64(len(e.Body)))
		for b.Loop() {
			out = aead.Seal(out[:0], make([]byte, 12), e.Body, nil)
		}
	})
}
