package statespace

// This file searches. It keeps the hash of every world that it has met, and the worlds themselves only until their
// events have happened.

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Space is a scope: a first world, and its possible events.
type Space[W, E any] struct {
	Model *Model[W]
	// Start returns the first world.
	Start func() *W
	// Now returns the time of a world.
	Now func(w *W) time.Time
	// Events returns the events that are possible in a world now; none if all budgets are spent.
	Events func(w *W) []E
	// Do lets an event happen.
	Do func(w *W, e E)
	// Wrong returns the promise that a world has broken, "" if none.
	Wrong func(w *W) string
	// Continue, if not nil, runs a fair continuation in a copy of each new world: everything that is under way
	// happens, and nothing else. It returns the promise that is broken at its end. It asks good for each world on
	// its way; when that is true, a continuation of such a world has ended well, and this one ends well, too.
	Continue func(w *W, good func() bool) string
	// Breadth goes by the number of events, so that the first failure has the shortest history. It keeps all worlds
	// that wait. Otherwise the search goes deep first, and keeps few.
	Breadth bool
	// Random goes on from worlds at random, if it is not nil and Breadth is off. A search that visits some of many
	// states meets more kinds of them. It keeps all worlds that wait.
	Random *rand.Rand
	// Limit is how many states are visited at most; 0 = all.
	Limit int
	// First ends the search at the first failure.
	First bool
}

// Result is the result of a search.
type Result[E any] struct {
	States, Transitions, Depth int
	// Complete reports that every state of the scope was visited.
	Complete bool
	Failures []Failure[E]
}

// Failure is a broken promise, and the events that led to it. A search keeps one of each promise.
type Failure[E any] struct {
	Wrong   string
	History []E
}

// node is a world whose events have not happened yet.
type node[W, E any] struct {
	world *W
	trail *trail[E]
}

// trail is how a world came about, from its last event to the first.
type trail[E any] struct {
	event E
	depth int
	prev  *trail[E]
}

func (t *trail[E]) history() (events []E) {
	for ; t != nil; t = t.prev {
		events = append(events, t.event)
	}
	slices.Reverse(events)
	return events
}

// search is one search under way.
type search[W, E any] struct {
	Space[W, E]
	seen, good hashes
	result     Result[E]
}

// Search visits the states of a scope.
func (s Space[W, E]) Search() Result[E] {
	run := &search[W, E]{Space: s}
	w := s.Start()
	run.seen.add(s.Model.Hash(w, s.Now(w)))
	run.result.States++
	run.result.Complete = run.visit(w)
	return run.result
}

func (s *search[W, E]) visit(first *W) (complete bool) {
	open := []node[W, E]{{world: first}}
	for len(open) > 0 {
		if s.Breadth {
			var next []node[W, E]
			for i := range open {
				if s.ends() {
					return false
				}
				next = s.expand(open[i], next)
				open[i] = node[W, E]{}
			}
			open = next
			continue
		}
		if s.ends() {
			return false
		}
		last := len(open) - 1
		if s.Random != nil {
			at := s.Random.IntN(last + 1)
			open[at], open[last] = open[last], open[at]
		}
		n := open[last]
		open[last] = node[W, E]{}
		open = s.expand(n, open[:last])
	}
	return true
}

func (s *search[W, E]) ends() bool {
	return s.Limit > 0 && s.result.States >= s.Limit || s.First && len(s.result.Failures) > 0
}

// expand lets each event of a node happen, and adds the new worlds to next.
func (s *search[W, E]) expand(n node[W, E], next []node[W, E]) []node[W, E] {
	events := s.Events(n.world)
	for i, e := range events {
		w := n.world
		if i < len(events)-1 {
			w = s.Model.Copy(w)
		}
		s.Do(w, e)
		s.result.Transitions++
		t := &trail[E]{event: e, prev: n.trail, depth: 1}
		if n.trail != nil {
			t.depth += n.trail.depth
		}
		s.result.Depth = max(s.result.Depth, t.depth)
		if wrong := s.Wrong(w); wrong != "" {
			s.note(wrong, t)
			continue
		}
		if !s.seen.add(s.Model.Hash(w, s.Now(w))) {
			continue
		}
		s.result.States++
		if wrong := s.goesOn(w); wrong != "" {
			s.note(wrong, t)
			continue
		}
		next = append(next, node[W, E]{w, t})
	}
	return next
}

// goesOn runs the fair continuation of a copy of a world.
func (s *search[W, E]) goesOn(w *W) (wrong string) {
	if s.Continue == nil {
		return ""
	}
	c := s.Model.Copy(w)
	var way []uint64
	wrong = s.Continue(c, func() bool {
		h := s.Model.Hash(c, s.Now(c))
		way = append(way, h)
		return s.good.has(h)
	})
	if wrong == "" {
		for _, h := range way {
			s.good.add(h)
		}
	}
	return wrong
}

func (s *search[W, E]) note(wrong string, t *trail[E]) {
	if !slices.ContainsFunc(s.result.Failures, func(f Failure[E]) bool { return f.Wrong == wrong }) {
		s.result.Failures = append(s.result.Failures, Failure[E]{wrong, t.history()})
	}
}

// hashes is a set of numbers, with 16 bytes or less for each.
type hashes struct {
	slots []uint64 // 0 is free
	n     int
}

// add adds a number, and reports whether it is new.
func (hs *hashes) add(v uint64) bool {
	if v == 0 {
		v = 1
	}
	if hs.n*3 >= len(hs.slots)*2 {
		old := hs.slots
		hs.slots = make([]uint64, max(1024, 2*len(old)))
		for _, o := range old {
			if o != 0 {
				hs.slots[hs.find(o)] = o
			}
		}
	}
	at := hs.find(v)
	if hs.slots[at] != 0 {
		return false
	}
	hs.slots[at] = v
	hs.n++
	return true
}

func (hs *hashes) has(v uint64) bool {
	return hs.n > 0 && hs.slots[hs.find(max(v, 1))] != 0
}

// find returns where a number is, or the free slot where it belongs.
func (hs *hashes) find(v uint64) int {
	mask := len(hs.slots) - 1
	at := int(v) & mask
	for hs.slots[at] != 0 && hs.slots[at] != v {
		at = (at + 1) & mask
	}
	return at
}
