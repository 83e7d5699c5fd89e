package config_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill/cli/config"
)

func TestDiff(t *testing.T) {
	t.Parallel()
	load := func(text string) *config.Loaded {
		t.Helper()
		l, err := config.Load(config.Sources{File: write(t, text)})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	a := load("a: 1\nb: {c: x, d: [1, {e: 2}]}\nsame: {x: [y]}\ngone: {k: v, l: {m: n}}\nkind: text\nr: {k: v}\n")
	b := load("a: 2\nb: {c: x, d: [1, {e: 3}, 4]}\nsame: {x: [y]}\nnew: [1]\nkind: [text]\nr: {k: v, routes: [{paused: true}, {}]}\n")
	want := []string{"a", "b.d[1].e", "b.d[2]", "gone.k", "gone.l.m", "kind", "new", "r.routes[0].paused", "r.routes[1]"}
	if diff := cmp.Diff(want, config.Diff(a, b)); diff != "" {
		t.Error(diff)
	}
	if diff := config.Diff(a, a); len(diff) > 0 {
		t.Error(diff)
	}
}
