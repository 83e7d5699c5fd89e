package checker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Ref names a message on a route.
type Ref struct{ Route, ID string }

// Rule is what a route promises.
type Rule struct{ PerKey, Block bool }

// Options configures a Ledger.
type Options struct {
	// Routes are the routes of the history.
	Routes map[string]Rule
	// Now is the store's clock.
	Now func() time.Time
	// Exact makes calls of the store run one at a time, so that positions are exact, and takes the store's sequence for
	// the staged order. Without it only messages whose transactions did not overlap have an order.
	Exact bool
	// Zombies says that copies of a message may arrive long after their relay gave them up, so that one that was given up
	// or withdrawn may still arrive, out of order.
	Zombies bool
	// Slack is by how much the clocks of stores and ledger may differ.
	Slack time.Duration
	// Unseen says that some relays are not decorated, so that nothing is known of what the broker refused them.
	Unseen bool
}

// Ledger keeps what happened in one history.
type Ledger struct {
	opts Options
	late sync.WaitGroup
	over bool // nothing may happen late any more

	mu       sync.Mutex
	pos      int
	txs      int
	msgs     map[Ref]*message
	arrivals []Arrival
	problems []string
	trace    []line
}

// Arrival is one arrival at the queue.
type Arrival struct {
	Ref
	Key, Body string
	// Claimed is when the claim was made that led to it; zero = unknown.
	Claimed time.Time
	pos     int
}

type fate uint8

const (
	open fate = iota
	committed
	rolledBack
	unknown
)

type message struct {
	Ref
	key, body    string
	tx, at       int // its transaction, and its place in it
	began, ended int // positions
	fate         fate
	scheduled    bool
	due          time.Time // at the latest
	mayExpire    bool
	seq          int64
	lease        lease
	firstClaim   time.Time
	refusals     int
	unroutable   bool
	givenUp      []giving
	forced       bool
	withdrawn    []withdrawal
	first        int  // its first arrival: an index, from 1
	invented     bool // seen before its transaction was known to have ended
}

type lease struct {
	owner   string
	token   int64
	claimed time.Time
	until   time.Time
}

// giving is a time for which a message was abandoned.
type giving struct {
	reason   core.Reason
	from, to int // positions; to 0 = for good
}

type withdrawal struct {
	status core.CancelStatus
	pos    int
	sure   bool // its transaction was committed for sure
}

// NewLedger returns an empty ledger.
func NewLedger(opts Options) *Ledger { return &Ledger{opts: opts, msgs: map[Ref]*message{}} }

func (l *Ledger) problem(format string, a ...any) {
	if len(l.problems) < 20 {
		l.problems = append(l.problems, fmt.Sprintf("at %d: ", l.pos)+fmt.Sprintf(format, a...))
	}
}

// line is an entry for whoever reads the history. It is formatted when somebody does.
type line struct {
	pos    int
	at     time.Time
	format string
	args   []any
}

func (l *line) String() string {
	return fmt.Sprintf("%4d %s ", l.pos, l.at.Format("04:05.000")) + fmt.Sprintf(l.format, l.args...)
}

// note moves on by one position and keeps a line.
func (l *Ledger) note(format string, args ...any) {
	l.pos++
	l.trace = append(l.trace, line{l.pos, l.opts.Now(), format, args})
}

// Note keeps a line in the history.
func (l *Ledger) Note(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(format, a...)
}

// Trace returns the lines that name one of words; all lines without words.
func (l *Ledger) Trace(words ...string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for i := range l.trace {
		text := l.trace[i].String()
		if len(words) == 0 || slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) }) {
			b.WriteString(text + "\n")
		}
	}
	return b.String()
}

// Do makes one call of the store and then notes what came of it.
func (l *Ledger) Do(call, note func()) {
	if !l.opts.Exact {
		call()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opts.Exact {
		call()
	}
	note()
}

// later runs fn beside its caller. After Wait it never happens, which is as good a fault.
func (l *Ledger) later(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.late.Go(fn)
	}
}

// Wait waits for calls that happen late. It ends the history: from now on there are none.
func (l *Ledger) Wait() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.late.Wait()
}

// Tx is a producer's transaction as the ledger sees it. It belongs to one goroutine.
type Tx struct {
	l         *Ledger
	id        int
	began     int
	staged    []*message
	withdrawn []pendingWithdrawal
}

type pendingWithdrawal struct {
	ref    Ref
	status core.CancelStatus
}

// Begin notes that a transaction begins.
func (l *Ledger) Begin() *Tx {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pos++
	l.txs++
	return &Tx{l: l, id: l.txs, began: l.pos}
}

// Staged notes that m was staged on its one route, with this answer. Call it before the commit.
func (tx *Tx) Staged(m *core.Message, s core.Staged) {
	if s.Duplicate {
		return
	}
	msg := &message{
		Ref: Ref{s.Route, s.ID}, key: m.Key, body: string(m.Body), tx: tx.id, at: len(tx.staged), began: tx.began,
		scheduled: m.Delay > 0, mayExpire: m.TTL > 0 || !m.Expires.IsZero(),
	}
	if m.Delay > 0 {
		msg.due = tx.l.opts.Now().Add(m.Delay + tx.l.opts.Slack)
	}
	tx.staged = append(tx.staged, msg)
}

// Withdrawn notes the answer to a Cancel or a Replace of a message in the transaction.
func (tx *Tx) Withdrawn(ref Ref, status core.CancelStatus) {
	tx.withdrawn = append(tx.withdrawn, pendingWithdrawal{ref, status})
}

// Commit commits by means of fn. Without an exact ledger an error leaves open what became of the transaction.
func (tx *Tx) Commit(fn func() error) error {
	var err error
	tx.l.Do(func() { err = fn() }, func() {
		switch {
		case err == nil:
			tx.end(committed)
		case tx.l.opts.Exact:
			tx.end(rolledBack)
		default:
			tx.end(unknown)
		}
	})
	return err
}

// Rollback rolls back by means of fn.
func (tx *Tx) Rollback(fn func()) { tx.l.Do(fn, func() { tx.end(rolledBack) }) }

func (tx *Tx) end(f fate) {
	l := tx.l
	for _, w := range tx.withdrawn {
		l.note("withdrawn %s/%s: %s, transaction %d", w.ref.Route, w.ref.ID, w.status, f)
		for _, m := range tx.staged { // it may be of the same transaction
			if m.Ref == w.ref && w.status == core.CancelDone {
				m.fate = rolledBack
			}
		}
		if m := l.msgs[w.ref]; m != nil && f != rolledBack && (w.status == core.CancelDone || w.status == core.CancelMaybe) {
			m.withdrawn = append(m.withdrawn, withdrawal{w.status, l.pos, f == committed})
		}
	}
	for _, m := range tx.staged {
		l.note("staged %s/%s key %q due %s tx %d fate %d", m.Route, m.ID, m.key, m.due, m.tx, f)
		if m.fate == open {
			m.fate = f
		}
		m.ended = l.pos
		if old := l.msgs[m.Ref]; old == nil || old.fate == rolledBack {
			if old != nil {
				m.first = old.first
			}
			if old != nil && old.invented {
				m.seq, m.lease, m.firstClaim, m.refusals, m.unroutable, m.givenUp = old.seq, old.lease, old.firstClaim, old.refusals, old.unroutable, old.givenUp
			}
			l.msgs[m.Ref] = m
		}
	}
}

// get returns what is known of a message. One that was never staged is invented, as rolled back.
func (l *Ledger) get(r Ref) *message {
	m := l.msgs[r]
	if m == nil {
		m = &message{Ref: r, fate: rolledBack, invented: true}
		l.msgs[r] = m
	}
	return m
}

// claimed notes a claim by owner, which was made at now or a little later. The ledger is locked.
func (l *Ledger) claimed(owner string, req *core.ClaimRequest, c *core.Claim, now time.Time) {
	for i := range c.Records {
		r := &c.Records[i]
		m := l.get(Ref{r.Route, r.Envelope.ID})
		l.note("claim by %s session %x: %s/%s key %q seq %d attempts %d crashes %d token %d", owner, uint16(req.Session), r.Route, r.Envelope.ID, r.Envelope.Key, r.Seq, r.Attempts, r.Crashes, r.Lease.Token)
		if m.seq == 0 {
			m.seq = r.Seq
		}
		if l.opts.Exact {
			if m.lease.token != 0 && now.Before(m.lease.until) {
				l.problem("overlap: %s claims %s/%s, which %s has leased for %s", owner, m.Route, m.ID, m.lease.owner, m.lease.until.Sub(now))
			}
			if m.fate != committed {
				l.problem("phantom: %s claims %s/%s, which was not committed", owner, m.Route, m.ID)
			}
			if l.opts.Routes[m.Route].Block && m.key != "" {
				l.passed(m, "claimed")
			}
		}
		if r.Attempts > m.refusals && !l.opts.Unseen {
			l.problem("attempts: %s/%s has %d attempts; it was refused %d times", m.Route, m.ID, r.Attempts, m.refusals)
		}
		m.lease = lease{owner, r.Lease.Token, now, now.Add(req.Lease)}
		if m.firstClaim.IsZero() {
			m.firstClaim = now
		}
	}
}

// passed reports abandoned heads that block the key of m.
func (l *Ledger) passed(m *message, what string) {
	for _, o := range l.msgs {
		if o.Route == m.Route && o.key == m.key && o != m && o.seq != 0 && o.seq < m.seq && o.blocks() {
			l.problem("passed: %s/%s (seq %d) is %s behind %s (seq %d), which is abandoned (%s) and blocks key %s", m.Route, m.ID, m.seq, what, o.ID, o.seq, o.givenUp[len(o.givenUp)-1].reason, m.key)
		}
	}
}

// blocks reports whether m is abandoned, so that it blocks its key on a route that says so.
func (m *message) blocks() bool {
	n := len(m.givenUp)
	return n > 0 && m.givenUp[n-1].to == 0 && m.givenUp[n-1].reason.Blocks()
}

// extended notes that a lease goes on from now.
func (l *Ledger) extended(r *core.Record, d time.Duration) {
	m := l.get(Ref{r.Route, r.Envelope.ID})
	l.note("extended %s/%s token %d", m.Route, m.ID, r.Lease.Token)
	if m.lease.token == r.Lease.Token {
		m.lease.until = l.opts.Now().Add(d)
	}
}

// settled notes an outcome that was stored.
func (l *Ledger) settled(owner string, o *core.Outcome) {
	m := l.get(Ref{o.Route(), o.ID()})
	l.note("settle by %s: %s/%s %s %s in %s token %d", owner, m.Route, m.ID, o.Event(), o.Reason(), o.RetryIn(), o.Token())
	if l.opts.Exact && m.lease.token != o.Token() {
		l.problem("fencing: %s settled %s/%s with token %d; the lease's is %d", owner, m.Route, m.ID, o.Token(), m.lease.token)
	}
	if m.lease.token == o.Token() {
		m.lease = lease{}
	}
	switch o.State() {
	case core.StatePublished:
		if m.first == 0 && l.opts.Exact {
			l.problem("lost: %s settled %s/%s as published; it has not arrived", owner, m.Route, m.ID)
		}
	case core.StateAbandoned:
		m.givenUp = append(m.givenUp, giving{reason: o.Reason(), from: l.pos})
	case core.StatePending, core.StateFailed, core.StateNone, core.StateProcessing:
	}
}

// Decide makes an operator's decision by means of fn: the message was skipped or parked (reason), or requeued (none).
func (l *Ledger) Decide(ref Ref, reason core.Reason, forced bool, fn func() (done bool)) {
	var done bool
	l.Do(func() { done = fn() }, func() {
		if !done {
			return
		}
		m := l.get(ref)
		l.note("decided %s/%s: %q forced %v", ref.Route, ref.ID, reason, forced)
		if n := len(m.givenUp); n > 0 && m.givenUp[n-1].to == 0 {
			m.givenUp[n-1].to = l.pos
		}
		m.forced = m.forced || forced
		if reason != core.ReasonNone {
			m.givenUp = append(m.givenUp, giving{reason: reason, from: l.pos})
		}
	})
}

// Swept notes by means of fn that an expired message was abandoned while it waited.
func (l *Ledger) Swept(refs func() []Ref) {
	var gone []Ref
	l.Do(func() { gone = refs() }, func() {
		for _, r := range gone {
			m := l.get(r)
			l.note("swept %s/%s", r.Route, r.ID)
			m.givenUp = append(m.givenUp, giving{reason: core.ReasonExpired, from: l.pos})
		}
	})
}

// sending notes that owner begins to publish and returns when each message was claimed.
func (l *Ledger) sending(owner, route string, batch []core.Envelope) []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.opts.Now()
	out := make([]time.Time, len(batch))
	for i := range batch {
		m := l.get(Ref{route, batch[i].ID})
		l.note("send by %s: %s/%s", owner, route, m.ID)
		if m.lease.owner == owner {
			out[i] = m.lease.claimed
		}
		if l.opts.Exact && (m.lease.owner != owner || !now.Before(m.lease.until)) {
			l.problem("lease: %s publishes %s/%s, whose lease is %s's and ends %s", owner, route, m.ID, m.lease.owner, m.lease.until.Format("04:05.000"))
		}
	}
	return out
}

// Refused notes that the broker refused a message with err, which costs an attempt.
func (l *Ledger) Refused(route, id string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.get(Ref{route, id})
	m.refusals++
	m.unroutable = m.unroutable || errors.Is(err, core.ErrUnroutable)
	l.note("refused %s/%s: %v", route, id, err)
}

// Arrived notes that a message stands in the queue. A zero time says that it is not known when it was claimed.
func (l *Ledger) Arrived(route string, e *core.Envelope, claimed time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.get(Ref{route, e.ID})
	l.note("arrived %s/%s", route, e.ID)
	l.arrivals = append(l.arrivals, Arrival{Ref: m.Ref, Key: e.Key, Body: string(e.Body), Claimed: claimed, pos: l.pos})
	if m.first == 0 {
		m.first = len(l.arrivals)
		if l.opts.Exact && !l.opts.Zombies && l.opts.Routes[route].Block && m.key != "" {
			l.passed(m, "published")
		}
	}
}

// FirstClaim returns when a message was first claimed; zero = unknown.
func (l *Ledger) FirstClaim(r Ref) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.get(r).firstClaim
}
