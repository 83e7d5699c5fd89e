package dispatch

// How often a member asks for due records while nothing happens: each question is a statement of an idle database.

import (
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// rests starts a member, and counts its questions.
func rests(t *testing.T, rt Route, pollMax time.Duration) (w *small, dues *int) {
	t.Helper()
	w, dues = newSmall(t), new(int)
	call := w.call
	w.call = func(c *Call) {
		if c.kind == CallDue {
			*dues++
		}
		call(c)
	}
	w.d = New(Options{Routes: []Route{rt}, Lease: time.Minute, PollMax: pollMax, NewSession: func() core.Session { return 100 }})
	w.run(2 * time.Minute)
	for *dues = 0; *dues == 0; { // the next one is far
		w.run(time.Millisecond)
	}
	*dues = 0
	return w, dues
}

// later stages a record that is due in d. It returns the transaction.
func (w *small) later(id string, d time.Duration) interface{ Commit() error } {
	w.t.Helper()
	tx := w.st.Begin()
	_, err := tx.Stage(core.StagedRow{Route: "r", Envelope: waybill.Envelope{ID: id, Topic: "t"}, Delay: d})
	w.must(err)
	return tx
}

// TestDueRests: a member to which nothing happens asks for due records every 30 s, also the only member of a queue. So
// does one that reads four times a second: a read shows that a number was drawn. Members that share a queue ask every
// second: the others put off records of its slots. A newcomer is seen within aloneEvery, although the renewals of a
// queue are 20 s apart.
//
// DB-10.
func TestDueRests(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		queue       bool
		joins       string // the route of another member
		pollMax     time.Duration
		least, most int
	}{
		{false, "", time.Minute, 19, 21},
		{false, "", time.Second / 4, 19, 21},
		{true, "", time.Minute, 19, 21},
		{true, "other", time.Minute, 19, 21},
		{true, "r", time.Minute, 590, 610},
	} {
		w, dues := rests(t, Route{Name: "r", Partitions: 1, Queue: tc.queue}, tc.pollMax)
		if tc.joins != "" {
			_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{Join: true, Self: core.Member{
				Session: 200, Lease: time.Hour, Routes: []core.ServedRoute{{Route: tc.joins}},
			}})
			w.must(err)
			w.run(aloneEvery + time.Second)
		}
		*dues = 0
		if w.run(10 * time.Minute); *dues < tc.least || *dues > tc.most {
			t.Errorf("queue %v, beside %q: asked %d times in 10 minutes, want %d to %d", tc.queue, tc.joins, *dues, tc.least, tc.most)
		}
	}
}

// TestDueRestEnds: a timer is handed out when it is due, although the member rests: a wake-up, the next number that a
// read shows, or a wait that ended without an answer tells of it.
func TestDueRestEnds(t *testing.T) { // DB-10
	t.Parallel()
	for what, happens := range map[string]func(w *small){
		"a wake-up": func(w *small) { w.d.Wake(w.now) },
		"a read shows a number": func(w *small) {
			w.d.byName["r"].pace.readAt = w.now
		},
		"nobody watched": func(w *small) {
			w.d.byName["r"].pace.readAt = w.now.Add(time.Minute)
			w.d.Unwatched(w.now)
		},
	} {
		w, _ := rests(t, Route{Name: "r", Partitions: 1}, time.Minute)
		w.must(w.later("a", 3*time.Second).Commit())
		happens(w)
		if got := w.run(2900 * time.Millisecond); len(got) > 0 {
			t.Errorf("%s: handed out before it was due", what)
		}
		if got := w.run(200 * time.Millisecond); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%s: handed out %v when the timer was due", what, got)
		}
	}
}

// TestDueRestWaitsForTransactions: a member asks every second while a transaction is open that has staged: its
// message can be due at once.
func TestDueRestWaitsForTransactions(t *testing.T) { // DB-10
	t.Parallel()
	w, _ := rests(t, Route{Name: "r", Partitions: 1}, time.Minute)
	tx := w.later("a", time.Millisecond)
	w.stage("", "b")
	w.d.Wake(w.now)
	item := w.hand(1)[0]
	w.d.Conclude(w.now, item, core.Published(&item.Record))
	w.run(25 * time.Second)
	w.must(tx.Commit())
	if got := w.run(2 * time.Second); !slices.Equal(got, []string{"a"}) {
		t.Errorf("handed out %v in the two seconds after the commit", got)
	}
}
