package admin_test

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// A read ends when it has as many messages as it wants. Only an inspection shows a body.
func TestParkedReader(t *testing.T) {
	t.Parallel()
	var wants []int
	r := admin.ParkedReader{Adapter: "waybill/test", Walk: func(_ context.Context, _, _ string, want int, fn func(*admin.Parked) int) error {
		wants = []int{want}
		for i, id := range []string{"a", "b", "a", "a"} {
			p := admin.Parked{Envelope: waybill.Envelope{ID: id, Body: []byte("body")}, Position: i + 1, Reason: waybill.ReasonRejected}
			if want = fn(&p); want <= 0 {
				break
			}
			wants = append(wants, want)
		}
		return nil
	}}
	a := admin.ParkedFilter{IDs: []string{"a"}}
	list, err := r.List(t.Context(), "q", a, 2)
	if err != nil || len(list) != 2 || list[1].Position != 3 || list[0].Envelope.Body != nil || !reflect.DeepEqual(wants, []int{2, 1, 1}) {
		t.Errorf("a list of 2 wanted %v, and has %+v, %v", wants, list, err)
	}
	if p, err := r.Inspect(t.Context(), "q", a); err != nil || p.Position != 1 || len(p.Envelope.Body) == 0 {
		t.Errorf("the oldest is %+v, %v", p, err)
	}
	if _, err := r.Inspect(t.Context(), "q", admin.ParkedFilter{IDs: []string{"c"}}); !errors.Is(err, waybill.ErrNotFound) {
		t.Errorf("nothing matches: %v, want waybill.ErrNotFound", err)
	}
	if counts, err := r.Count(t.Context(), "q"); err != nil || counts[waybill.ReasonRejected] != 4 {
		t.Errorf("counted %v, %v", counts, err)
	}
	for _, f := range []admin.ParkedFilter{{}, {Positions: []int{-1}}} {
		if _, err := r.List(t.Context(), "q", f, 0); !errors.Is(err, waybill.ErrInvalid) {
			t.Errorf("a list of 0: %v, want waybill.ErrInvalid", err)
		}
	}
}
