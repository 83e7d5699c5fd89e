package memory_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
)

// told returns the keys and ids that the notices of the route name.
func (k *kit) told(self core.Session) (out []string) {
	k.Helper()
	for _, c := range k.look(self, core.ReadRequest{Slots: []core.RouteSlots{all}}).Notices {
		if c.Kind == core.NoticeKey {
			out = append(out, "key "+c.Key)
		} else {
			out = append(out, "record "+c.ID)
		}
	}
	return out
}

func (k *kit) inspect(id string) admin.Stored {
	k.Helper()
	st, err := k.Inspect(k.Context(), route, id)
	k.no(err)
	return st
}

func (k *kit) abandon(id string, reason waybill.Reason) {
	k.Helper()
	k.no(k.settle(1, core.Abandon(k.get(1, id), reason, errNo))[0])
}

func (k *kit) redrive(req admin.RedriveRequest) admin.Redriven {
	k.Helper()
	req.Filter.Routes = []string{route}
	got, err := k.Redrive(k.Context(), req)
	k.no(err)
	return got
}

func TestInspect(t *testing.T) { // DB-11
	t.Parallel()
	k := newKit(t, memory.Options{})
	m := core.HeartbeatRequest{Self: member(1, 1, 1), Join: true, Transfers: []core.Transfer{{Partition: partition, To: 1}}}
	m.Self.Name, m.Self.Lease = "relay-1", 3*time.Second
	k.heartbeat(m)
	k.stage(msg("a", waybill.Delay(time.Minute)), msg("b", waybill.DedupeKey("d")))
	st := k.inspect("a")
	k.fact("scheduled", st.State == core.StatePending && st.DueIn == time.Minute && st.Age == -time.Minute &&
		string(st.Envelope.Body) == "body")
	b := k.get(1, "b")
	k.now = k.now.Add(time.Second)
	st = k.inspect("b")
	k.fact("due", st.State == core.StatePending && st.DueIn == 0 && st.Age == time.Second && st.DedupeKey == "d" && st.Owner == "")
	k.hold(1, b)
	st = k.inspect("b")
	k.fact("held", st.State == core.StateProcessing && st.Owner == "relay-1" && st.LeaseIn == 2*time.Second)
	k.no(k.settle(1, core.Retry(b, errNo, time.Hour))[0])
	st = k.inspect("b")
	k.fact("failed", st.State == core.StateFailed && st.DueIn == time.Hour && st.LastError == "no" &&
		st.LastErrorAt.Equal(k.now) && st.Age == time.Second && st.Owner == "")
	k.now = k.now.Add(time.Hour)
	k.due(1, 9)
	k.fact("a retry that is held", k.inspect("b").State == core.StateProcessing && k.Records()[0].State == core.StateProcessing)
	tx := k.Begin()
	_, err := k.Stage(t.Context(), tx, msg("c"))
	k.no(err)
	_, err = k.Inspect(t.Context(), route, "c")
	k.is("not committed", err, waybill.ErrNotFound)
	l, err := k.List(t.Context(), admin.Filter{States: []core.State{core.StateProcessing}}, admin.PageRequest{})
	k.fact("list by what is shown", err == nil && len(l.Records) == 1 && l.Records[0].Envelope.ID == "b" &&
		l.Records[0].Envelope.Body == nil)
}

func TestCounts(t *testing.T) { // DB-11
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.put(row("a", ""), row("b", "x"), row("c", ""), later(row("d", ""), time.Second), later(row("e", ""), time.Hour),
		row("f", ""), row("g", ""))
	k.now = k.now.Add(3 * time.Second)
	k.put(row("h", ""))
	k.hold(1, k.get(1, "a"))
	k.retry("b", time.Second)
	k.retry("c", time.Hour)
	k.abandon("f", waybill.ReasonRejected)
	k.no(k.settle(1, core.Published(k.get(1, "g")))[0])
	count := func() string {
		got, err := k.Counts(t.Context())
		k.no(err)
		var s strings.Builder
		for _, c := range got {
			fmt.Fprint(&s, c.State, " ", c.N, " ", c.Oldest, "; ")
		}
		return s.String()
	}
	if got, want := count(), "pending 3 2s; processing 1 3s; failed 2 0s; abandoned 1 3s; "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	k.now = k.now.Add(2 * time.Second)
	if got, want := count(), "pending 3 4s; processing 1 5s; failed 2 5s; abandoned 1 5s; "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestRedriveTellsTheOwner(t *testing.T) { // DB-12
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.put(row("a", "x"), row("b", "x"), row("c", ""), row("d", ""), row("e", "y"), row("f", "y"), row("g", ""))
	k.abandon("a", waybill.ReasonRejected)
	k.abandon("b", waybill.ReasonRejected)
	k.abandon("c", waybill.ReasonUndecodable)
	k.retry("d", time.Hour)
	k.retry("e", 0)
	k.due(1, 1)
	tx := k.Begin()
	k.no(tx.Lock(route, "c"))
	req := admin.RedriveRequest{All: true}
	k.fact("locked and held ones are left out", k.redrive(admin.RedriveRequest{All: true, DryRun: true}).Matched == 3 &&
		len(k.told(1)) == 0)
	got := k.redrive(req)
	k.fact("what may be out of order is refused", got.Changed == 1 && got.Refused[admin.RefusedOrder] == 2)
	k.same("told", k.told(1), []string{"record d"})
	req.BlockAfterAbandon = true
	k.fact("in steps", k.redrive(admin.RedriveRequest{All: true, BlockAfterAbandon: true, Page: admin.PageRequest{Limit: 1}}).Next == 1)
	tx.Rollback()
	k.fact("the rest", k.redrive(req).Changed == 2)
	k.same("told", k.told(1), []string{"record d", "key x", "key x", "record c"})
	k.same("in line", ids(k.read(1)), []string{"a", "b", "c", "d", "f", "g"})
	st := k.inspect("a")
	k.fact("as new", st.State == core.StatePending && st.Attempts == 0 && st.LastError == "" && st.LastErrorAt.IsZero() &&
		st.SettledAt.IsZero())
	k.fact("another version", k.state("a").Version == 3)
}

func (k *kit) blocked(block bool) (out []string) {
	k.Helper()
	keys, _, err := k.BlockedKeys(k.Context(), admin.BlockedKeysRequest{Route: route, BlockAfterAbandon: block})
	k.no(err)
	for i := range keys {
		out = append(out, keys[i].Key+" "+keys[i].Cause+" "+keys[i].Head.Envelope.ID)
	}
	return out
}

func TestHeads(t *testing.T) { // OR-05 OP-18
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.put(row("a", "x"), row("b", "x"), row("c", "y"), row("d", "y"), row("e", "z"), row("f", "z"), row("g", "u"))
	k.retry("a", time.Hour)
	k.abandon("c", waybill.ReasonRejected)
	k.retry("e", 0)
	k.same("without blocking", k.blocked(false), []string{"x retry a", "z retry e"})
	k.due(1, 1)
	k.same("with blocking; what is held is no head", k.blocked(true), []string{"x retry a", "y abandoned c"})
	decide := func(key, id string, a admin.HeadAction) error {
		return k.DecideHead(t.Context(), route, key, id, a)
	}
	k.is("held", decide("z", "e", admin.HeadSkip), waybill.ErrInFlight)
	c, err := k.Decide(route, "u", "g", admin.HeadSetAside)
	k.no(err)
	k.fact("due: its owner is told", c.Kind == core.NoticeDecide && c.ID == "g" && c.Reason == waybill.ReasonSetAside)
	g := k.get(1, "g")
	k.no(k.settle(1, core.Cancel(g, c.Reason), core.DeleteNotice(c))[0])
	k.fact("set aside", k.inspect("g").Reason == waybill.ReasonSetAside)
	k.is("not the head", decide("x", "b", admin.HeadSkip), waybill.ErrNotFound)
	tx := k.Begin()
	k.no(tx.Lock(route, "a"))
	k.is("locked", decide("x", "a", admin.HeadSkip), waybill.ErrInFlight)
	tx.Rollback()
	k.no(decide("x", "a", admin.HeadSkip))
	k.no(decide("y", "c", admin.HeadRequeue))
	k.same("told", k.told(1), []string{"key x", "key y"})
	st := k.inspect("a")
	k.fact("skipped", st.State == core.StateAbandoned && st.Reason == waybill.ReasonSkipped && st.SettledAt.Equal(k.now))
	k.same("in line", ids(k.read(1)), []string{"b", "c", "d", "f"})
}

// An operator's decision about a record that is due is carried out by its owner, and DecideHead waits for that.
func TestDecisionIsWaitedFor(t *testing.T) { // OP-18
	t.Parallel()
	for name, tc := range map[string]struct {
		of   func(r *core.Record) core.Outcome
		want error
	}{
		"carried out":         {func(r *core.Record) core.Outcome { return core.Cancel(r, waybill.ReasonSkipped) }, nil},
		"published meanwhile": {core.Published, waybill.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t)
				k := newKit(t, memory.Options{})
				k.join(1, partition)
				k.put(row("a", "x"))
				answer := make(chan error)
				go func() { answer <- k.DecideHead(t.Context(), route, "x", "a", admin.HeadSkip) }()
				synctest.Wait()
				result := k.look(1, core.ReadRequest{Slots: []core.RouteSlots{all}})
				k.no(k.settle(1, tc.of(k.get(1, "a")), core.DeleteNotice(&result.Notices[0]))[0])
				k.is("answer", <-answer, tc.want)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(11*time.Second, "an owner that does nothing is waited for ten seconds")
		k := newKit(t, memory.Options{})
		k.join(1, partition)
		k.put(row("a", "x"))
		k.is("not carried out yet", k.DecideHead(t.Context(), route, "x", "a", admin.HeadSkip), waybill.ErrInFlight)
	})
}

func TestHeadsWithoutAnOwner(t *testing.T) { // OP-18
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.put(row("a", "x"), row("b", "x"), row("c", ""))
	decide := func(id string, a admin.HeadAction) error { return k.DecideHead(t.Context(), route, "x", id, a) }
	k.same("nothing blocks", k.blocked(true), nil)
	k.is("the second", decide("b", admin.HeadSkip), waybill.ErrNotFound)
	k.no(decide("a", admin.HeadSetAside))
	k.is("due already", decide("b", admin.HeadRequeue), waybill.ErrNotFound)
	k.fact("nobody needs to be told", k.inspect("a").Reason == waybill.ReasonSetAside && slices.Equal(k.told(0), nil))
	k.join(1, partition)
	k.hold(1, k.get(1, "b"))
	k.no(func() error {
		_, err := k.ReleasePartition(t.Context(), 1, core.PartitionState{Partition: partition, Term: 2, ReadAfter: 0}, []core.Ref{k.get(1, "b").Ref})
		return err
	}())
	k.is("somebody holds it", decide("b", admin.HeadSkip), waybill.ErrInFlight)
	k.no(k.settle(1, core.Release(k.get(1, "b"), 0, false))[0])
	k.no(decide("b", admin.HeadSkip))
	k.same("the next owner is told", k.told(1), []string{"key x"})
}
