//go:build unix && !race

package faults_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/testenv"
)

// DB-24: members that start at once divide the partitions of a thousand routes evenly, and serve them meanwhile.
func TestManyRoutesManyMembers(t *testing.T) {
	nightly(t)
	w := newWorld(t, testenv.Postgres(t).DSN)
	var routes, busy []string
	for i := range 1000 {
		routes = append(routes, fmt.Sprintf("r%03d", i))
		if i%100 == 7 {
			busy = append(busy, routes[i]+"/a", routes[i]+"/b")
		}
	}
	stop := w.produce(busy, 50*time.Millisecond)
	var all []*process
	began := time.Now()
	for _, name := range []string{"a", "b", "c", "d"} {
		all = append(all, w.start(member{Name: name, Routes: routes, Partitions: 1}))
	}
	var shares []int
	spread := func() bool {
		shares = nil
		for _, p := range all {
			shares = append(shares, p.partitions())
		}
		return slices.Min(shares) >= 248 && slices.Max(shares) <= 252
	}
	w.until(30*time.Second, "the shares are even", spread)
	t.Logf("the shares were %v after %s", shares, time.Since(began).Round(time.Millisecond))
	w.pause(2 * time.Second)
	if !spread() {
		t.Errorf("the shares are %v", shares)
	}
	stop()
	w.allArrive(10 * time.Second)
	w.unharmed()
}

// DB-24: the partitions of a relay whose broker is out of order go on at others.
func TestRelayWithoutBroker(t *testing.T) {
	nightly(t)
	w := newWorld(t, testenv.Postgres(t).DSN)
	w.startAll(member{Slow: 5 * time.Millisecond}, "a", "b", "c")
	lame := w.startAll(member{Refuses: true}, "lame")[0]
	w.until(10*time.Second, "it has its share", func() bool { return lame.partitions() >= 15 })
	names := append(keys("k", 100), keys("k", 100)...)
	w.stage(names)
	stop := w.produce(names[:100], 0)
	w.pause(time.Second)
	if w.number(w.pool, "SELECT count(*) FROM waybill.waybill_outbox") < 10 {
		t.Error("it owns no key that has messages: the test proves nothing")
	}
	began := time.Now()
	w.until(20*time.Second, "it has released its partitions", func() bool { return lame.partitions() == 0 })
	stop()
	w.allArrive(20*time.Second - time.Since(began))
	t.Logf("all had arrived %s after the first refusal", time.Since(began).Round(time.Millisecond))
	w.unharmed()
	w.logWorst()
}
