package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
)

// Staging pays for the search for duplicates, and for looking whether a relay sleeps, only where there may be one.
func TestInsertForm(t *testing.T) {
	t.Parallel()
	of := func(opts Options) *stager {
		stamper, err := opts.stamper()
		if err != nil {
			t.Fatal(err)
		}
		return newStager(&opts, stamper, newNames("", "", ""))
	}
	s, off := of(Options{Source: "/test"}), of(Options{Source: "/test", DisableNotify: true})
	m := func(opts ...waybill.MessageOption) waybill.Message {
		return waybill.RawMessage("t", "text/plain", nil, opts...)
	}
	for name, tc := range map[string]struct {
		stager *stager
		msgs   []waybill.Message
		want   insertForm
	}{
		"one":                    {s, []waybill.Message{m()}, insertForm{one: true, fresh: true, notify: true}},
		"several":                {s, []waybill.Message{m(), m()}, insertForm{fresh: true, notify: true}},
		"two routes":             {s, []waybill.Message{m(waybill.Routes("a", "b"))}, insertForm{fresh: true, notify: true}},
		"a route twice":          {s, []waybill.Message{m(waybill.Routes("a", "a"))}, insertForm{notify: true}},
		"the caller's id":        {s, []waybill.Message{m(waybill.ID("a"))}, insertForm{one: true, notify: true}},
		"one id is the caller's": {s, []waybill.Message{m(), m(waybill.ID("a"))}, insertForm{notify: true}},
		"due soon":               {s, []waybill.Message{m(waybill.Delay(time.Minute - 1))}, insertForm{due: delayed, one: true, fresh: true, notify: true}},
		"due later":              {s, []waybill.Message{m(waybill.Delay(time.Minute))}, insertForm{due: delayed, one: true, fresh: true}},
		"scheduled":              {s, []waybill.Message{m(waybill.DeliverAt(time.Now().Add(time.Hour)))}, insertForm{due: scheduled, one: true, fresh: true, notify: true}},
		"one is due later":       {s, []waybill.Message{m(), m(waybill.Delay(time.Hour))}, insertForm{due: scheduled, fresh: true, notify: true}},
		"without NOTIFY":         {off, []waybill.Message{m()}, insertForm{one: true, fresh: true}},
	} {
		rows, err := tc.stager.stamper.Stamp(t.Context(), tc.msgs)
		if err != nil {
			t.Fatal(err)
		}
		got, args, err := tc.stager.statement(rows)
		if err != nil || got != tc.want {
			t.Errorf("%s: form %+v (%v), want %+v", name, got, err, tc.want)
		}
		text := tc.stager.sql.inserts[got]
		if strings.Contains(text, "ON CONFLICT") == got.fresh || strings.Contains(text, "pg_notify") != got.notify {
			t.Errorf("%s: %+v is%s", name, got, text)
		}
		if more := map[due]int{delayed: 1, scheduled: 1}[got.due]; got.one && len(args) != 16+more {
			t.Errorf("%s: %d arguments", name, len(args))
		}
	}
}
