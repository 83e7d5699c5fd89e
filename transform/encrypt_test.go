package transform_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/transform"
)

func decode(tb testing.TB, text string) []byte {
	tb.Helper()
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// The examples of RFC 8188, sections 3.1 and 3.2, can be read: one record, and two with padding.
func TestExamplesOfRFC8188(t *testing.T) { // ST-18
	t.Parallel()
	for _, c := range []struct{ id, secret, body string }{
		{"", "yqdlZ-tYemfogSmv7Ws5PQ", "I1BsxtFttlv3u_Oo94xnmwAAEAAA-NAVub2qFgBEuQKRapoZu-IxkIva3MEB1PD-ly8Thjg"},
		{"a1", "BO3ZVPxUlnLORbVGMpbT1Q", "uNCkWiNYzKTnBN9ji3-qWAAAABkCYTHOG8chz_gnvgOqdGYovxyjuqRyJFjEDyoF1Fvkj6hQPdPHI51OEUKEpgz3SsLWIqS_uA"},
	} {
		step := transform.Encrypt{Keys: transform.StaticKeys(map[string][]byte{c.id: decode(t, c.secret)})}
		body, err := step.Undo(t.Context(), &waybill.Envelope{Body: decode(t, c.body)})
		if err != nil || string(body) != "I am the walrus" {
			t.Errorf("key %q: %q, %v", c.id, body, err)
		}
	}
}

// A body that was cut off between two records is refused: each record that is there is whole, and the last one is
// missing (RFC 8188, section 2, the truncation attack).
func TestRecordsAreComplete(t *testing.T) { // ST-18
	t.Parallel()
	whole := decode(t, "uNCkWiNYzKTnBN9ji3-qWAAAABkCYTHOG8chz_gnvgOqdGYovxyjuqRyJFjEDyoF1Fvkj6hQPdPHI51OEUKEpgz3SsLWIqS_uA")
	step := transform.Encrypt{Keys: transform.StaticKeys(map[string][]byte{"a1": decode(t, "BO3ZVPxUlnLORbVGMpbT1Q")})}
	const header, record = 16 + 4 + 1 + 2, 25
	body, err := step.Undo(t.Context(), &waybill.Envelope{Body: whole[:header+record]})
	if err == nil || waybill.ReasonOf(err) != waybill.ReasonUndecodable {
		t.Errorf("one record of two: %q, %v", body, err)
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

// No body from outside makes a step panic, or read more than it is.
func FuzzUndo(f *testing.F) { // ST-18
	f.Add([]byte(`{"blob":"00","size":3}`))
	f.Add(append(make([]byte, 16), 0, 0, 0, 18, 3, 'o', 'l', 'd', 1, 2, 3))
	f.Add([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 1})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, s := range []transform.Step{transform.Gzip{MaxBytes: 1 << 20}, encrypt("old"), transform.ClaimCheck{Blobs: &blobs{}}} {
			if got, err := s.Undo(t.Context(), &waybill.Envelope{Body: body}); err == nil && len(got) > 1<<20 {
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
