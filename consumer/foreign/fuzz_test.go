package foreign_test

import (
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer/foreign"
)

// FuzzReaders reads anything that a producer of another system can send in the headers that a reader looks at. An error
// has a bound, and the body stays.
func FuzzReaders(f *testing.F) { // SE-08
	readers := map[string]foreign.Reader{
		"x-outbox-tracking-ids": foreign.TrackingIDs("/x"), "forze_hlc": foreign.Forze("/x"), "forze_occurred_at": foreign.Forze("/x"),
		"_watermill_message_uuid": foreign.Watermill("/x"), "id": foreign.IDFromHeader("id", "/x"), "": foreign.IDFromBody("/x"), "none": foreign.MessageID("/x"),
	}
	for _, text := range []string{"", "1", `["a","b"]`, `[null]`, `[`, `[1]`, "140737488355327.65535", "140737488355328.0", "-1.0", "1.65536", "9999-12-31T23:59:59Z", "x"} {
		f.Add(text, []byte("body"))
	}
	f.Fuzz(func(t *testing.T, text string, body []byte) {
		for name, read := range readers {
			e := waybill.Envelope{Topic: "t", Body: body, Headers: map[string]string{name: text, "forze_event_id": "1"}}
			if err := read(&e); err != nil && len(err.Error()) > 200 {
				t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
			}
			if string(e.Body) != string(body) || len(e.Headers) != 2 && name != "" || e.HLC < 0 {
				t.Errorf("%s: %+v", name, e)
			}
		}
	})
}
