package owned

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
	"github.com/waybill-go/waybill/core/storetest"
)

// claims is a store behind the contract of claims: one member that owns all, leases records in memory and holds them.
// With it the checks of core/storetest that are not about leases try what this store shares with others.
type claims struct {
	*Store
	*desk
}

// desk is what stores on one file share.
type desk struct {
	mu    sync.Mutex
	self  outbox.Member
	token int64
	out   map[int64]*leased // by token
}

type leased struct {
	rec   outbox.Record
	until time.Time
	off   bool // it is none, but handed back for later
}

func newClaims(tb testing.TB, s *Store) *claims {
	tb.Helper()
	return &claims{s, &desk{self: join(tb, s), out: map[int64]*leased{}}}
}

func (c *claims) Traits() core.StoreTraits {
	return core.StoreTraits{KeyOrder: true, Durable: true, SharedAcrossProcesses: true}
}

// serve takes the units of a route.
func (c *claims) serve(ctx context.Context, route string) error {
	c.self.Beat++
	c.self.Name, c.self.Lease = "storetest", time.Minute
	if !slices.ContainsFunc(c.self.Serves, func(sv outbox.Serving) bool { return sv.Route == route }) {
		c.self.Serves = append(c.self.Serves, outbox.Serving{Route: route, Units: 1})
	}
	_, err := c.Meet(ctx, outbox.Meeting{Self: c.self, Moves: []outbox.Move{{Unit: outbox.Split(route, 1)[0], To: c.self.Session}}})
	return err
}

func (c *claims) Claim(ctx context.Context, req core.ClaimRequest) (core.Claim, error) {
	c.desk.mu.Lock()
	defer c.desk.mu.Unlock()
	out := core.Claim{NextIn: -1}
	if err := c.die(ctx); err != nil {
		return out, err
	}
	for _, ro := range req.Routes {
		if err := c.serve(ctx, ro.Route); err != nil {
			return out, err
		}
		due, err := c.Due(ctx, c.self.Session, []outbox.Part{all(ro.Route)}, 10_000)
		if err != nil {
			return out, err
		}
		sooner := func(in time.Duration) {
			if in >= 0 && (out.NextIn < 0 || in < out.NextIn) {
				out.NextIn = in
			}
		}
		sooner(due.NextIn)
		rs, suspects, err := c.choose(ctx, &ro, due.Retries)
		if err != nil {
			return out, err
		}
		out.Suspects = out.Suspects || len(suspects) > 0
		if req.Alone {
			rs = suspects
		}
		for i := range rs {
			if len(out.Records) == req.MaxRecords || req.Alone && len(out.Records) == 1 {
				out.More = true
				break
			}
			if got, err := c.Take(ctx, c.self.Session, outbox.Want{Refs: []outbox.Ref{rs[i].Ref}}); err != nil {
				return out, err
			} else if got[0].Grip != outbox.Gripped {
				continue // cancelled since it was read
			}
			c.token++
			c.out[c.token] = &leased{rs[i], time.Now().Add(req.Lease), false}
			out.Records = append(out.Records, core.Record{
				Envelope: rs[i].Envelope, Route: rs[i].Route, Seq: rs[i].Seq, Attempts: rs[i].Attempts, Crashes: rs[i].Crashes, Age: rs[i].Age, Failed: rs[i].Failed,
				Lease: core.Lease{Token: c.token, Remaining: req.Lease}, Err: rs[i].Err,
			})
		}
		for _, l := range c.out {
			if l.rec.Route == ro.Route {
				sooner(max(time.Until(l.until), 0))
			}
		}
	}
	return out, nil
}

// die ends the session when a lease is over, as if its process had died, and begins another one. What it had out
// besides counts as a crash too.
func (c *claims) die(ctx context.Context) error {
	over := false
	for token, l := range c.out {
		if !time.Now().Before(l.until) {
			over = over || !l.off
			delete(c.out, token)
		}
	}
	if !over {
		return nil
	}
	old := c.self
	c.self.Session = outbox.Session(sessions.Add(1))
	roster, err := c.Meet(ctx, outbox.Meeting{Self: c.self, Join: true, Remove: []outbox.Removal{{Session: old.Session, Beat: old.Beat}}})
	if err != nil {
		return err
	}
	m := outbox.Meeting{Self: c.self}
	for _, u := range roster.Units {
		m.Moves = append(m.Moves, outbox.Move{Unit: u.Unit, To: c.self.Session}, outbox.Move{Unit: u.Unit, From: c.self.Session, To: c.self.Session})
	}
	_, err = c.Meet(ctx, m)
	return err
}

// choose returns what may be handed out of a route, in order.
func (c *claims) choose(ctx context.Context, ro *core.RouteOrder, retries []outbox.Record) (rs, suspects []outbox.Record, err error) {
	look := outbox.Look{Parts: []outbox.Part{all(ro.Route)}, Fresh: []outbox.Part{all(ro.Route)}, Ranges: []outbox.Range{{Part: all(ro.Route), To: 1 << 62}}}
	if ro.BlockAfterAbandon {
		look.Blocks = []string{ro.Route}
	}
	p, err := c.Read(ctx, c.self.Session, look)
	if err != nil {
		return nil, nil, err
	}
	busy, blocked := map[int64]bool{}, map[string]bool{}
	for _, l := range c.out {
		busy[l.rec.Seq] = true
		if l.rec.Route == ro.Route {
			blocked[l.rec.Envelope.Key] = true
		}
	}
	for _, w := range p.Waiting {
		if !slices.ContainsFunc(retries, func(r outbox.Record) bool { return r.Seq == w.Seq }) {
			blocked[w.Key] = true
		}
	}
	list := append(retries, p.Ranges[0].Records...)
	slices.SortFunc(list, func(a, b outbox.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, r := range list {
		key := r.Envelope.Key
		switch keyed := key != "" && ro.Order == core.OrderPerKey; {
		case busy[r.Seq], keyed && blocked[key]:
		case slices.Contains(ro.SkipTopics, r.Envelope.Topic):
			blocked[key] = true
		case r.Crashes >= core.SuspectCrashes:
			blocked[key] = true
			suspects = append(suspects, r)
		default:
			rs = append(rs, r)
		}
	}
	return rs, suspects, nil
}

func (c *claims) Settle(ctx context.Context, outcomes []core.Outcome) core.Results {
	c.desk.mu.Lock()
	defer c.desk.mu.Unlock()
	res := make(core.Results, len(outcomes))
	for i := range outcomes {
		o := &outcomes[i]
		l := c.out[o.Token()]
		if l == nil || l.rec.Seq != o.Seq() || l.off {
			res[i] = core.ErrLeaseLost
			continue
		}
		var cause error
		if o.Error() != "" {
			cause = errors.New(o.Error())
		}
		var own outbox.Outcome
		switch o.Event() { //nolint:exhaustive // those of outcomes
		case core.EventConfirmed:
			own = outbox.Published(&l.rec)
		case core.EventRejected:
			own = outbox.Retry(&l.rec, cause, o.RetryIn())
		case core.EventReleased:
			own = outbox.Release(&l.rec, o.RetryIn(), o.Unknown())
		default:
			own = outbox.Abandon(&l.rec, o.Reason(), cause)
		}
		res[i] = c.Store.Settle(ctx, c.self.Session, []outbox.Outcome{own})[0]
		if res[i] != nil && !isAnswer(res[i]) {
			continue
		}
		delete(c.out, o.Token())
		if o.Event() == core.EventReleased && o.RetryIn() > 0 && !l.rec.Failed {
			c.out[-o.Token()] = &leased{l.rec, time.Now().Add(o.RetryIn()), true} // the engine's, not the store's
		}
	}
	return res
}

type claimsHarness struct{ c *claims }

func (h claimsHarness) Store() core.OutboxStore { return h.c }

func (h claimsHarness) Begin(ctx context.Context) (storetest.Tx, error) {
	tx, err := h.c.DB().BeginTx(ctx, nil)
	return claimsTx{h.c.Store, tx}, err
}

func (h claimsHarness) Records(ctx context.Context, route string) (out []storetest.StoredRecord, err error) {
	list, err := (&harness{store: h.c.Store}).Records(ctx, route)
	for _, r := range list {
		st, err := h.c.Inspect(ctx, route, r.ID)
		if err != nil {
			return nil, err
		}
		r.State = st.State // a hold shows
		out = append(out, storetest.StoredRecord(r))
	}
	return out, err
}

func (h claimsHarness) Corrupt(ctx context.Context, route string, seq int64) error {
	_, err := h.c.DB().ExecContext(ctx, `UPDATE waybill_records SET attrs = '{"a":' WHERE route = ? AND seq = ?`, route, seq)
	return err
}

// WithRetention makes the harness a storetest.Retainer.
func (h claimsHarness) WithRetention(_ context.Context, r core.Retention) (storetest.Harness, error) {
	s, err := New(h.c.DB(), Options{Source: "/test", Retention: r, Withdrawable: h.c.opts.Withdrawable})
	return claimsHarness{&claims{s, h.c.desk}}, err
}

type claimsTx struct {
	store *Store
	tx    *sql.Tx
}

func (x claimsTx) Stage(ctx context.Context, msgs ...core.Message) ([]core.Staged, error) {
	return x.store.Stage(ctx, x.tx, msgs...)
}

func (x claimsTx) Cancel(ctx context.Context, keys ...core.CancelKey) ([]core.CancelStatus, error) {
	return x.store.Cancel(ctx, x.tx, keys...)
}
func (x claimsTx) Commit(context.Context) error { return x.tx.Commit() }

func (x claimsTx) Rollback(context.Context) error {
	if err := x.tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

// otherwise are checks of core/storetest that do not hold here, and why.
var otherwise = map[string]string{
	"age-counts-from-due":                     "the age of a retry counts from when the retry was due",
	"clean-never-deletes-what-is-not-settled": "a record whose lease is over is not processing",
	"head-requeue":                            "handed back for later is none that waits: see TestHeads",
	"model-in-key-order":                      "the model's records crash one by one, and here with all that a session holds",
	"model-in-best-effort":                    "the same",
	"claim-is-bounded-in-bytes":               "claims are this test's own, and have no such bound",
	"attempts-survive-crash":                  "an attempt that ends clears the count of crashes",
	"key-is-joined-when-many-are-due":         "a timer gets a new number when it comes due, behind what was staged meanwhile",
	"clean-sweeps-what-expired":               "what is in line is its owner's",
	"clean-frees-the-keys-of-what-it-sweeps":  "what is in line is its owner's",
}

func TestClaims(t *testing.T) { //nolint:tparallel // those that are left out need no turn
	t.Parallel()
	free := make(chan claimsHarness, 3)
	for range cap(free) {
		free <- claimsHarness{newClaims(t, open(t, Options{Withdrawable: func(string, string) bool { return true }}))}
	}
	for _, c := range storetest.Checks() {
		t.Run(c.Name, func(t *testing.T) {
			if why := otherwise[c.Name]; why != "" {
				t.Skip(why)
			}
			t.Parallel()
			h := <-free
			defer func() { free <- h }()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := c.Run(ctx, h); err != nil && !errors.Is(err, storetest.ErrNotDeclared) {
				t.Error(err)
			}
		})
	}
}
