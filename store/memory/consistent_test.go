package memory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// TestIndex compares an index with a sorted list.
func TestIndex(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var x index
		want := map[int64]bool{}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			from, n := rapid.Int64Range(0, 2000).Draw(rt, "from"), rapid.Int64Range(1, 600).Draw(rt, "n")
			add := rapid.Bool().Draw(rt, "add")
			for seq := from; seq < from+n; seq++ {
				if add {
					x.insert(seq/100, seq, &record{seq: seq})
					want[seq] = true
				} else {
					x.remove(seq/100, seq)
					delete(want, seq)
				}
			}
			after := rapid.Int64Range(0, 2600).Draw(rt, "after")
			var list []int64
			for seq := range want {
				if seq > after {
					list = append(list, seq)
				}
			}
			slices.Sort(list)
			i := 0
			for r := range x.after(after/100, after) {
				if i == len(list) || list[i] != r.seq {
					rt.Fatalf("entry %d is %d; want %v", i, r.seq, list)
				}
				i++
			}
			if i != len(list) || x.empty() != (len(want) == 0) {
				rt.Fatalf("%d entries, want %d", i, len(list))
			}
		}
	})
}

// TestConsistent does anything at random, and checks that the indexes, the holds and the partitions say the same as the
// records.
func TestConsistent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		keep := rapid.Bool().Draw(rt, "keep")
		w := newWorld(t, keep)
		twin := newWorld(t, keep)
		rt.Repeat(map[string]func(*rapid.T){
			"step": func(rt *rapid.T) {
				dice := rapid.SliceOfN(rapid.IntRange(0, 1<<20), 6, 6).Draw(rt, "dice")
				if a, b := w.step(dice), twin.step(dice); a != b {
					rt.Fatalf("not deterministic:\n%s\n%s", a, b)
				}
			},
			"": func(rt *rapid.T) { w.check(rt) },
		})
	})
}

type world struct {
	*Store
	t   *testing.T
	now time.Time
	txs []*Tx
	img *Image
	ids int
	old []core.Record
}

func newWorld(t *testing.T, keep bool) *world {
	t.Helper()
	w := &world{t: t, now: time.Unix(1e9, 0)}
	opts := Options{Source: "/test", Now: func() time.Time { return w.now }}
	if keep {
		opts.Retention = waybill.Retention{Published: waybill.Forever, Abandoned: time.Second, Cancelled: time.Second}
	}
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	w.Store = s
	w.img = w.Snapshot()
	return w
}

// step does one thing, chosen by dice, and returns all that it answered.
func (w *world) step(d []int) string {
	ctx := w.t.Context()
	self := core.Session(d[1]%3 + 1)
	part := core.RouteSlots{Route: "r", Slots: core.AllSlots}
	if d[1]%5 == 0 {
		part.Slots = core.SlotRange(0, 32)
	}
	id := "m" + strconv.Itoa(d[2]%max(w.ids, 1)+1)
	tx := func() *Tx {
		if len(w.txs) < 2 {
			w.txs = append(w.txs, w.Begin())
		}
		return w.txs[d[3]%len(w.txs)]
	}
	switch d[0] % 18 {
	case 0, 1:
		w.ids++
		row := core.StagedRow{}
		row.Cancellable = d[2]%3 == 0
		row.Route, row.Envelope.ID, row.Envelope.Key = "r", "m"+strconv.Itoa(w.ids), []string{"", "x", "y", "z"}[d[4]%4]
		row.Delay = time.Duration(d[5]%3) * time.Second
		if d[1]%3 == 0 {
			row.DedupeKey, row.Replace = []string{"p", "q"}[d[2]%2], d[3]%2 == 0
		}
		if d[1]%4 == 0 {
			row.Envelope.Expires = w.now.Add(3 * time.Second)
		}
		if d[3]%8 == 0 {
			row.Envelope.ID = id
		}
		seqs, err := tx().Stage(row)
		return fmt.Sprint(seqs, err)
	case 2:
		st, err := tx().Cancel("r", id)
		return fmt.Sprint(st, err)
	case 3:
		return fmt.Sprint(tx().Redrive("r", id), tx().Lock("r", id))
	case 4:
		return fmt.Sprint(tx().RollbackTo(Savepoint(d[4] % (int(tx().Savepoint()) + 1))))
	case 5, 6:
		t := tx()
		w.txs = slices.DeleteFunc(w.txs, func(o *Tx) bool { return o == t })
		if d[4]%4 == 0 {
			t.Rollback()
			return ""
		}
		return fmt.Sprint(t.Commit())
	case 7, 8:
		m := core.HeartbeatRequest{Self: core.Member{Session: self, Heartbeats: int64(d[4])}, Join: true, Leave: d[5]%20 == 0}
		m.Self.Routes = []core.ServedRoute{{Route: "r", InitialPartitions: 2}}
		for _, u := range core.SplitPartitions("r", 2) {
			m.Transfers = append(m.Transfers, core.Transfer{Partition: u, To: self})
		}
		if other := w.members[core.Session(d[2]%3+1)]; other != nil && d[5]%5 == 0 {
			m.Evict = []core.Eviction{{Session: other.Session, Heartbeats: other.Heartbeats}}
		}
		membership, err := w.Heartbeat(ctx, m)
		return fmt.Sprint(membership, err)
	case 9, 10:
		p, err := w.Read(ctx, self, core.ReadRequest{
			Slots: []core.RouteSlots{part}, NewlyOwned: []core.RouteSlots{part}, Ranges: []core.Range{{RouteSlots: part, UpToSeq: 1 << 40, Limit: 5}},
			Keys: []core.KeyRange{{Route: "r", Key: "x", UpToSeq: 1 << 40, Limit: 3}}, BlockingRoutes: []string{"r"}, BlockingLimit: 3,
		})
		for _, rs := range p.Ranges {
			w.old = append(w.old, rs.Records...)
		}
		return fmt.Sprint(p, err)
	case 11, 12:
		want := core.HoldRequest{KeylessSlots: part, KeylessLimit: d[2] % 3, CountDelivery: true}
		if len(w.old) > 0 {
			want.Refs = []core.Ref{w.old[d[4]%len(w.old)].Ref}
		}
		got, err := w.Hold(ctx, self, want)
		out := []any{err}
		for _, g := range got {
			out = append(out, g.Ref, g.Status, g.Deliveries)
		}
		return fmt.Sprint(out...)
	case 13:
		w.now = w.now.Add(time.Duration(d[2]%1500) * time.Millisecond)
		p, err := w.Due(ctx, self, []core.RouteSlots{part}, d[4]%4)
		w.old = append(w.old, p.Retries...)
		return fmt.Sprint(p, err)
	case 14:
		if len(w.old) == 0 {
			return ""
		}
		r := &w.old[d[4]%len(w.old)]
		o := []core.Outcome{
			core.Published(r), core.Retry(r, nil, time.Second), core.Abandon(r, waybill.ReasonRejected, nil), core.Release(r,
				time.Second, true),
		}[d[5]%4]
		return fmt.Sprint(w.Settle(ctx, self, []core.Outcome{o}))
	case 15:
		done, err := w.Clean(ctx, "c", time.Second)
		return fmt.Sprint(done, err)
	case 16:
		if d[2]%2 == 0 {
			done, err := w.Redrive(ctx, admin.RedriveRequest{All: true, Page: admin.PageRequest{Limit: 2}, Force: d[3]%2 == 0})
			return fmt.Sprint(done, err)
		}
		key := []string{"x", "y", "z"}[d[4]%3]
		rt := w.routes["r"]
		if rt == nil {
			return ""
		}
		heads := rt.keys[key].heads(0)
		for _, seq := range []int64{heads.Head(d[5]%2 == 0), heads.Next()} {
			if r := rt.bySeq[seq]; r != nil {
				c, err := w.Decide("r", key, r.env.ID, admin.HeadAction(1+d[3]%3))
				return fmt.Sprint(c != nil, err)
			}
		}
		return ""
	default:
		switch {
		case d[2]%20 == 0:
			w.img = w.Snapshot()
		case d[2]%20 == 1:
			w.Restore(w.img)
			w.txs = nil
		case len(w.old) > 0:
			r := w.old[d[4]%len(w.old)].Ref
			ok, err := w.ReleasePartition(ctx, self, core.PartitionState{
				Partition: core.SplitPartitions("r", 2)[d[5]%2], Term: int64(d[3] % 4),
				ReadAfter: r.Seq,
			}, []core.Ref{r})
			return fmt.Sprint(ok, err)
		}
		return ""
	}
}

// check compares everything that is derived with the records.
func (w *world) check(t *rapid.T) {
	rt := w.routes["r"]
	if rt == nil {
		return
	}
	type list struct{ name, got, want string }
	show := func(x *index) string {
		var out []int64
		for r := range x.all() {
			out = append(out, r.seq)
		}
		return fmt.Sprint(out)
	}
	rows := w.rows()
	of := func(fits func(*record) bool) string {
		var out []int64
		for _, r := range rows {
			if fits(r) {
				out = append(out, r.seq)
			}
		}
		return fmt.Sprint(out)
	}
	keyless := func(r *record) bool { return r.env.Key == "" }
	lists := []list{
		{"ready", show(&rt.ready), of((*record).ready)},
		{"free", show(&rt.free), of(func(r *record) bool { return r.ready() && keyless(r) && r.holder == 0 })},
		{"unready", show(&rt.unready), of((*record).blockReason)},
	}
	counts := map[countKind]int64{}
	for _, r := range rows {
		counts[kindOf(r)]++
	}
	if !maps.Equal(counts, rt.counts) {
		t.Fatalf("counts: %v, want %v", rt.counts, counts)
	}
	for _, key := range []string{"x", "y", "z"} {
		if k := rt.keys[key]; k != nil {
			lists = append(lists,
				list{key, show(&k.ready), of(func(r *record) bool { return r.ready() && r.env.Key == key })},
				list{key + " unready", show(&k.unready), of(func(r *record) bool { return r.blockReason() && r.env.Key == key })})
		} else if s := of(func(r *record) bool { return r.env.Key == key && (r.ready() || r.blockReason()) }); s != "[]" {
			t.Fatalf("key %s has no indexes, but %s", key, s)
		}
	}
	slices.SortFunc(rows, byDue)
	lists = append(lists, list{"timers", show(&rt.timers), of((*record).timer)}, list{"retries", show(&rt.retries), of((*record).retry)})
	for _, l := range lists {
		if l.got != l.want {
			t.Fatalf("%s: %s, want %s", l.name, l.got, l.want)
		}
	}
	byTime := func(name string, x *index, at func(*record) time.Time, fits func(*record) bool) {
		slices.SortFunc(rows, func(a, b *record) int { return cmp.Or(at(a).Compare(at(b)), cmp.Compare(a.seq, b.seq)) })
		if got, want := show(x), of(fits); got != want {
			t.Fatalf("%s: %s, want %s", name, got, want)
		}
	}
	byTime("aged", &rt.aged, func(r *record) time.Time { return r.since }, func(r *record) bool { return r.ready() && r.holder == 0 })
	byTime("expires", &rt.expires, func(r *record) time.Time { return r.env.Expires },
		func(r *record) bool { return r.live() && !r.env.Expires.IsZero() })
	for i := range rt.settled {
		byTime("settled", &rt.settled[i], func(r *record) time.Time { return r.settledAt }, func(r *record) bool {
			kind := 1
			if r.reason.Cancelled() {
				kind = 2
			}
			return kind == i && r.state == core.StateAbandoned && w.retention.Abandoned > 0
		})
	}
	owners := map[liveKey]int{}
	for _, r := range rows {
		if r.live() && r.dedupe != "" {
			if owners[r.liveKey()]++; w.holders[r.liveKey()] != r {
				t.Fatalf("%s does not have its dedupe key", r.env.ID)
			}
		}
	}
	if len(owners) != len(w.holders) {
		t.Fatalf("dedupe keys: %v, want %v", w.holders, owners)
	}
	held := 0
	for _, r := range rows {
		if rt.byID[r.env.ID] != r && !r.cancelled() || rt.bySeq[r.seq] != r {
			t.Fatalf("%s is not found", r.env.ID)
		}
		if r.lock != nil && r.lock.ended {
			t.Fatalf("%s is locked by a transaction that has ended", r.env.ID)
		}
		if r.holder != 0 {
			held++
			if _, ok := w.members[r.holder].held[r]; !ok || !r.live() {
				t.Fatalf("%s is not among the holds of %d", r.env.ID, r.holder)
			}
		}
	}
	for _, m := range w.members {
		held -= len(m.held)
	}
	if held != 0 {
		t.Fatalf("%d holds too few", held)
	}
	ids := []int64{}
	for _, tx := range w.running {
		ids = append(ids, tx.id)
	}
	if !slices.IsSorted(ids) {
		t.Fatalf("running: %v", ids)
	}
}
