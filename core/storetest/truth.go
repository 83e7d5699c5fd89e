package storetest

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// The checks whose names begin with "rules-" are truth tables: they bring records into all combinations of the facts
// that a rule asks for, by calls that an engine makes, and compare the store's answers and its stored records with
// package core/rules. A call is about all records at once, so that a table takes some dozens of calls.

// line is where a record stands.
type line uint8

const (
	inLine line = iota
	timer
	retry
)

func (l line) String() string { return [...]string{"ready", "timer", "retry"}[l] }

// past is what happened to a record before.
type past uint8

const (
	untouched past = iota
	unknown        // it was released, and may have arrived
	left           // the member that held it has left
	crashed        // the member that held it was removed
)

func (p past) String() string {
	return [...]string{"untouched", "released as unknown", "its holder left", "its holder died"}[p]
}

// A who is a session, as a table sees it.
type who uint8

const (
	nobody who = iota
	self
	other
)

func (w who) String() string { return [...]string{"nobody", "self", "another"}[w] }

// facts are one combination.
type facts struct {
	line                        line
	past                        past
	held, partition             who // its holder, and the owner of its partition
	keyed, cancellable, careful bool
	expires                     bool // soon
	follows                     bool // it has the key of the record before it
}

func (f facts) String() string {
	var more []string
	for text, is := range map[string]bool{
		"keyed": f.keyed, "cancellable": f.cancellable, "in a crash window": f.careful, "expired": f.expires,
	} {
		if is {
			more = append(more, ", "+text)
		}
	}
	slices.Sort(more)
	return fmt.Sprintf("%s, %s, held by %s, in a partition of %s%s", f.line, f.past, f.held, f.partition, strings.Join(more, ""))
}

// combinations returns all combinations that keep accepts. No member reads a timer, so nothing can have happened to it.
func combinations(keep func(f facts) bool) (out []facts) {
	for c := range product(int(retry)+1, int(crashed)+1, int(other)+1, int(other)+1, 2, 2, 2) {
		f := facts{
			line: line(c[0]), past: past(c[1]), held: who(c[2]), partition: who(c[3]),
			keyed: c[4] == 1, cancellable: c[5] == 1, careful: c[6] == 1,
		}
		if keep(f) && (f.line != timer || f.past == untouched && f.held == nobody) {
			out = append(out, f)
		}
	}
	return out
}

// product yields all choices of one of each of the numbers of options, the last of which changes first.
func product(options ...int) iter.Seq[[]int] {
	return func(yield func(choice []int) bool) {
		all := 1
		for _, n := range options {
			all *= n
		}
		for i := range all {
			choice := make([]int, len(options))
			for at, left := len(options)-1, i; at >= 0; at-- {
				choice[at], left = left%options[at], left/options[at]
			}
			if !yield(choice) {
				return
			}
		}
	}
}

// truth is a record in one combination, and its facts for the rules.
type truth struct {
	facts
	rules.Row
	key       string
	in        rules.Partition
	rec       core.Record // as it was read; not of a timer
	was, next rules.Row   // before the last step, and after the next one
	kind      core.NoticeKind
	tells     bool
	way       string // what is done with it
	got, want string
}

func (r *truth) String() string {
	if r.way == "" {
		return r.facts.String()
	}
	return r.way + ": " + r.facts.String()
}

// player is a member of a table.
type player struct {
	k *kit
	member
}

// table is a truth table: a route of 8 partitions, and records on it.
type table struct {
	k           *kit
	self, other *player
	rows        []*truth
	byID        map[string]*truth
}

// partitionOf returns the number of the partition of records with these facts: their owners and crash windows differ.
func partitionOf(f facts) uint8 {
	n := uint8(f.partition)
	if f.careful {
		n += 3
	}
	return n
}

const tablePartitions = 8

func (k *kit) player() *player {
	p := k.plays(newMember(tablePartitions, k.route))
	p.heartbeat(core.HeartbeatRequest{Join: true})
	return p
}

// plays returns the player of m, which leaves at the end of the check.
func (k *kit) plays(m member) *player {
	p := &player{k, m}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.players = append(k.players, p)
	return p
}

func (p *player) heartbeat(m core.HeartbeatRequest) core.Membership {
	return p.member.heartbeat(p.k, m)
}

func (p *player) give(from, to core.Session) { p.member.give(p.k, from, to) }

// own makes p the owner of all partitions, which are from's.
func (p *player) own(from core.Session) { p.give(from, p.Session) }

func (p *player) take(deliver bool, refs ...core.Ref) []core.HoldResult {
	return p.member.hold(p.k, core.HoldRequest{Refs: refs, CountDelivery: deliver})
}

// number is that of a partition of the route of a table.
func number(u core.Partition) uint8 { return u.From / (core.NumSlots / tablePartitions) }

// shareOut gives each partition of p to whom its number says.
func (t *table) shareOut(p *player) {
	p.transfer(t.k, p.Session, func(m *core.Transfer) { m.To = t.session(who(number(m.Partition) % 3)) })
}

// hold takes the records that of selects, which must work.
func (p *player) hold(t *table, of func(f facts) bool) {
	var refs []core.Ref
	for _, r := range t.rows {
		if of(r.facts) {
			refs = append(refs, r.Ref)
			r.Holder = p.Session
		}
	}
	for i, got := range p.take(false, refs...) {
		if got.Status != core.HoldGranted {
			p.k.fail("take of a record that nobody holds (%s) answered %v", t.byID[refs[i].ID].facts, got.Status)
		}
	}
}

// settle persists what fn makes of the records that of selects, which must work.
func (p *player) settle(t *table, of func(f facts) bool, fn func(r *core.Record) core.Outcome) {
	var out []core.Outcome
	for _, r := range t.rows {
		if of(r.facts) {
			out = append(out, fn(&r.rec))
			r.Version++
			r.rec.Version++
		}
	}
	res := p.k.store.Settle(p.k.ctx, p.Session, out)
	p.k.failIf(len(res) != len(out), "settle returned %d results for %d outcomes", len(res), len(out))
	p.k.must("settle", res.FirstErr())
}

// table brings records into all combinations of list.
func (k *kit) table(list []facts) *table {
	k.inspector()
	k.truths += len(list)
	t := &table{k: k, byID: map[string]*truth{}}
	first := k.player()
	first.own(0)
	t.stage(list)
	t.read(first)
	first.settle(t, func(f facts) bool { return f.line == retry }, func(r *core.Record) core.Outcome {
		r.Failed = true
		return core.Retry(r, errNo, far)
	})
	first.settle(t, func(f facts) bool { return f.past == unknown }, func(r *core.Record) core.Outcome { return core.Release(r, far, true) })
	first.hold(t, func(f facts) bool { return f.past == left })
	first.heartbeat(core.HeartbeatRequest{Leave: true})
	dead := k.player()
	dead.own(0)
	dead.hold(t, func(f facts) bool { return f.past == crashed })
	t.self, t.other = k.player(), k.player()
	t.self.heartbeat(core.HeartbeatRequest{Evict: []core.Eviction{{Session: dead.Session, Heartbeats: dead.Heartbeats}}})
	for _, r := range t.rows {
		if r.past == crashed {
			r.Crashes, r.Version = 1, r.Version+1
		}
	}
	t.self.own(0)
	t.windows()
	t.self.hold(t, func(f facts) bool { return f.held == self })
	t.self.give(t.self.Session, t.other.Session)
	t.other.hold(t, func(f facts) bool { return f.held == other })
	t.shareOut(t.other)
	t.know()
	return t
}

// windows stores the crash windows, and no other hints.
func (t *table) windows() {
	t.self.transfer(t.k, t.self.Session, func(m *core.Transfer) {
		m.To = t.self.Session
		if n := number(m.Partition); n >= 3 && n < 6 {
			m.MaybeOutUpTo = math.MaxInt32
		}
	})
}

func (t *table) session(w who) core.Session {
	return [...]core.Session{0, t.self.Session, t.other.Session}[w]
}

// stage stages a record for each combination, in the slots of its partition.
func (t *table) stage(list []facts) {
	k := t.k
	const size = core.NumSlots / tablePartitions
	msgs := make([]waybill.Message, 0, len(list))
	for i, f := range list {
		id, key, partition := waybill.NewID(), "", partitionOf(f)
		if f.follows {
			key = t.rows[i-1].key
		}
		for n := 0; f.keyed && (key == "" || core.SlotOf(k.route, key, "")/size != partition); n++ {
			key = fmt.Sprintf("k-%d-%d", i, n)
		}
		for !f.keyed && core.SlotOf(k.route, "", id)/size != partition {
			id = waybill.NewID()
		}
		opts := []waybill.MessageOption{waybill.ID(id)}
		if f.keyed {
			opts = append(opts, waybill.Key(key))
		}
		if f.cancellable {
			opts = append(opts, waybill.DedupeKey(id))
		}
		if f.line == timer {
			opts = append(opts, waybill.Delay(far))
		}
		if f.expires {
			opts = append(opts, waybill.TTL(short))
		}
		msgs = append(msgs, k.msg(opts...))
		r := &truth{facts: f, key: key, Row: rules.Row{
			Ref: core.Ref{Route: k.route, ID: id, Version: 1}, Slot: core.SlotOf(k.route, key, id), State: core.StatePending,
			Keyed: f.keyed, Cancellable: f.cancellable, Waits: f.line != inLine, MaybeSent: f.past != untouched,
		}}
		if f.line == retry {
			r.State, r.Attempts = core.StateFailed, 1
		}
		t.rows, t.byID[id] = append(t.rows, r), r
	}
	tx := k.raw()
	k.mustStage(tx, msgs...)
	k.commit(tx)
}

// read finds the records that are in line.
func (t *table) read(p *player) {
	found := 0
	for after, pages := int64(0), 0; ; pages++ {
		result := p.look(core.ReadRequest{
			Ranges: []core.Range{{RouteSlots: all(t.k.route)[0], AfterSeq: after, UpToSeq: math.MaxInt64, Limit: pageSize}}, BlockingLimit: pageSize, Bytes: math.MaxInt32,
		})
		t.k.failIf(len(result.Ranges) != 1 || pages > maxPages, "read answered %d ranges, want 1, or its pages do not end", len(result.Ranges))
		for _, rec := range result.Ranges[0].Records {
			if r := t.byID[rec.ID]; r != nil {
				r.rec, r.Ref = rec, rec.Ref
				found++
			}
			after = max(after, rec.Seq)
		}
		if !result.Ranges[0].More {
			break
		}
	}
	want := 0
	for _, r := range t.rows {
		if r.line != timer {
			want++
		}
	}
	t.k.failIf(found != want, "%d records were read, want %d", found, want)
}

func (p *player) look(request core.ReadRequest) core.ReadResult {
	result, err := p.k.store.Read(p.k.ctx, p.Session, request)
	p.k.must("read", err)
	p.k.failIf(!result.IsMember, "a member read, and the answer says that it is none")
	return result
}

// know fills in the results of the last steps, and compares them with the stored records: the table is as it was meant
// to be.
func (t *table) know() {
	stored := t.stored()
	for _, r := range t.rows {
		r.Holder, r.in.Owner = t.session(r.held), t.session(r.partition)
		if r.careful {
			r.in.MaybeOutUpTo = math.MaxInt32
		}
		if st := stored[r.ID]; st != nil {
			r.Seq = st.Seq
		}
		r.rec.Ref, r.rec.HeldBy, r.rec.Crashes, r.rec.Attempts = r.Ref, r.Holder, r.Crashes, r.Attempts
	}
	t.compare("before", func(r *truth) *rules.Row { return &r.Row })
}

// stored returns the records as operators see them.
func (t *table) stored() map[string]*admin.Stored { return t.listed(admin.Filter{}) }

// listed returns the records of the route that f selects.
func (t *table) listed(f admin.Filter) map[string]*admin.Stored {
	f.Routes = []string{t.k.route}
	out := map[string]*admin.Stored{}
	t.k.pages("a list", admin.PageRequest{Limit: admin.MaxPageLimit, Budget: 1_000_000}, func(page admin.PageRequest) int64 {
		l, err := t.k.inspector().List(t.k.ctx, f, page)
		t.k.must("list", err)
		for i := range l.Records {
			out[l.Records[i].Envelope.ID] = &l.Records[i]
		}
		return l.Next
	})
	return out
}

// seen is what the store shows of a record.
type seen struct {
	State                         core.State
	Reason                        waybill.Reason
	Holder                        core.Session
	Version                       int64
	Attempts, Deliveries, Crashes int
	Waits, Cancellable            bool
	Why                           core.BlockReason
}

// compare compares what is stored with what want says of each record; nil = it is gone. Of a record that has ended only
// operators see something, and it may be gone.
func (t *table) compare(when string, want func(r *truth) *rules.Row) {
	got := t.seen()
	t.differences(when, func(r *truth) (string, string) {
		is, was := want(r), got[r.ID]
		switch {
		case was == nil && (is == nil || !is.Live() && core.RetentionClassOf(is.State, is.Reason) != core.RetentionAbandoned):
			return "", ""
		case is == nil || was == nil:
			return fmt.Sprint("stored: ", was != nil), fmt.Sprint("stored: ", is != nil)
		}
		to := seen{State: is.Shown(), Reason: is.Reason, Attempts: is.Attempts, Crashes: is.Crashes, Why: is.Obstructs(t.self.Session, true)}
		if is.Live() && !is.Timer() { // nobody reads others
			to.Holder, to.Version, to.Waits = is.Holder, is.Version, is.Holder == 0 && is.Waits
			if !to.Waits {
				to.Deliveries, to.Cancellable = is.Deliveries, is.Cancellable
			}
		}
		return fmt.Sprintf("%+v", *was), fmt.Sprintf("%+v", to)
	})
}

// seen returns the store's view of all records, for operators and for members.
func (t *table) seen() map[string]*seen {
	out := map[string]*seen{}
	for id, st := range t.stored() {
		out[id] = &seen{State: st.State, Reason: st.Reason, Attempts: st.Attempts, Crashes: st.Crashes}
	}
	of := func(id string) *seen {
		t.k.failIf(out[id] == nil, "a member reads a record that no operator sees")
		return out[id]
	}
	refs := make([]core.Ref, len(t.rows))
	for i, r := range t.rows {
		refs[i] = r.Ref
	}
	result := t.self.look(core.ReadRequest{Recheck: refs, BlockingLimit: pageSize, Bytes: math.MaxInt32})
	for i := range result.Rechecked {
		r := &result.Rechecked[i]
		g := of(r.ID)
		g.Holder, g.Version, g.Deliveries, g.Cancellable = r.HeldBy, r.Version, r.Deliveries, r.Cancellable
		t.k.failIf(r.Attempts != g.Attempts || r.Crashes != g.Crashes,
			"a member reads %d attempts and %d crashes, an operator %d and %d", r.Attempts, r.Crashes, g.Attempts, g.Crashes)
	}
	for _, w := range result.RecheckedBlocking {
		g := of(w.ID)
		g.Waits, g.Holder, g.Version = true, w.HeldBy, w.Version
	}
	for more, after, pages := true, int64(0), 0; more; pages++ {
		result := t.self.look(core.ReadRequest{NewlyOwned: all(t.k.route), NewlyOwnedAfter: after, BlockingRoutes: []string{t.k.route}, BlockingLimit: pageSize, Bytes: math.MaxInt32})
		for _, w := range result.Blocking {
			of(w.ID).Why = w.Why
			after = max(after, w.Seq)
		}
		more = result.MoreBlocking
		t.k.failIf(pages > maxPages, "the pages of what waits do not end")
	}
	return out
}

// differences fails the check if fn answers two texts that differ, of any record.
func (t *table) differences(when string, fn func(r *truth) (got, want string)) {
	var bad []string
	for _, r := range t.rows {
		if got, want := fn(r); got != want {
			bad = append(bad, fmt.Sprintf("%s: got %s, want %s", r, got, want))
		}
	}
	if len(bad) > 0 {
		t.k.fail("%s: %d of %d records are not what the rules say:\n%s", when, len(bad), len(t.rows), strings.Join(bad[:min(len(bad), 6)], "\n"))
	}
}
