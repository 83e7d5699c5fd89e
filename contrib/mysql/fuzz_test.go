package waybillmysql

import (
	"maps"
	"testing"
)

// FuzzDecode reads any text in column attrs, as a program with the right to insert can write it. The parts that could
// be read are written again.
func FuzzDecode(f *testing.F) { // SE-08
	for _, text := range []string{
		"", "1:a1:b", "4:time", "1:!1:5", "1:!3:300", "2:#a1:b2:#a1:c", "-1:", "99999999999999999999:x", "0:0:", "3:hlc1:x", "10:expirytime20:9999-12-31T23:59:59Z",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := &row{attrs: text}
		if r.decode().Err != nil {
			return
		}
		again := &row{attrs: string(encode(&r.Envelope))}
		a, b := &r.Envelope, &again.Envelope
		if err := again.decode().Err; err != nil || a.Source != b.Source || a.Priority != b.Priority || !maps.Equal(a.Headers, b.Headers) {
			t.Errorf("%q is written as %q: %v", text, again.attrs, err)
		}
	})
}
