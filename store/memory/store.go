package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

var (
	_ core.OutboxStore   = (*Store)(nil)
	_ core.Stager[*Tx]   = (*Store)(nil)
	_ core.Inbox[*Tx]    = (*Store)(nil)
	_ core.Waiter        = (*Store)(nil)
	_ core.LeaseExtender = (*Store)(nil)
	_ core.Counter       = (*Store)(nil)
)

// Options configures a Store.
type Options struct {
	// Source is the CloudEvents source of messages that name none, such as "/orders". Required.
	Source string
	// Retention says how long settled records are kept. Published ones are gone with the settle itself unless it says
	// otherwise; the rest of it is [Store.Clean]'s.
	Retention core.Retention
	// Clock gives the HLC stamps; nil means a clock of its own.
	Clock *hlc.Clock
	// Limits bounds what can be staged.
	Limits core.Limits
	// TTL is the total time of messages that set neither TTL nor Expires; 0 = none.
	TTL time.Duration
	// Now is the store's clock and the producer's; nil means time.Now, which is virtual under testing/synctest. Wait
	// uses real timers whatever stands here. Safe for concurrent use.
	Now func() time.Time
	// TracerProvider makes the stage spans; nil means the global one.
	TracerProvider core.TracerProvider
}

// Store is an outbox, an inbox and a table of strings in memory. It is safe for concurrent use.
type Store struct {
	stamper *core.Stamper
	now     func() time.Time

	mu       sync.Mutex // never held while anything waits
	lanes    map[string]*lane
	rows     map[rowKey]*record  // all stored records
	holders  map[liveKey]*record // live ones with a dedupe key
	marks    inboxMarks
	values   map[string]string
	locks    map[any]*Tx // rows and marks that a running transaction writes
	seq      int64
	tokens   int64
	turn     int
	cleaning cleaning
	signal   chan struct{} // closed and replaced when a lane's version or timers change
}

type rowKey struct{ route, id string }

// New returns an empty store, or an error that lists all problems of opts.
func New(opts Options) (*Store, error) {
	stamper, err := core.NewStamper(core.StamperOptions{
		Source: opts.Source, Clock: opts.Clock, Limits: opts.Limits, TTL: opts.TTL, Now: opts.Now, TracerProvider: opts.TracerProvider,
	})
	if err != nil {
		return nil, err
	}
	now := opts.Now
	if now == nil {
		now = time.Now
	}
	wall := func() time.Time { return now().Round(0) } // one time line with the times that messages carry
	s := &Store{
		stamper: stamper, now: wall,
		lanes: map[string]*lane{}, rows: map[rowKey]*record{}, holders: map[liveKey]*record{}, marks: inboxMarks{at: map[core.InboxKey]time.Time{}},
		values: map[string]string{}, locks: map[any]*Tx{}, signal: make(chan struct{}),
	}
	s.cleaning = newCleaning(opts.Retention)
	return s, nil
}

// Traits declares key order and HLC order; nothing is durable or shared with other processes.
func (s *Store) Traits() core.StoreTraits { return core.StoreTraits{KeyOrder: true, HLCOrder: true} }

func (s *Store) lane(route string) *lane {
	l := s.lanes[route]
	if l == nil {
		l = newLane(route)
		s.lanes[route] = l
	}
	return l
}

// Settle persists outcomes, as core.OutboxStore says.
func (s *Store) Settle(ctx context.Context, outcomes []core.Outcome) core.Results {
	if err := ctx.Err(); err != nil {
		return core.AllFailed(len(outcomes), outage("settle", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	res := make(core.Results, len(outcomes))
	for i := range outcomes {
		res[i] = s.settle(&outcomes[i], now)
	}
	return res
}

func (s *Store) settle(o *core.Outcome, now time.Time) error {
	switch o.State() {
	case core.StatePending, core.StateFailed, core.StatePublished, core.StateAbandoned:
	case core.StateNone, core.StateProcessing:
		return core.Invalid("waybill/memory: settle", "outcome: not built by Published, Retry, Abandon or Release")
	}
	r, err := s.held(o.Route(), o.Seq(), o.Token())
	if err != nil {
		return fmt.Errorf("waybill/memory: settle %q: %w", o.ID(), err)
	}
	l := s.lane(r.route)
	l.unplace(r)
	r.token, r.session = 0, 0
	r.maybe = r.maybe || o.Unknown()
	if o.State().Terminal() {
		s.release(r)
	}
	if o.CountsAttempt() {
		r.attempts++
	}
	if o.Error() != "" {
		r.lastErr, r.errAt = o.Error(), now
	}
	l.setState(r, o.State())
	switch o.State() {
	case core.StatePublished, core.StateAbandoned:
		r.reason = o.Reason()
		l.drop(r)
		s.retire(r, now)
	case core.StatePending, core.StateFailed, core.StateNone, core.StateProcessing:
		r.failed = r.failed || o.State() == core.StateFailed
		r.due = now.Add(o.RetryIn())
		l.place(r, now)
	}
	if k := l.keys[r.env.Key]; r.ready || k != nil && k.listed {
		s.notify(l)
	} else if r.timer >= 0 {
		s.retime()
	}
	return nil
}

// held returns the record of which token is the current claim.
func (s *Store) held(route string, seq, token int64) (*record, error) {
	r := s.lane(route).live[seq]
	if r == nil || r.state != core.StateProcessing || token == 0 || r.token != token {
		return nil, core.ErrLeaseLost
	}
	return r, nil
}

// ExtendLeases makes the leases of records last lease from now.
func (s *Store) ExtendLeases(ctx context.Context, records []core.Record, lease time.Duration) core.Results {
	if err := ctx.Err(); err != nil {
		return core.AllFailed(len(records), outage("extend", err))
	}
	if lease < time.Millisecond {
		return core.AllFailed(len(records), core.Invalid("waybill/memory: extend", fmt.Sprintf("lease: %s; at least a millisecond", lease)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	res := make(core.Results, len(records))
	for i := range records {
		r, err := s.held(records[i].Route, records[i].Seq, records[i].Lease.Token)
		if err != nil {
			res[i] = fmt.Errorf("waybill/memory: extend %q: %w", records[i].Envelope.ID, err)
			continue
		}
		l := s.lane(r.route)
		l.unplace(r)
		r.due = now.Add(lease)
		l.place(r, now)
		s.retime()
	}
	return res
}

// Wait blocks until a record of routes may be claimable, limit has passed, or ctx ends. It returns at the next timer of
// routes too.
func (s *Store) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	alarm := time.NewTimer(max(limit, 0))
	defer alarm.Stop()
	start := time.Now()
	for {
		changed, next, news := s.watch(routes)
		if news {
			return core.WakeNotify, nil
		}
		if left := limit - time.Since(start); next < 0 || next > left {
			next = left
		}
		alarm.Reset(max(next, 0))
		select {
		case <-ctx.Done():
			return core.WakeStop, nil
		case <-alarm.C:
			return core.WakeTimer, nil
		case <-changed:
		}
	}
}

// watch tells whether something came that no claim has seen, else the time until the next timer of routes (negative:
// none) and a channel that is closed when either may have changed.
func (s *Store) watch(routes []string) (changed <-chan struct{}, next time.Duration, news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	next = -1
	for _, route := range routes {
		l := s.lane(route)
		news = news || l.version != l.seen
		next = l.nextTimer(next, now)
	}
	return s.signal, next, news
}

// notify tells waiters that something of l may be claimable.
func (s *Store) notify(l *lane) {
	l.version++
	s.retime()
}

// retime tells waiters to look at the timers again.
func (s *Store) retime() {
	close(s.signal)
	s.signal = make(chan struct{})
}

// Counts returns the exact numbers of records per route and state.
func (s *Store) Counts(ctx context.Context) ([]core.Count, error) {
	if err := ctx.Err(); err != nil {
		return nil, outage("counts", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var out []core.Count
	for _, l := range s.lanes {
		l.promote(now)
		for state, n := range l.counts {
			if n == 0 {
				continue
			}
			c := core.Count{Route: l.name, State: state, N: n}
			if a := l.age(&record{state: state}); a != nil && a.len() > 0 {
				c.Oldest = max(now.Sub(a.at(0).since), 0)
			}
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b core.Count) int {
		return cmp.Or(cmp.Compare(a.Route, b.Route), cmp.Compare(a.State, b.State))
	})
	return out, nil
}

// StoredRecord is a record as it is stored, for tests to look at.
type StoredRecord struct {
	Envelope core.Envelope
	Route    string
	Seq      int64
	State    core.State
	Attempts int
	// Crashes were counted by claims that took over; an expired lease that nobody took over is not in it yet.
	Crashes int
	// Due is when it is claimable; the lease's end while it is processing.
	Due         time.Time
	Reason      core.Reason
	LastError   string
	LastErrorAt time.Time
}

// Records returns copies of all stored records in staging order, abandoned ones too.
func (s *Store) Records() []StoredRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := slices.SortedFunc(maps.Values(s.rows), bySeq)
	out := make([]StoredRecord, len(rows))
	for i, r := range rows {
		out[i] = StoredRecord{
			Envelope: r.env.Clone(), Route: r.route, Seq: r.seq, State: r.state, Attempts: r.attempts, Crashes: r.crashes,
			Due: r.due, Reason: r.reason, LastError: r.lastErr, LastErrorAt: r.errAt,
		}
	}
	return out
}

// Corrupt makes the record with this sequence unreadable, for tests: claims report it in Record.Err.
func (s *Store) Corrupt(seq int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows {
		if r.seq == seq {
			r.unreadable = errors.New("waybill/memory: the row cannot be read: corrupted by a test")
			return nil
		}
	}
	return fmt.Errorf("waybill/memory: corrupt: no record has sequence %d", seq)
}

func outage(op string, err error) error {
	return &core.Error{Op: "waybill/memory: " + op, Class: core.ClassOutage, Err: err}
}
