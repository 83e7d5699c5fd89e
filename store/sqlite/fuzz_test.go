package sqlite

import (
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// FuzzDecodeAttrs reads anything that another program wrote into column attrs. The error is that of one message, and
// has a bound.
func FuzzDecodeAttrs(f *testing.F) { // SE-08
	for _, text := range []string{"", "{}", "null", "5", `{"a":{"hlc":"x"}}`, `{"a":{"expirytime":"9999-12-31T23:59:59Z"},"h":{"a":"b"}}`, `{"p":300}`, "["} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var e waybill.Envelope
		if err := decodeAttrs(&e, text); err != nil && len(err.Error()) > 6*core.MaxErrorBytes {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}
