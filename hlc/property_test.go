package hlc_test

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill/hlc"
)

func anyStamp() *rapid.Generator[hlc.Timestamp] {
	return rapid.Custom(func(t *rapid.T) hlc.Timestamp {
		return hlc.Timestamp(rapid.Int64Range(0, int64(hlc.MaxTimestamp)).Draw(t, "stamp"))
	})
}

// Text and binary order is numeric order, and both come back as they went.
func TestOrderOfForms(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := anyStamp().Draw(t, "a")
		b := anyStamp().Draw(t, "b")
		if rapid.Bool().Draw(t, "near") { // neighbours, where carries are
			b = max(0, min(a, hlc.MaxTimestamp-2)+hlc.Timestamp(rapid.IntRange(-2, 2).Draw(t, "by")))
		}
		want := a.Compare(b)
		if got := bytes.Compare([]byte(a.String()), []byte(b.String())); got != want {
			t.Fatalf("text orders %s and %s as %d, numbers as %d", a, b, got, want)
		}
		ab, errA := a.MarshalBinary()
		bb, errB := b.MarshalBinary()
		if got := bytes.Compare(ab, bb); errA != nil || errB != nil || got != want {
			t.Fatalf("bytes order %s and %s as %d, numbers as %d (%v, %v)", a, b, got, want, errA, errB)
		}
		if back, err := hlc.Parse(a.String()); err != nil || back != a {
			t.Fatalf("%s came back from text as %s, %v", a, back, err)
		}
		var back hlc.Timestamp
		if err := back.UnmarshalBinary(ab); err != nil || back != a {
			t.Fatalf("%s came back from bytes as %s, %v", a, back, err)
		}
		if again, err := hlc.New(a.Millis(), a.Counter()); err != nil || again != a {
			t.Fatalf("%s came back from its parts as %s, %v", a, again, err)
		}
	})
}

// One clock against every sequence of wall readings, receipts and seeds.
//
// OR-06
// OR-07
func TestClockProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		bound := rapid.Int64Range(1, 10*minute).Draw(t, "bound")
		var w wall
		w.ms.Store(today)
		c, err := hlc.NewClock(hlc.Options{Wall: w.now, MaxDrift: time.Duration(bound) * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		var last hlc.Timestamp
		var rejected uint64
		highest := today // wall reading so far
		steps := int64(0)
		remote := func() hlc.Timestamp {
			if rapid.Bool().Draw(t, "anything") {
				return hlc.Timestamp(rapid.Int64().Draw(t, "remote"))
			}
			ms := rapid.Int64Range(-2*bound, 2*bound).Draw(t, "remote ms")
			c := rapid.SampledFrom([]int64{0, 1, 65534, 65535}).Draw(t, "remote counter")
			return hlc.Timestamp((w.ms.Load()+ms)<<16 | c)
		}
		issued := func(ts hlc.Timestamp) {
			if ts <= last {
				t.Fatalf("%s is not above %s", ts, last)
			}
			last = ts
		}
		t.Repeat(map[string]func(*rapid.T){
			"wall": func(t *rapid.T) {
				if rapid.Bool().Draw(t, "wild") {
					w.ms.Store(rapid.Int64().Draw(t, "wall"))
				} else {
					w.ms.Store(w.ms.Load()/2 + today/2 + rapid.Int64Range(-year, year).Draw(t, "jump"))
				}
			},
			"now": func(*rapid.T) { issued(c.Now()) },
			"observe": func(t *rapid.T) {
				r := remote()
				ts, err := c.Observe(r)
				if err != nil {
					rejected++
					if ts != 0 || r >= 0 && r <= last || !errors.Is(err, hlc.ErrDrift) && !errors.Is(err, hlc.ErrInvalid) {
						t.Fatalf("Observe(%s) with the clock at %s: %s, %v", r, last, ts, err)
					}
					return
				}
				if ts <= r {
					t.Fatalf("Observe(%s) returned %s, which is not later", r, ts)
				}
				issued(ts)
			},
			"seed": func(t *rapid.T) {
				if r := remote(); c.Seed(r) == nil {
					last = max(last, r)
				}
			},
			"": func(t *rapid.T) {
				steps++
				if got := c.Last(); got != last {
					t.Fatalf("the clock is at %s, want %s: something moved it", got, last)
				}
				if c.Rejected() != rejected {
					t.Fatalf("Rejected is %d, want %d", c.Rejected(), rejected)
				}
				// No remote stamp ever pulls the clock further than the bound
				// from the highest wall reading it believed.
				if ms := w.ms.Load(); ms <= hlc.MaxMillis-1<<40 {
					highest = max(highest, ms)
				}
				if ahead := last.Millis() - highest; ahead > bound+steps {
					t.Fatalf("the clock is %d ms ahead of every wall reading, bound %d", ahead, bound)
				}
			},
		})
	})
}

// Replicas with different, jumping wall clocks that exchange messages: whenever
// one event could have caused another (by vector clocks, computed beside), its
// stamp is lower.
//
// OR-06
func TestCausalityAcrossReplicas(t *testing.T) {
	t.Parallel()
	const replicas = 3
	type event struct {
		at    int
		stamp hlc.Timestamp
		vc    [replicas]int
	}
	rapid.Check(t, func(t *rapid.T) {
		var walls [replicas]wall
		var clocks [replicas]*hlc.Clock
		var vcs [replicas][replicas]int
		for i := range replicas {
			walls[i].ms.Store(today)
			c, err := hlc.NewClock(hlc.Options{Wall: walls[i].now})
			if err != nil {
				t.Fatal(err)
			}
			clocks[i] = c
		}
		var events []event
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			i := rapid.IntRange(0, replicas-1).Draw(t, "replica")
			// Every wall clock is within 30 s of the real time, the bound is 60 s.
			walls[i].ms.Store(today + rapid.Int64Range(-30*second, 30*second).Draw(t, "wall"))
			e := event{at: i}
			if len(events) > 0 && rapid.Bool().Draw(t, "receives") {
				m := events[rapid.IntRange(0, len(events)-1).Draw(t, "message")]
				ts, err := clocks[i].Observe(m.stamp)
				if err != nil {
					t.Fatal(err)
				}
				e.stamp = ts
				for j := range replicas {
					vcs[i][j] = max(vcs[i][j], m.vc[j])
				}
			} else {
				e.stamp = clocks[i].Now()
			}
			vcs[i][i]++
			e.vc = vcs[i]
			for _, before := range events {
				if before.vc[before.at] <= e.vc[before.at] && before.stamp >= e.stamp {
					t.Fatalf("cause %+v is not stamped before effect %+v", before, e)
				}
			}
			events = append(events, e)
		}
	})
}

// Many goroutines, a wall clock that jumps both ways, everything at once: each
// goroutine sees rising stamps, no stamp is given out twice, and a stamp handed from
// one goroutine to another is below the next one there.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	const goroutines, each = 8, 2000
	var w wall
	w.ms.Store(today)
	c := newClock(t, hlc.Options{Wall: w.now, MaxDrift: time.Minute})
	results := make([][]hlc.Timestamp, goroutines)
	handed := make(chan hlc.Timestamp, 1)
	handed <- 0
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				switch {
				case i%97 == 0:
					w.ms.Store(today + int64((i*7919+g*104729)%60_000-30_000))
				case i%31 == 0:
					if err := c.Seed(hlc.Timestamp((today - int64(i)) << 16)); err != nil {
						t.Error(err)
					}
				case i%13 == 0:
					before := <-handed
					ts := c.Now()
					handed <- ts
					if ts <= before {
						t.Errorf("%s was given out after %s", ts, before)
					}
					results[g] = append(results[g], ts)
				case i%5 == 0:
					if _, err := c.Observe(hlc.Timestamp((today + year) << 16)); err == nil {
						t.Error("a stamp of next year was accepted")
					}
				case i%3 == 0:
					remote := hlc.Timestamp((w.ms.Load()+int64(i))<<16 | 65535)
					if ts, err := c.Observe(remote); err == nil {
						if ts <= remote {
							t.Errorf("Observe(%s) returned %s", remote, ts)
						}
						results[g] = append(results[g], ts)
					}
				default:
					results[g] = append(results[g], c.Now())
				}
			}
		})
	}
	wg.Wait()
	var all []hlc.Timestamp
	for _, r := range results {
		if !slices.IsSorted(r) {
			t.Error("one goroutine saw stamps go back")
		}
		all = append(all, r...)
	}
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != len(all) {
		t.Errorf("%d of %d stamps were given out twice", len(all)-n, len(all))
	}
	if c.Last() != all[len(all)-1] {
		t.Errorf("Last is %s, the highest given out %s", c.Last(), all[len(all)-1])
	}
	if c.Rejected() == 0 {
		t.Error("nothing was rejected")
	}
}

// Nothing but contention: a wall clock that stands still, so that every stamp
// comes from the counter. A lost update shows as a stamp given out twice or as
// one that goes back. Not parallel: other tests would take the processors that the
// goroutines need to meet.
//
// OR-06
func TestContention(t *testing.T) {
	kinds := map[string]func(*testing.T, *hlc.Clock) hlc.Timestamp{
		"now": func(_ *testing.T, c *hlc.Clock) hlc.Timestamp { return c.Now() },
		"observe": func(t *testing.T, c *hlc.Clock) hlc.Timestamp {
			t.Helper()
			ts, err := c.Observe(c.Last())
			if err != nil {
				t.Error(err)
			}
			return ts
		},
		"seed": func(t *testing.T, c *hlc.Clock) hlc.Timestamp {
			t.Helper()
			mark := c.Last() + 2
			if err := c.Seed(mark); err != nil {
				t.Error(err)
			}
			ts := c.Now()
			if ts <= mark {
				t.Errorf("%s was given out after Seed(%s)", ts, mark)
			}
			return ts
		},
	}
	for name, stamp := range kinds {
		t.Run(name, func(t *testing.T) {
			const goroutines, each = 4, 200_000
			fixed := time.UnixMilli(today)
			c := newClock(t, hlc.Options{Wall: func() time.Time { return fixed }, MaxDrift: -1})
			results := make([][]hlc.Timestamp, goroutines)
			var wg sync.WaitGroup
			for g := range goroutines {
				results[g] = make([]hlc.Timestamp, 0, each)
				wg.Go(func() {
					for range each {
						results[g] = append(results[g], stamp(t, c))
					}
				})
			}
			wg.Wait()
			for g, r := range results {
				if !slices.IsSorted(r) {
					t.Errorf("goroutine %d saw stamps go back", g)
				}
			}
			all := slices.Concat(results...)
			slices.Sort(all)
			if n := len(slices.Compact(all)); n != goroutines*each {
				t.Errorf("%d of %d stamps were given out twice", goroutines*each-n, goroutines*each)
			}
		})
	}
}
