package core_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/core"
)

func TestCheckCancelKeys(t *testing.T) { // ST-09 ST-15
	t.Parallel()
	long := strings.Repeat("x", core.MaxNameBytes+1)
	for name, tc := range map[string]struct {
		key   core.CancelKey
		field string // empty: fine
	}{
		"by id":                {core.CancelKey{ID: "1"}, ""},
		"by dedupe key":        {core.CancelKey{Route: "r", Topic: "t", DedupeKey: "k"}, ""},
		"in a lane":            {core.CancelKey{Route: core.LaneRoute(long[1:], core.LaneHigh), ID: "1"}, ""},
		"neither":              {core.CancelKey{Topic: "t"}, "keys[1].ID"},
		"both":                 {core.CancelKey{ID: "1", Topic: "t", DedupeKey: "k"}, "keys[1].ID"},
		"no topic":             {core.CancelKey{DedupeKey: "k"}, "keys[1].Topic"},
		"long route":           {core.CancelKey{Route: long, ID: "1"}, "keys[1].Route"},
		"long id":              {core.CancelKey{ID: long}, "keys[1].ID"},
		"long dedupe key":      {core.CancelKey{Topic: "t", DedupeKey: long}, "keys[1].DedupeKey"},
		"dedupe key not UTF-8": {core.CancelKey{Topic: "t", DedupeKey: "a\xff"}, "keys[1].DedupeKey"},
		"NUL in the topic":     {core.CancelKey{Topic: "t\x00", DedupeKey: "k"}, "keys[1].Topic"},
	} {
		in := []core.CancelKey{{ID: "fine"}, tc.key}
		got, err := core.CheckCancelKeys(slices.Clone(in))
		if tc.field == "" {
			if err != nil || got[0].Route != core.DefaultRoute || len(got) != 2 {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			continue
		}
		if !errors.Is(err, core.ErrInvalid) || !strings.Contains(err.Error(), tc.field+": ") {
			t.Errorf("%s: got %v, want a problem with %s", name, err, tc.field)
		}
	}
	if _, err := core.CheckCancelKeys(make([]core.CancelKey, core.MaxMessages+1)); !errors.Is(err, core.ErrInvalid) {
		t.Errorf("too many keys: %v", err)
	}
	if _, err := core.CheckCancelKeys(make([]core.CancelKey, core.MaxMessages)); len(err.Error()) > 10_000 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
}
