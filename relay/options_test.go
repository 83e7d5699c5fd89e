package relay_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
)

// RL-08
func TestDefaults(t *testing.T) {
	t.Parallel()
	got := relay.Defaults()
	want := relay.Options{
		Routes:            []relay.Route{{Name: "default", Weight: 1, Partitions: 64}},
		BatchSize:         500,
		BatchBytes:        16 << 20,
		Window:            8,
		PollMin:           50 * time.Millisecond,
		PollMax:           time.Minute,
		Lease:             10 * time.Second,
		PublishTimeout:    30 * time.Second,
		DrainTimeout:      15 * time.Second,
		UnroutableTimeout: 24 * time.Hour,
		CleanInterval:     time.Minute,
		StaleAfter:        5 * time.Minute,
	}
	if d := cmp.Diff(want, got, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Hooks" }, cmp.Ignore())); d != "" {
		t.Error(d)
	}
	if err := (relay.Options{}).Validate(); err != nil {
		t.Error(err)
	}
}

// RL-08
func TestValidate(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, c := range []struct {
		name string
		o    relay.Options
		want []string // fields with a problem; none = valid
	}{
		{"smallest", relay.Options{BatchSize: 1, Window: 1, PollMin: time.Millisecond, PollMax: time.Millisecond, Lease: 12 * time.Millisecond, PublishTimeout: 10 * time.Millisecond}, nil},
		{"batch", relay.Options{BatchSize: -1}, []string{"BatchSize"}},
		{"batch too big", relay.Options{BatchSize: 10_001}, []string{"BatchSize"}},
		{"batch biggest", relay.Options{BatchSize: 10_000}, nil},
		{"window", relay.Options{Window: 257}, []string{"Window"}},
		{"window negative", relay.Options{Window: -1}, []string{"Window"}},
		{"off", relay.Options{BatchBytes: -1, DrainTimeout: -1, UnroutableTimeout: -1}, nil},
		{"negative durations", relay.Options{PollMin: -s, PollMax: -s, Lease: -s, PublishTimeout: -s}, []string{"PollMin", "PollMax", "Lease", "PublishTimeout"}},
		{"poll order", relay.Options{PollMin: 2 * s, PollMax: s}, []string{"PollMin"}},
		{"drain", relay.Options{DrainTimeout: 25 * time.Hour}, []string{"DrainTimeout"}},
		{"duplicate routes", relay.Options{Routes: []relay.Route{{Name: "a"}, {}, {Name: "a"}, {Name: "default"}}}, []string{"Routes[2].Name", "Routes[3].Name"}},
		{"order", relay.Options{Routes: []relay.Route{{Order: 9}}}, []string{"Routes[0].Order"}},
		{"block", relay.Options{Routes: []relay.Route{{Order: waybill.OrderBestEffort, BlockAfterAbandon: true}}}, []string{"Routes[0].BlockAfterAbandon"}},
		{"backoff", relay.Options{Routes: []relay.Route{{Backoff: &waybill.Backoff{Base: -1}}}}, []string{"Routes[0].Backoff.Base"}},
		{
			"rate",
			relay.Options{Routes: []relay.Route{{RatePerSecond: -1}, {Name: "b", RatePerSecond: math.NaN()}, {Name: "c", RatePerSecond: math.Inf(1)}, {Name: "d", RatePerSecond: 1e-9}}},
			[]string{"Routes[0].RatePerSecond", "Routes[1].RatePerSecond", "Routes[2].RatePerSecond", "Routes[3].RatePerSecond"},
		},
		{"partitions", relay.Options{Routes: []relay.Route{{Partitions: -1}, {Name: "b", Partitions: 65}, {Name: "c", Partitions: 64}}}, []string{"Routes[0].Partitions", "Routes[1].Partitions"}},
		{"slow", relay.Options{Routes: []relay.Route{{RatePerSecond: 1. / 3600}}}, nil},
		{"weight", relay.Options{Routes: []relay.Route{{Weight: -1}, {Name: "b", Weight: 1001}, {Name: "c", Weight: 1000}}}, []string{"Routes[0].Weight", "Routes[1].Weight"}},
		{"lanes", relay.Options{Routes: []relay.Route{{Name: "a", Lanes: true}, {Name: "a/low"}, {Name: "b/high"}, {Name: "b", Lanes: true}}}, []string{"Routes[0].Lanes", "Routes[3].Lanes"}},
		{"lanes of lanes", relay.Options{Routes: []relay.Route{{Name: "a", Lanes: true}, {Name: strings.Repeat("x", waybill.MaxNameBytes), Lanes: true}}}, []string{"Routes[1].Lanes"}},
		{"intervals", relay.Options{CleanInterval: time.Millisecond, StaleAfter: 25 * time.Hour}, []string{"CleanInterval", "StaleAfter"}},
		{"intervals off", relay.Options{CleanInterval: -1, StaleAfter: -1}, nil},
		{"names", relay.Options{Name: "a\x00", Routes: []relay.Route{{Name: "\xff"}}}, []string{"Name", "Routes[0].Name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fields(t, c.o.Validate(), c.want...)
		})
	}
}

func fields(t *testing.T, err error, want ...string) {
	t.Helper()
	var got []string
	if ie, ok := errors.AsType[*waybill.InvalidError](err); ok {
		for _, p := range ie.Problems {
			f, _, _ := strings.Cut(p, ":")
			f, _, _ = strings.Cut(f, " ")
			if len(got) == 0 || got[len(got)-1] != f {
				got = append(got, f)
			}
		}
	} else if err != nil {
		t.Fatalf("not an InvalidError: %v", err)
	}
	seen := map[string]bool{}
	for _, f := range got {
		seen[f] = true
	}
	for _, f := range want {
		if !seen[f] {
			t.Errorf("no problem with %s in %v", f, err)
		}
	}
	if len(want) == 0 && err != nil {
		t.Error(err)
	}
}

// TR-09
func TestUnsafeCombinationsAreRefused(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	unconfirmed, unordered := newBus(), newBus()
	unconfirmed.traits.Confirmed = false
	unordered.traits.KeyOrder = core.KeyOrderNone
	_, err := relay.New(s, nil, relay.Options{Lease: -1, Routes: []relay.Route{
		{Name: "a", Publisher: unconfirmed},
		{Name: "b", Publisher: unordered},
		{Name: "c"},
		{Name: "e", Publisher: unordered, Order: waybill.OrderBestEffort},
	}})
	for _, want := range []string{"Lease: -1ns", "(a).Publisher: does not wait", "(b).Order: per_key, but the publisher", "waybill.OrderBestEffort", "(c).Publisher: is nil"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
	if err != nil && strings.Contains(err.Error(), "(e)") {
		t.Error(err)
	}
	if !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("%v", err)
	}
	if _, err := relay.New(nil, newBus(), relay.Options{}); !errors.Is(err, waybill.ErrInvalid) {
		t.Error(err)
	}
}

// A route's partitions are 64 for few routes, and fewer for many.
func TestPartitions(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{1: 64, 16: 64, 17: 60, 100: 10, 2000: 1} {
		o := relay.Options{Routes: make([]relay.Route, n)}
		s, routes := &faulty{OutboxStore: newStore(t)}, map[int]bool{}
		for i := range o.Routes {
			o.Routes[i].Name = strconv.Itoa(i)
		}
		if _, err := newRelay(t, s, newBus(), o).RunOnce(t.Context()); err != nil {
			t.Error(err)
		}
		for _, r := range s.heartbeats[0].Self.Routes {
			routes[r.InitialPartitions] = true
		}
		if len(routes) != 1 || !routes[want] {
			t.Errorf("%d routes: %v partitions", n, routes)
		}
	}
}
