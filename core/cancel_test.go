package core_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

func TestCheckCancelKeys(t *testing.T) { // ST-09 ST-15
	t.Parallel()
	long := strings.Repeat("x", waybill.MaxNameBytes+1)
	for name, tc := range map[string]struct {
		key   waybill.CancelKey
		field string // empty: fine
	}{
		"by id":                {waybill.CancelKey{ID: "1"}, ""},
		"by dedupe key":        {waybill.CancelKey{Route: "r", Topic: "t", DedupeKey: "k"}, ""},
		"in a lane":            {waybill.CancelKey{Route: waybill.LaneRoute(long[1:], waybill.LaneHigh), ID: "1"}, ""},
		"neither":              {waybill.CancelKey{Topic: "t"}, "keys[1].ID"},
		"both":                 {waybill.CancelKey{ID: "1", Topic: "t", DedupeKey: "k"}, "keys[1].ID"},
		"no topic":             {waybill.CancelKey{DedupeKey: "k"}, "keys[1].Topic"},
		"long route":           {waybill.CancelKey{Route: long, ID: "1"}, "keys[1].Route"},
		"long id":              {waybill.CancelKey{ID: long}, "keys[1].ID"},
		"long dedupe key":      {waybill.CancelKey{Topic: "t", DedupeKey: long}, "keys[1].DedupeKey"},
		"dedupe key not UTF-8": {waybill.CancelKey{Topic: "t", DedupeKey: "a\xff"}, "keys[1].DedupeKey"},
		"NUL in the topic":     {waybill.CancelKey{Topic: "t\x00", DedupeKey: "k"}, "keys[1].Topic"},
	} {
		in := []waybill.CancelKey{{ID: "fine"}, tc.key}
		got, err := core.CheckCancelKeys(t.Context(), slices.Clone(in))
		if tc.field == "" {
			if err != nil || got[0].Route != waybill.DefaultRoute || len(got) != 2 {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			continue
		}
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), tc.field+": ") {
			t.Errorf("%s: got %v, want a problem with %s", name, err, tc.field)
		}
	}
	if _, err := core.CheckCancelKeys(t.Context(), make([]waybill.CancelKey, waybill.MaxMessages+1)); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("too many keys: %v", err)
	}
	if _, err := core.CheckCancelKeys(t.Context(), make([]waybill.CancelKey, waybill.MaxMessages)); len(err.Error()) > 10_000 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
}

// A dedupe key belongs to the tenant of the key, or else to that of the context.
func TestCancelKeysOfTenants(t *testing.T) {
	t.Parallel()
	ctx := waybill.WithTenant(t.Context(), "acme")
	got, err := core.CheckCancelKeys(ctx, []waybill.CancelKey{
		{Topic: "t", DedupeKey: "k"}, {Topic: "t", DedupeKey: "k", Tenant: "evil"}, {ID: "i"}, {ID: "i", Tenant: "evil"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []waybill.CancelKey{
		{Route: waybill.DefaultRoute, Topic: "t", DedupeKey: "acme\x1fk"},
		{Route: waybill.DefaultRoute, Topic: "t", DedupeKey: "evil\x1fk"},
		{Route: waybill.DefaultRoute, ID: "i"},
		{Route: waybill.DefaultRoute, ID: "i"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, err := core.CheckCancelKeys(ctx, []waybill.CancelKey{{Topic: "t", DedupeKey: "k", Tenant: "a\x1fb"}}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("a tenant with a control character: %q, %v", got, err)
	}
}
