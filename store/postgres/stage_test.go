package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Staging pays for the search for duplicates, and for looking whether a relay sleeps, only where there may be one.
func TestInsertForm(t *testing.T) {
	t.Parallel()
	n := newNames("waybill", "waybill_outbox", "")
	s, err := newStager(&Options{Source: "/test"}, n)
	if err != nil {
		t.Fatal(err)
	}
	off, err := newStager(&Options{Source: "/test", NotifyOff: true}, n)
	if err != nil {
		t.Fatal(err)
	}
	m := func(opts ...core.MessageOption) core.Message { return core.RawMessage("t", "text/plain", nil, opts...) }
	for name, tc := range map[string]struct {
		stager *stager
		msgs   []core.Message
		want   insertForm
	}{
		"one":                    {s, []core.Message{m()}, insertForm{one: true, fresh: true, notify: true}},
		"several":                {s, []core.Message{m(), m()}, insertForm{fresh: true, notify: true}},
		"two routes":             {s, []core.Message{m(core.Routes("a", "b"))}, insertForm{fresh: true, notify: true}},
		"a route twice":          {s, []core.Message{m(core.Routes("a", "a"))}, insertForm{notify: true}},
		"the caller's id":        {s, []core.Message{m(core.ID("a"))}, insertForm{one: true, notify: true}},
		"one id is the caller's": {s, []core.Message{m(), m(core.ID("a"))}, insertForm{notify: true}},
		"due soon":               {s, []core.Message{m(core.Delay(time.Millisecond))}, insertForm{due: delayed, one: true, fresh: true, notify: true}},
		"due later":              {s, []core.Message{m(core.Delay(time.Second))}, insertForm{due: delayed, one: true, fresh: true}},
		"scheduled":              {s, []core.Message{m(core.DeliverAt(time.Now().Add(time.Hour)))}, insertForm{due: scheduled, one: true, fresh: true, notify: true}},
		"one is due later":       {s, []core.Message{m(), m(core.Delay(time.Hour))}, insertForm{due: scheduled, fresh: true, notify: true}},
		"without NOTIFY":         {off, []core.Message{m()}, insertForm{one: true, fresh: true}},
	} {
		rows, err := tc.stager.stamper.Stamp(t.Context(), tc.msgs)
		if err != nil {
			t.Fatal(err)
		}
		got, args, err := tc.stager.statement(rows)
		if err != nil || got != tc.want {
			t.Errorf("%s: form %+v (%v), want %+v", name, got, err, tc.want)
		}
		text := tc.stager.inserts[got]
		if strings.Contains(text, "ON CONFLICT") == got.fresh || strings.Contains(text, "pg_notify") != got.notify {
			t.Errorf("%s: %+v is%s", name, got, text)
		}
		if more := map[due]int{delayed: 1, scheduled: 1}[got.due]; got.one && len(args) != 16+more {
			t.Errorf("%s: %d arguments", name, len(args))
		}
	}
}
