package statespace_test

// The copies, the hashes and the search, on worlds that can be seen through.

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/statespace"
)

// thing has one of each that a world can hold.
type thing struct {
	n      int
	small  int8
	yes    bool
	text   string
	at     time.Time
	err    error
	next   *thing
	same   [3]*thing
	list   []*thing
	byName map[string]*thing
	byPtr  map[*thing]int
	any    any
	wake   chan struct{}
	fn     func() //nolint:unused // it is named in the rules
	note   string
	lapse  time.Time
}

var thingRules = statespace.Rules{
	Unhashed: []string{"statespace_test.thing.wake", "statespace_test.thing.note"}, Shared: []string{"statespace_test.thing.fn"}, Age: time.Minute,
	While: map[string]string{"statespace_test.thing.lapse": "yes"}, Types: []reflect.Type{reflect.TypeFor[*thing]()},
	Order: func(a, b any) int { return a.(*thing).n - b.(*thing).n },
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func newThing() *thing {
	a, b := &thing{n: 1}, &thing{n: 2}
	a.next, b.next = b, a // a ring
	t := &thing{
		n: 7, text: "text", at: noon, next: a, same: [3]*thing{b, b, a}, list: []*thing{a, nil, b}, byName: map[string]*thing{"a": a, "b": b},
		byPtr: map[*thing]int{a: 1, b: 2}, any: b, wake: make(chan struct{}),
	}
	t.list = append(t.list, t)
	return t
}

func model(t *testing.T) *statespace.Model[thing] {
	t.Helper()
	m, err := statespace.NewModel[thing](thingRules)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestCopyIsEqualAndApart: a copy has the hash of its original, the same shape, and shares nothing with it.
func TestCopyIsEqualAndApart(t *testing.T) {
	t.Parallel()
	m, a := model(t), newThing()
	before := m.Hash(a, noon)
	c := m.Copy(a)
	if m.Hash(c, noon) != before || m.Hash(newThing(), noon) != before {
		t.Error("equal worlds have different hashes")
	}
	if c.next == a.next || c.next.next.next != c.next || c.same[0] != c.same[1] || c.same[2] != c.next || c.list[3] != c || c.byName["b"] != c.any.(*thing) || c.byPtr[c.next] != 1 {
		t.Error("the copy has another shape")
	}
	if c.wake == a.wake {
		t.Error("the copy has the channel of the original")
	}
	c.next.n, c.byName["c"], c.list[1] = 100, c, c
	c.list = append(c.list[:0], nil)
	if m.Hash(a, noon) != before {
		t.Error("a change of the copy changes the original")
	}
	e := &thing{list: make([]*thing, 0, 4)}
	if d := m.Copy(e); cap(d.list) != 0 {
		t.Error("an append to an empty slice of a copy writes where the original does")
	}
}

// TestHashHasEveryField: a change of any field changes the hash, but for the fields that the rules name.
func TestHashHasEveryField(t *testing.T) {
	t.Parallel()
	m := model(t)
	before := m.Hash(newThing(), noon)
	for name, change := range map[string]func(t *thing){
		"n": func(t *thing) { t.n++ }, "small": func(t *thing) { t.small++ }, "yes": func(t *thing) { t.yes = true }, "text": func(t *thing) { t.text += "x" },
		"at": func(t *thing) { t.at = t.at.Add(1) }, "err": func(t *thing) { t.err = errors.New("x") }, "next": func(t *thing) { t.next = t.next.next },
		"same": func(t *thing) { t.same[0] = nil }, "list": func(t *thing) { t.list = t.list[:3] }, "order": func(t *thing) { slices.Reverse(t.list) },
		"byName": func(t *thing) { t.byName["b"] = t.byName["a"] }, "byPtr": func(t *thing) { t.byPtr[t.next]++ }, "any": func(t *thing) { t.any = t.next },
		"type": func(t *thing) { t.any = 7 }, "deep": func(t *thing) { t.next.next.n++ }, "nil": func(t *thing) { t.any = nil },
	} {
		w := newThing()
		if change(w); m.Hash(w, noon) == before {
			t.Errorf("%s: the hash does not change", name)
		}
	}
	w := newThing()
	w.note, w.lapse = "another", noon
	if m.Hash(w, noon) != before {
		t.Error("fields that the rules name change the hash")
	}
	w.yes = true
	set := m.Hash(w, noon)
	if w.lapse = noon.Add(time.Second); m.Hash(w, noon) == set {
		t.Error("a field that counts while another is set does not change the hash then")
	}
}

// TestTimesAreRelative: two worlds that differ by the time alone are one. All times older than Age are the same.
func TestTimesAreRelative(t *testing.T) {
	t.Parallel()
	m, a, b := model(t), newThing(), newThing()
	b.at = a.at.Add(time.Hour)
	if m.Hash(a, noon) != m.Hash(b, noon.Add(time.Hour)) {
		t.Error("the same world an hour later is another")
	}
	if m.Hash(a, noon.Add(2*time.Minute)) != m.Hash(a, noon.Add(3*time.Minute)) {
		t.Error("times that are older than Age differ")
	}
	if m.Hash(a, noon.Add(time.Second)) == m.Hash(a, noon.Add(2*time.Second)) {
		t.Error("times that are younger than Age are the same")
	}
}

// TestEveryFieldIsHashedOrNamed: a field that cannot be hashed must be named, and a name must fit.
func TestEveryFieldIsHashedOrNamed(t *testing.T) {
	t.Parallel()
	type part struct{ fn func() } //nolint:unused // its fields are looked at
	type world struct {
		part          //nolint:unused // its fields are looked at
		wake chan int //nolint:unused // its fields are looked at
	}
	if _, err := statespace.NewModel[world](statespace.Rules{}); err == nil || !strings.Contains(err.Error(), "part.fn has a func") || !strings.Contains(err.Error(), "world.wake has a chan") {
		t.Errorf("fields that are neither hashed nor named are taken: %v", err)
	}
	rules := statespace.Rules{Shared: []string{"statespace_test.part.fn"}, Unhashed: []string{"statespace_test.world.wake", "statespace_test.world.was"}}
	if _, err := statespace.NewModel[world](rules); err == nil || !strings.Contains(err.Error(), "world.was fits no field") {
		t.Errorf("a name that fits no field is taken: %v", err)
	}
	rules.Unhashed = rules.Unhashed[:1]
	if _, err := statespace.NewModel[world](rules); err != nil {
		t.Error(err)
	}
}

// table is two people and two forks. Each takes one fork, then the other, and puts both back.
type table struct {
	forks [2]int // its owner; 0 = none
	steps [2]int // forks that a person has
	meals int
}

type move int

func tableSpace(t *testing.T, sameOrder bool) statespace.Space[table, move] {
	t.Helper()
	m, err := statespace.NewModel[table](statespace.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	fork := func(p, step int) int {
		if sameOrder {
			return step
		}
		return (p + step) % 2
	}
	can := func(w *table, p int) bool { return w.steps[p] == 2 || w.forks[fork(p, w.steps[p])] == 0 }
	do := func(w *table, e move) {
		p := int(e)
		if w.steps[p] < 2 {
			w.forks[fork(p, w.steps[p])] = p + 1
			w.steps[p]++
			return
		}
		w.steps[p], w.forks = 0, [2]int{}
		w.meals++
	}
	return statespace.Space[table, move]{
		Model: m, Start: func() *table { return &table{} }, Now: func(*table) time.Time { return noon },
		Events: func(w *table) (evs []move) {
			for p := range 2 {
				if can(w, p) && w.meals < 3 {
					evs = append(evs, move(p))
				}
			}
			return evs
		},
		Do: do,
		Wrong: func(w *table) string {
			if w.steps[0] == 2 && w.steps[1] == 2 {
				return "both eat"
			}
			return ""
		},
		Continue: func(w *table, good func() bool) string {
			for {
				if w.meals > 3 || good() {
					return ""
				}
				moved := false
				people := []int{0, 1} // a person with a fork goes first
				slices.SortStableFunc(people, func(a, b int) int { return w.steps[b] - w.steps[a] })
				for _, p := range people {
					for w.meals < 4 && can(w, p) {
						do(w, move(p))
						moved = true
					}
				}
				if !moved {
					return "stuck"
				}
			}
		},
	}
}

// TestSearch: each search visits the same states, finds the faults in them, and breadth first finds the shortest
// history.
func TestSearch(t *testing.T) {
	t.Parallel()
	for _, sameOrder := range []bool{true, false} {
		s := tableSpace(t, sameOrder)
		deep := s.Search()
		s.Breadth = true
		wide := s.Search()
		if !deep.Complete || !wide.Complete || deep.States != wide.States || deep.Transitions != wide.Transitions || wide.States < 10 {
			t.Errorf("same order %t: the searches differ: %+v, %+v", sameOrder, deep, wide)
		}
		if sameOrder {
			if len(deep.Failures)+len(wide.Failures) > 0 {
				t.Errorf("failures where there are none: %+v, %+v", deep.Failures, wide.Failures)
			}
			continue
		}
		if len(deep.Failures) != 1 || len(wide.Failures) != 1 || wide.Failures[0].Wrong != "stuck" || !slices.Equal(wide.Failures[0].History, []move{0, 1}) {
			t.Errorf("each has a fork, and waits for the other: not found: %+v, %+v", deep.Failures, wide.Failures)
		}
		s.Limit = 5
		if cut := s.Search(); cut.Complete || cut.States > 6 {
			t.Errorf("the limit does not hold: %+v", cut)
		}
		s.Limit, s.First = 0, true
		if first := s.Search(); first.Complete || first.States >= wide.States || len(first.Failures) != 1 {
			t.Errorf("the search goes on after the first failure: %+v", first)
		}
	}
}
