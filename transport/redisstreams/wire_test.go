package redisstreams_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/content"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// TR-10: the names on the wire are a contract: this test fails when one changes, and when the documentation's example
// is another.
func TestWireGolden(t *testing.T) {
	t.Parallel()
	e := sharedtest.Envelope()
	var b strings.Builder
	b.WriteString("XADD {waybill}:queue:billing *\n\n")
	for f := redisstreams.Fields(&e); len(f) > 0; f = f[2:] {
		fmt.Fprintf(&b, "%-19s %s\n", f[0], f[1])
	}
	sharedtest.Golden(t, "testdata/wire.golden", b.String(), "../../docs/wire-format.md")
}

// TR-10: an encoded message is decoded, beside any other fields.
func TestDecode(t *testing.T) {
	t.Parallel()
	full := sharedtest.Envelope()
	for _, c := range []struct {
		name    string
		fields  []any
		want    waybill.Envelope
		attempt int
	}{
		{"full", redisstreams.Fields(&full), full, 1},
		{"nothing", nil, waybill.Envelope{Topic: "q"}, 1},
		{"foreign", []any{"data", "hi", "order", "42"}, waybill.Envelope{Topic: "q", Body: []byte("hi"), Headers: map[string]string{"order": "42"}}, 1},
		{
			"odd",
			[]any{"ce_time", "soon", "ce_color", "red", "header_", "x", "header_ce_id", "y", "waybill-attempt", "-3", "waybill-new", "z", "waybill-priority", "77", "alone"},
			waybill.Envelope{Topic: "q", Priority: 9, Headers: map[string]string{"ce_time": "soon", "ce_color": "red", "": "x", "ce_id": "y"}},
			1,
		},
		{"retried", []any{"waybill-attempt", "3", "waybill-error", "no", "ce_topic", "a.b"}, waybill.Envelope{Topic: "a.b"}, 3},
		{
			"structured",
			[]any{"content-type", "application/cloudevents+json", "data", "{}"},
			waybill.Envelope{Topic: "q", ContentType: "application/cloudevents+json", Body: []byte("{}")},
			1,
		},
		{
			"two content types",
			[]any{"datacontenttype", "text/plain", "ce_datacontenttype", "application/json", "content-type", "text/html"},
			waybill.Envelope{Topic: "q", ContentType: "application/json"},
			1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, m := redisstreams.ReadFields(c.fields, "q")
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
			if m.Attempt() != c.attempt {
				t.Errorf("attempt %d", m.Attempt())
			}
		})
	}
}

// TR-10: nothing that a producer writes makes decoding panic, and headers of any name and value survive.
func TestAnyHeadersSurvive(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := waybill.Envelope{ID: "1", Topic: "a", Body: rapid.SliceOf(rapid.Byte()).Draw(t, "body")}
		e.Headers = rapid.MapOfN(rapid.String(), rapid.String(), 1, 20).Draw(t, "headers")
		got, _ := redisstreams.ReadFields(redisstreams.Fields(&e), "q")
		if d := cmp.Diff(e, got, cmp.Transformer("body", func(b []byte) string { return string(b) })); d != "" {
			t.Fatal(d)
		}
		redisstreams.ReadFields([]any{rapid.String().Draw(t, "name"), rapid.String().Draw(t, "value")}, "q")
	})
}

// TR-10: what another program has added with XADD, or puts into an entry, comes, and survives a retry, parking, a
// replay and a replay with another body.
func TestForeignEntrySurvives(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := prepared(redisstreams.Options{})
	bus := dial(t, url, opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q"})
	c := raw(t, url)
	key := "{" + opts.Bus + "}:queue:q"
	fields := []string{"data", "\xff\x00", "content-type", "image/png", "odd", "\x00\xff"}
	if err := c.Do(t.Context(), "XADD", key, "*", fields[0], fields[1], fields[2], fields[3], fields[4], fields[5]).Err(); err != nil {
		t.Fatal(err)
	}
	want := waybill.Envelope{
		Topic: "q", ContentType: "image/png", Body: []byte("\xff\x00"), Headers: map[string]string{"odd": "\x00\xff"},
	}
	see := func(attempt int) *waybill.Delivery {
		t.Helper()
		d := receive(t, r, 1)[0]
		if diff := cmp.Diff(want, d.Envelope); diff != "" || d.Attempt != attempt {
			t.Fatalf("attempt %d, want %d: %s", d.Attempt, attempt, diff)
		}
		return d
	}
	settle(t, r, core.AckRetry(see(1), 0, nil))
	settle(t, r, core.AckRetry(see(2), 5*time.Millisecond, nil))
	settle(t, r, core.AckReject(see(3), waybill.ReasonRejected, nil))
	all := admin.ParkedRequest{Queue: "q", All: true}
	if n, err := bus.ReplayParked(t.Context(), all); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	settle(t, r, core.AckReject(see(1), waybill.ReasonRejected, nil))
	all.Edit = func(admin.Parked) ([]byte, error) { return []byte("edited"), nil }
	if n, err := bus.ReplayParked(t.Context(), all); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	content.Repair(&want, []byte("edited")) // it tells what it was before
	settle(t, r, core.AckDone(see(1)))
}
