package waybill_test

import (
	"strconv"
	"testing"

	"github.com/waybill-go/waybill"
)

// The sub-route of a name is in databases: it never changes. Other languages compute it, too.
func TestSubRoute(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		by   string
		n    int
		want string
	}{
		{"acme", 16, "orders#15"},
		{"", 16, "orders#5"},
		{"größe", 64, "orders#26"},
		{"acme", 1, "orders#0"},
		{"acme", 0, "orders#0"},
		{"acme", -5, "orders#0"},
		{"acme", 1000, waybill.SubRoute("orders", "acme", waybill.MaxSubRoutes)},
	} {
		if got := waybill.SubRoute("orders", c.by, c.n); got != c.want {
			t.Errorf("sub-route of %q of %d: %s, want %s", c.by, c.n, got, c.want)
		}
	}
	got := map[string]int{}
	for i := range 6400 {
		got[waybill.SubRoute("r", "tenant-"+strconv.Itoa(i), 64)]++
	}
	for name, n := range got {
		if n < 60 || n > 140 {
			t.Errorf("%s has %d of 6,400 tenants", name, n)
		}
	}
	if len(got) != 64 {
		t.Errorf("%d sub-routes", len(got))
	}
	for route, want := range map[string]string{
		"r": "r", "r#3": "r", "r#63/high": "r", "r/low": "r", "r#x": "r#x", "r#": "r#", "a#1#2": "a#1", "#1": "",
	} {
		if base := waybill.BaseRoute(route); base != want {
			t.Errorf("base of %s: %q, want %q", route, base, want)
		}
	}
}
