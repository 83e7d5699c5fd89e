package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// Claim leases records, as core.OutboxStore says, in one transaction. It looks at 1,000 rows, or four times
// req.MaxRecords if that is more, and the next claim goes on where it stopped. A claim that finds nothing due does not
// take SQLite's write lock. OrderHLC is not supported.
func (s *Store) Claim(ctx context.Context, req core.ClaimRequest) (core.Claim, error) {
	if err := checkClaim(&req); err != nil {
		return core.Claim{}, err
	}
	st, err := s.prepared(ctx, "claim")
	if err != nil {
		return core.Claim{}, err
	}
	seen, err := s.look(ctx)
	if err != nil {
		return core.Claim{}, s.classify("claim", err)
	}
	now := s.now()
	routes := routeNames(req.Routes)
	due, next, err := s.peek(ctx, st, routes, now)
	if err != nil {
		return core.Claim{}, s.classify("claim", err)
	}
	if !due {
		s.sawNothing(routes, seen)
		return core.Claim{NextIn: next}, nil
	}
	var c claimer
	err = s.write(ctx, "claim", func(tx *sql.Tx) (bool, error) {
		c = claimer{store: s, tx: tx, st: st, req: &req, now: s.now()}
		return c.run(ctx)
	})
	if err != nil {
		return core.Claim{}, err
	}
	if !c.claim.More && len(c.claim.Records) == 0 {
		s.sawNothing(routes, seen)
	}
	return c.claim, nil
}

func checkClaim(req *core.ClaimRequest) error {
	var p []string
	if len(req.Routes) == 0 {
		p = append(p, "Routes: none; name at least one")
	}
	for i, r := range req.Routes {
		if slices.ContainsFunc(req.Routes[:i], func(o core.RouteOrder) bool { return o.Route == r.Route }) {
			p = append(p, fmt.Sprintf("Routes[%d]: %q is named twice", i, r.Route))
		}
		if r.Order == core.OrderHLC {
			p = append(p, fmt.Sprintf("Routes[%d].Order: SQLite claims in staging order only; use OrderPerKey or OrderBestEffort", i))
		}
	}
	if req.MaxRecords < 1 || req.MaxRecords > maxClaim {
		p = append(p, fmt.Sprintf("MaxRecords: %d is not between 1 and %d", req.MaxRecords, maxClaim))
	}
	if req.MaxBytes < 0 {
		p = append(p, fmt.Sprintf("MaxBytes: %d is negative; 0 is unbounded", req.MaxBytes))
	}
	if req.Lease < time.Millisecond {
		p = append(p, fmt.Sprintf("Lease: %s; at least a millisecond", req.Lease))
	}
	return core.Invalid("waybill/sqlite: claim", p...)
}

func routeNames(routes []core.RouteOrder) []string {
	names := make([]string, len(routes))
	for i := range routes {
		names[i] = routes[i].Route
	}
	return names
}

// peek reports whether anything of routes is claimable or due, and the time until the next timer; negative = none.
func (s *Store) peek(ctx context.Context, st *statements, routes []string, now int64) (due bool, next time.Duration, err error) {
	next = -1
	for _, route := range routes {
		var ready bool
		var wake sql.NullInt64
		if err := st.peek.QueryRowContext(ctx, route).Scan(&ready, &wake); err != nil {
			return false, 0, err
		}
		due = due || ready || wake.Valid && wake.Int64 <= now
		next = sooner(next, wake, now)
	}
	return due, next, nil
}

func sooner(next time.Duration, wake sql.NullInt64, now int64) time.Duration {
	if !wake.Valid {
		return next
	}
	in := time.Duration(max(wake.Int64-now, 0)) * time.Microsecond
	if next < 0 || in < next {
		return in
	}
	return next
}

// claimer is one claim in its transaction.
type claimer struct {
	store *Store
	tx    *sql.Tx
	st    *statements
	req   *core.ClaimRequest
	now   int64
	claim core.Claim
	picks []int64 // sequences to lease
	size  int64   // bytes of their bodies
	full  bool    // the bound on bytes is reached
}

func (c *claimer) run(ctx context.Context) (commit bool, err error) {
	s := c.store
	c.claim.NextIn = -1
	s.scans.turn++
	n := len(c.req.Routes)
	for i := range n {
		// Fair shares of what is left, beginning with another route each time.
		ro := &c.req.Routes[(i+s.scans.turn)%n]
		promoted, err := c.promote(ctx, ro.Route)
		if err != nil {
			return false, err
		}
		if promoted {
			commit = true
			s.scans.lap(ro.Route).done = time.Time{}
		}
		share := (c.room() + n - i - 1) / (n - i)
		if err := c.route(ctx, ro, share); err != nil {
			return false, err
		}
	}
	for i := range c.req.Routes {
		var wake sql.NullInt64
		if err := on(ctx, c.tx, c.st.next).QueryRowContext(ctx, c.req.Routes[i].Route).Scan(&wake); err != nil {
			return false, err
		}
		c.claim.More = c.claim.More || wake.Valid && wake.Int64 <= c.now
		c.claim.NextIn = sooner(c.claim.NextIn, wake, c.now)
	}
	if len(c.picks) == 0 {
		return commit, nil
	}
	if err := c.lease(ctx); err != nil {
		return false, err
	}
	c.claim.NextIn = sooner(c.claim.NextIn, sql.NullInt64{Int64: c.now + c.req.Lease.Microseconds(), Valid: true}, c.now)
	return true, nil
}

func (c *claimer) room() int {
	if c.req.Alone {
		return 1 - len(c.picks)
	}
	return c.req.MaxRecords - len(c.picks)
}

func (c *claimer) promote(ctx context.Context, route string) (bool, error) {
	res, err := on(ctx, c.tx, c.st.promote).ExecContext(ctx, route, c.now)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// route picks at most share records of one route.
func (c *claimer) route(ctx context.Context, ro *core.RouteOrder, share int) error {
	suspects, err := c.suspects(ctx, ro)
	if err != nil {
		return err
	}
	if !c.req.Alone {
		c.claim.Suspects = c.claim.Suspects || len(suspects) > 0
		return c.scan(ctx, c.store.scans.lap(ro.Route), ro, share)
	}
	switch {
	case len(suspects) == 0:
	case c.room() < 1:
		c.claim.More = true
	default:
		c.picks = append(c.picks, suspects[0])
		c.claim.More = c.claim.More || len(suspects) > 1
	}
	return nil
}

// suspects returns the claimable suspects of a route, at most 100.
func (c *claimer) suspects(ctx context.Context, ro *core.RouteOrder) ([]int64, error) {
	rows, err := on(ctx, c.tx, c.st.suspects).QueryContext(ctx, sql.Named("route", ro.Route), sql.Named("now", c.now),
		sql.Named("ordered", ro.Order == core.OrderPerKey), sql.Named("block", ro.BlockAfterAbandon), sql.Named("suspect", core.SuspectCrashes))
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var out []int64
	for rows.Next() {
		var seq int64
		var topic string
		if err := rows.Scan(&seq, &topic); err != nil {
			return nil, err
		}
		if !slices.Contains(ro.SkipTopics, topic) {
			out = append(out, seq)
		}
	}
	return out, rows.Err()
}

// lease writes the leases and reads the records.
func (c *claimer) lease(ctx context.Context) error {
	var token int64
	if err := on(ctx, c.tx, c.st.token).QueryRowContext(ctx, c.now).Scan(&token); err != nil {
		return fmt.Errorf("table %smeta holds no token: %w", c.store.opts.Prefix, err)
	}
	seqs, err := json.Marshal(c.picks)
	if err != nil {
		return err
	}
	rows, err := on(ctx, c.tx, c.st.lease).QueryContext(ctx, string(seqs), c.now+c.req.Lease.Microseconds(), token, core.ErrorText(errors.New(c.req.Owner)))
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	c.claim.Records = make([]core.Record, 0, len(c.picks))
	for rows.Next() {
		r := core.Record{Lease: core.Lease{Token: token, Remaining: c.req.Lease}}
		var key, attrs sql.NullString
		var due, stamp int64
		e := &r.Envelope
		if err := rows.Scan(&r.Seq, &r.Route, &e.ID, &e.Topic, &key, &due, &r.Attempts, &r.Crashes, &stamp, &attrs, &e.Body); err != nil {
			return err
		}
		e.Key, e.HLC = key.String, hlc.Timestamp(stamp)
		if err := decodeAttrs(e, attrs.String); err != nil {
			r.Err = fmt.Errorf("waybill/sqlite: claim: row %d of %soutbox: %w", r.Seq, c.store.opts.Prefix, err)
		}
		if e.Type == "" { // a row that plain SQL inserted
			e.Type = e.Topic
		}
		if e.Source == "" {
			e.Source = c.store.opts.Source
		}
		r.Failed = r.Attempts > 0
		r.Age = time.Duration(max(c.now-due, 0)) * time.Microsecond
		c.claim.Records = append(c.claim.Records, r)
	}
	slices.SortFunc(c.claim.Records, func(a, b core.Record) int { return int(a.Seq - b.Seq) })
	return rows.Err()
}
