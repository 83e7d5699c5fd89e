package storetest

import (
	"errors"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill/core"
)

var modelChecks = []named{
	{"model-in-key-order", func(k *kit) {
		k.keyed()
		checkModel(k, core.OrderPerKey)
	}},
	{"model-in-best-effort", func(k *kit) { checkModel(k, core.OrderBestEffort) }},
}

// modelTime and modelRuns bound the search for a sequence of operations in which store and model differ.
const (
	modelTime = 10 * time.Second
	modelRuns = 40
)

// modelPatience is how long a store may take to hand out what can be claimed.
const modelPatience = 2 * time.Second

// modelLease is a lease that the model lets expire.
const modelLease = 30 * time.Millisecond

// checkModel runs random operations on the store and on a small model of it, and compares what can be seen after each:
// what claims return, what settles answer, and the stored records if the harness can look. The model knows no time but
// now and far. DB-01..04, OR-02, OR-03, ST-01, ST-05.
func checkModel(k *kit, o core.Order) {
	var out recorder
	runs, end := 0, time.Now().Add(modelTime)
	func() {
		defer func() {
			if p := recover(); p != nil && p != any(&out) {
				panic(p)
			}
		}()
		rapid.Check(&out, func(t *rapid.T) {
			if runs++; !out.found && (runs > modelRuns || time.Now().After(end)) {
				return // enough; a failure that was found is still reduced
			}
			m := &model{k: newKit(k.ctx, k.h), t: t, order: o}
			m.k.onFail = func(err error) {
				out.found = true
				t.Fatalf("%v", err)
			}
			defer m.k.close()
			m.run()
		})
	}()
	if out.failed {
		k.fail("the store differs from the model:\n%s", strings.Join(out.lines, "\n"))
	}
}

// model is what a store must be like. Its records are in staging order.
type model struct {
	k       *kit
	t       *rapid.T
	order   core.Order
	records []*modelRecord
	held    []core.Record // every claim ever made
}

type modelRecord struct {
	stored  StoredRecord
	key     string
	failed  bool
	later   bool  // due in an hour
	claimed bool  // ever
	expired bool  // its lease is over
	token   int64 // of the current claim; 0 = none
	session int64 // of the current claim
}

func (m *model) run() {
	m.t.Repeat(map[string]func(*rapid.T){
		"":         func(*rapid.T) { m.compare() },
		"stage":    func(*rapid.T) { m.stage() },
		"claim":    func(*rapid.T) { m.claim(false) },
		"claimAll": func(*rapid.T) { m.claimAll() },
		"crash":    func(*rapid.T) { m.claim(true) },
		"alone":    func(*rapid.T) { m.alone() },
		"settle":   func(*rapid.T) { m.settle() },
	})
}

func (m *model) find(id string) *modelRecord {
	for _, r := range m.records {
		if r.stored.ID == id {
			return r
		}
	}
	return nil
}

func (m *model) live(r *modelRecord) bool { return !r.stored.State.Terminal() }

// waiting reports that r cannot be claimed for reasons of its own.
func (m *model) waiting(r *modelRecord) bool {
	return r.later || r.stored.State == core.StateProcessing && !r.expired
}

func (m *model) suspect(r *modelRecord) bool {
	n := r.stored.Crashes
	if r.expired {
		n++
	}
	return n >= core.SuspectCrashes
}

// claimable returns what an ordinary claim of session may return: of each key any prefix. What session 0 may get must be
// returned at last; what a session may get beyond that, behind its own leases, a store may keep back.
func (m *model) claimable(session int64) []*modelRecord {
	return slices.DeleteFunc(m.ready(false, session), m.suspect)
}

// suspects returns what may be claimed alone.
func (m *model) suspects() []*modelRecord {
	return slices.DeleteFunc(m.ready(true, 0), func(r *modelRecord) bool { return !m.suspect(r) })
}

// ready returns what is due and not behind something that is waited for; of each key only the head if headsOnly. A lease
// of session itself is not waited for, unless something before it can be claimed.
func (m *model) ready(headsOnly bool, session int64) []*modelRecord { //nolint:revive // the two callers are above
	closed, first := map[string]bool{}, map[string]bool{}
	if m.order == core.OrderPerKey {
		for _, r := range m.records {
			if r.key == "" || !m.live(r) {
				continue
			}
			waits := r.claimed && m.waiting(r)
			own := waits && session != 0 && r.session == session && r.token != 0
			if waits && !own || own && first[r.key] {
				closed[r.key] = true
			}
			first[r.key] = first[r.key] || !m.waiting(r)
		}
	}
	var out []*modelRecord
	for _, r := range m.records {
		if !m.live(r) || m.waiting(r) || closed[r.key] {
			continue
		}
		if m.order == core.OrderPerKey && r.key != "" && (headsOnly || m.suspect(r)) {
			closed[r.key] = true // only the head can be claimed alone, and a suspect ends the prefix
		}
		out = append(out, r)
	}
	return out
}

func (m *model) stage() {
	tx := m.k.begin()
	var fresh []*modelRecord
	for range rapid.IntRange(1, 2).Draw(m.t, "calls") {
		var msgs []core.Message
		var dups []bool
		for range rapid.IntRange(1, 3).Draw(m.t, "messages") {
			r := &modelRecord{key: rapid.SampledFrom([]string{"", "a", "b"}).Draw(m.t, "key")}
			msg := m.k.msg(core.Key(r.key))
			if r.later = rapid.IntRange(0, 4).Draw(m.t, "later") == 0; r.later {
				msg.Delay = far
			}
			known := append(slices.Clone(m.records), fresh...)
			known = slices.DeleteFunc(known, func(r *modelRecord) bool { return r.stored.State == core.StatePublished })
			dup := len(known) > 0 && rapid.IntRange(0, 5).Draw(m.t, "duplicate") == 0
			if dup {
				msg.ID = rapid.SampledFrom(known).Draw(m.t, "of").stored.ID
			} else {
				r.stored = StoredRecord{ID: msg.ID, State: core.StatePending}
				fresh = append(fresh, r)
			}
			msgs, dups = append(msgs, msg), append(dups, dup)
		}
		for i, s := range m.k.stageIn(tx, msgs...) {
			if s.Duplicate != dups[i] {
				m.k.fail("message %d of %d is a duplicate: %v; stage says %v", i, len(dups), dups[i], s.Duplicate)
			}
		}
	}
	if rapid.IntRange(0, 3).Draw(m.t, "rollback") == 0 {
		m.k.rollback(tx)
		return
	}
	m.k.commit(tx)
	m.records = append(m.records, fresh...)
}

func (m *model) session() int64 { return rapid.Int64Range(0, 2).Draw(m.t, "session") }

// claim claims some records, and lets their leases expire if crash is set.
func (m *model) claim(crash bool) { //nolint:revive // two operations of one kind
	n, d := rapid.IntRange(1, 5).Draw(m.t, "limit"), long
	if crash {
		d = modelLease
	}
	s := m.session()
	got := m.k.claim(limit(n), order(m.order), lease(d), inSession(s)).Records
	m.took(got, m.claimable(s), s)
	if crash && len(got) > 0 {
		m.k.sleep(2 * modelLease)
		for i := range got {
			m.find(got[i].Envelope.ID).expired = true
		}
	}
}

// claimAll claims until the store says that there is nothing more, which must be so.
func (m *model) claimAll() {
	for deadline := time.Now().Add(modelPatience); ; {
		s := m.session()
		allowed := m.claimable(s)
		c := m.k.claim(order(m.order), inSession(s))
		m.took(c.Records, allowed, s)
		if len(c.Records) > 0 || c.More {
			continue
		}
		left, suspects := len(m.claimable(0)), len(m.suspects())
		if left == 0 && (suspects == 0 || c.Suspects) {
			return
		}
		if time.Now().After(deadline) {
			m.k.fail("%d records could be claimed, but are not; there are %d suspects, reported: %v", left, suspects, c.Suspects)
		}
		m.k.sleep(10 * pause)
	}
}

// alone claims a suspect if there is one.
func (m *model) alone() {
	allowed := m.suspects()
	for deadline := time.Now().Add(modelPatience); ; m.k.sleep(10 * pause) {
		got := m.k.claim(order(m.order), alone).Records
		if len(got) > 0 || len(allowed) == 0 {
			if len(got) > 0 {
				if !slices.Contains(allowed, m.find(got[0].Envelope.ID)) {
					m.k.fail("a record was claimed as a suspect that is none, or not at the head of its key")
				}
				m.take(&got[0], 0)
			}
			return
		}
		if time.Now().After(deadline) {
			m.k.fail("%d suspects could be claimed alone, but are not", len(allowed))
		}
	}
}

// took checks the records of one claim against what was allowed: per key a prefix, in staging order.
func (m *model) took(got []core.Record, allowed []*modelRecord, session int64) {
	at := -1
	next := map[string]int{} // records of the key in got
	for i := range got {
		r := m.find(got[i].Envelope.ID)
		pos := slices.Index(allowed, r)
		if r == nil || pos < 0 {
			m.k.fail("record %d of a claim cannot be claimed: %+v", i, got[i].Envelope)
		}
		if pos <= at {
			m.k.fail("record %d of a claim is not in staging order", i)
		}
		at = pos
		if m.order == core.OrderPerKey && r.key != "" {
			var mine []*modelRecord
			for _, a := range allowed {
				if a.key == r.key {
					mine = append(mine, a)
				}
			}
			if mine[next[r.key]] != r {
				m.k.fail("a claim skipped a record of key %q", r.key)
			}
			next[r.key]++
		}
	}
	for i := range got {
		m.take(&got[i], session)
	}
}

// take notes a claim and checks what it says.
func (m *model) take(got *core.Record, session int64) {
	r := m.find(got.Envelope.ID)
	if r.expired {
		r.stored.Crashes++
	}
	if got.Attempts != r.stored.Attempts || got.Crashes != r.stored.Crashes || got.Failed != r.failed || got.Envelope.Key != r.key {
		m.k.fail("claimed with attempts %d, crashes %d, failed %v, key %q; want %d, %d, %v, %q",
			got.Attempts, got.Crashes, got.Failed, got.Envelope.Key, r.stored.Attempts, r.stored.Crashes, r.failed, r.key)
	}
	if slices.ContainsFunc(m.held, func(h core.Record) bool { return h.Seq == got.Seq && h.Lease.Token == got.Lease.Token }) {
		m.k.fail("a token was given twice")
	}
	r.stored.State, r.claimed, r.expired, r.token = core.StateProcessing, true, false, got.Lease.Token
	r.session = session
	m.held = append(m.held, *got)
}

// settle settles one to three different claims, of which some may be stale.
func (m *model) settle() {
	if len(m.held) == 0 {
		m.t.Skip("nothing was claimed yet")
	}
	picked := rapid.SliceOfNDistinct(rapid.IntRange(0, len(m.held)-1), 1, min(3, len(m.held)), rapid.ID[int]).Draw(m.t, "claims")
	seen := map[int64]bool{}
	picked = slices.DeleteFunc(picked, func(i int) bool {
		again := seen[m.held[i].Seq]
		seen[m.held[i].Seq] = true
		return again
	})
	var out []core.Outcome
	for _, i := range picked {
		r := &m.held[i]
		delay := rapid.SampledFrom([]time.Duration{0, far}).Draw(m.t, "delay")
		cause := errors.New(rapid.SampledFrom([]string{"one", "two"}).Draw(m.t, "error"))
		switch rapid.SampledFrom([]string{"published", "retry", "release", "abandon"}).Draw(m.t, "outcome") {
		case "published":
			out = append(out, core.Published(r))
		case "retry":
			out = append(out, core.Retry(r, cause, delay))
		case "release":
			out = append(out, core.Release(r, delay))
		default:
			reason := rapid.SampledFrom([]core.Reason{core.ReasonRejected, core.ReasonCrashed, core.ReasonExpired}).Draw(m.t, "reason")
			out = append(out, core.Abandon(r, reason, cause))
		}
	}
	for i, err := range m.k.settleAll(out...) {
		o, r := &out[i], m.find(out[i].ID())
		if r.token == 0 || r.token != o.Token() {
			if !errors.Is(err, core.ErrLeaseLost) {
				m.k.fail("a stale outcome (%s) was answered with %v", o.Event(), err)
			}
			continue
		}
		m.k.must("settle", err)
		r.token, r.expired, r.later = 0, false, o.RetryIn() > 0
		r.stored.State, r.stored.Reason = o.State(), o.Reason()
		r.failed = r.failed || o.State() == core.StateFailed
		if o.CountsAttempt() {
			r.stored.Attempts++
		}
		if o.Error() != "" {
			r.stored.LastError = o.Error()
		}
	}
}

// compare looks at the stored records, as far as the harness can.
func (m *model) compare() {
	in, ok := core.As[Inspector](m.k.h)
	if !ok {
		return
	}
	stored, err := in.Records(m.k.ctx, m.k.route)
	m.k.must("look at stored records", err)
	for _, r := range m.records {
		i := slices.IndexFunc(stored, func(s StoredRecord) bool { return s.ID == r.stored.ID })
		switch {
		case i < 0 && m.live(r):
			m.k.fail("a record in state %s is not stored any more", r.stored.State)
		case i >= 0 && r.stored.State != core.StatePublished && stored[i] != r.stored:
			m.k.fail("stored %+v, want %+v", stored[i], r.stored)
		case i >= 0 && stored[i].State != r.stored.State:
			m.k.fail("stored in state %s, want %s", stored[i].State, r.stored.State)
		}
	}
	for _, s := range stored {
		if m.find(s.ID) == nil {
			m.k.fail("a record is stored that was rolled back, or never staged: %+v", s)
		}
	}
}
