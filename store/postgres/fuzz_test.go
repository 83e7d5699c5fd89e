package postgres

import (
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
)

// FuzzDecodeAttrs reads anything that a role with the right to insert can write into column attrs. Its error is that of
// one message, and holds nothing of the column.
func FuzzDecodeAttrs(f *testing.F) { // SE-08
	for _, text := range []string{
		`{}`, `null`, `5`, `[]`, `"a"`, `{"headers":{"a":"b"}}`, `{"headers":5}`, `{"priority":300}`, `{"lineage":["a",null]}`,
		strings.Repeat(`{"headers":`, 20000), `{"subject":"` + strings.Repeat("x", 1000),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var e waybill.Envelope
		err := decodeAttrs(&e, text)
		if err != nil && (waybill.ReasonOf(err) != waybill.ReasonUndecodable || len(err.Error()) > 1000) {
			t.Error(err)
		}
	})
}
