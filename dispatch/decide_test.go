package dispatch

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// decideAbout has an operator end records, a thousand in a step.
func (w *small) decideAbout(ids []string) {
	w.t.Helper()
	seqs := map[string]int64{}
	for _, st := range w.st.States() {
		seqs[st.ID] = st.Seq
	}
	for len(ids) > 0 {
		req := admin.DecideRequest{Reason: waybill.ReasonSkipped}
		for _, id := range ids[:min(len(ids), admin.MaxPageLimit)] {
			req.Decisions = append(req.Decisions, admin.Decision{Route: "r", Seq: seqs[id], ID: id})
		}
		ids = ids[len(req.Decisions):]
		got, err := w.st.DecideRecords(w.t.Context(), req)
		w.must(err)
		for _, d := range got {
			if d.Result != admin.DecisionPending {
				w.t.Fatalf("%+v", d)
			}
		}
	}
	w.d.Wake(w.now)
}

// TestManyDecisionsWhileNothingIsSent: for every state of the broker, and with the records in memory or not, decisions
// are carried out within two heartbeats of the last one, and leave nothing behind.
func TestManyDecisionsWhileNothingIsSent(t *testing.T) { // OP-18
	t.Parallel()
	for name, key := range map[string]func(i int) string{
		"no key":     func(int) string { return "" },
		"many keys":  func(i int) string { return fmt.Sprint("k", i%500) },
		"one key":    func(int) string { return "k" },
		"every kind": func(i int) string { return []string{"", "a", strconv.Itoa(i)}[i%3] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSmall(t)
			var ids []string
			for i := range 5000 {
				ids = append(ids, strconv.Itoa(i))
				w.stage(key(i), ids[i])
			}
			w.start()
			for range 500 {
				w.step() // nobody asks for what is ready
			}
			w.decideAbout(ids)
			reads, calls := 0, w.call
			w.call = func(c *Call) {
				if c.kind == CallRead {
					reads++
				}
				calls(c)
			}
			at := w.now
			for w.live() > 0 && w.now.Before(at.Add(2*w.d.opts.Lease/3)) {
				w.step()
			}
			t.Logf("%d decisions took %s and %d reads", len(ids), w.now.Sub(at), reads)
			if left := w.live(); left > 0 {
				t.Errorf("after two heartbeats %d of %d decisions are not carried out", left, len(ids))
			}
			w.run(100 * time.Millisecond)
			result, err := w.st.Read(t.Context(), 100, core.ReadRequest{Slots: []core.RouteSlots{{Route: "r", Slots: core.AllSlots}}})
			w.must(err)
			if len(result.Notices) > 0 {
				t.Errorf("%d notices are left", len(result.Notices))
			}
			w.stage("k", "new")
			w.d.Wake(w.now)
			if got := w.run(200 * time.Millisecond); len(got) != 1 || got[0] != "new" {
				t.Errorf("handed out %d, %q, want new", len(got), got[:min(len(got), 3)])
			}
		})
	}
}

// TestReadsForDecisions: a member that has no room for more records reads decisions often, without a wake-up, however
// long it rests between reads that find nothing.
func TestReadsForDecisions(t *testing.T) { // OP-18
	t.Parallel()
	w := newSmall(t)
	for i := range 3000 {
		w.stage("", strconv.Itoa(i))
	}
	w.d = New(Options{Routes: []Route{{Name: "r", Partitions: 1}}, PollMax: time.Minute, NewSession: func() core.Session { return 100 }})
	gap, last, calls, reads := time.Duration(0), w.now, w.call, 0
	w.call = func(c *Call) {
		if c.kind == CallRead {
			gap, last = max(gap, w.now.Sub(last)), w.now
			reads++
		}
		calls(c)
	}
	for range 60_000 {
		w.step()
	}
	if most := lookEvery + 2*time.Millisecond; gap > most || reads == 0 {
		t.Errorf("the longest pause between %d reads is %s, want at most %s", reads, gap, most)
	}
}

// live returns how many records have not ended.
func (w *small) live() (n int64) {
	w.t.Helper()
	counts, err := w.st.Counts(w.t.Context())
	w.must(err)
	for _, c := range counts {
		if !c.State.Terminal() {
			n += c.N
		}
	}
	return n
}

// decideMany is an operator who ends some of all records, wherever they are in their keys, and asks again about those
// whose owners were told.
func (s *sim) decideMany() {
	req := admin.DecideRequest{Reason: waybill.ReasonSkipped}
	for _, st := range s.store.States() {
		if !st.State.Terminal() && s.chance(0.2) {
			req.Decisions = append(req.Decisions, admin.Decision{Route: st.Route, Seq: st.Seq, ID: st.ID})
		}
	}
	restores := s.restores()
	s.askAbout(req, func() bool { return s.quiet || s.restores() != restores })
}

// askAbout decides, and asks again until nothing is pending or over says so.
func (s *sim) askAbout(req admin.DecideRequest, over func() bool) {
	if over() || len(req.Decisions) == 0 {
		return
	}
	got, err := s.store.DecideRecords(context.Background(), req)
	if err != nil {
		s.fail("decide", "%v", err)
		return
	}
	var pending []admin.Decision
	for _, d := range got {
		msg := s.msgs[d.ID]
		switch d.Result {
		case admin.DecisionPending:
			pending = append(pending, d)
			msg.abandoned, msg.redriven = true, true
		case admin.DecisionCarriedOut:
			if msg.abandoned, msg.redriven = true, true; s.isOut(d.ID) {
				s.fail("ended-out", "%s was ended while its owner had it out", d.ID)
			}
		case admin.DecisionSuperseded, admin.DecisionLocked:
		}
		s.logf("an operator ends %s: %s", d.ID, d.Result)
	}
	req.Decisions = pending
	s.after(s.between(10*time.Millisecond, 500*time.Millisecond), func() { s.askAbout(req, over) })
}

// isOut reports whether the owner of a message has it out. After a restore a dead member can own partitions again, and
// the store does not know its records.
func (s *sim) isOut(id string) bool {
	membership, err := s.store.Heartbeat(context.Background(), core.HeartbeatRequest{})
	if err != nil {
		return false
	}
	for _, m := range s.members {
		if m.dead && s.restores() > 0 {
			continue
		}
		for item := range m.out {
			owns := func(u core.PartitionState) bool {
				return u.Partition.Route == item.Route() && u.Partition.Slots().Has(item.Record.Slot) && u.Owner == m.d.session
			}
			if item.Record.ID == id && !item.Lost() && slices.ContainsFunc(membership.Partitions, owns) {
				return true
			}
		}
	}
	return false
}
