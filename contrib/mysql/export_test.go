package waybillmysql

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// RequeueIn is Redrive of one record, by force, in a transaction of the caller.
func (s *Store) RequeueIn(ctx context.Context, tx *sql.Tx, route, id string) error {
	w := &work{s: s, q: tx}
	rows, err := w.rows(ctx, attrsSQL+byIDSQL, id, route)
	if err == nil && len(rows) == 0 {
		err = admin.NoRecord("test", route, id)
	}
	if err != nil {
		return err
	}
	return w.requeue(ctx, nil, "", rows[0].decode())
}

// Own returns the store's own pool.
func (s *Store) Own() *sql.DB { return s.own }

// GoOn has each look for old rows go on where the latest one of its kind ended, also after a short one.
func (s *Store) GoOn() { s.beginAnew(time.Now().Add(time.Hour)) }

// Anew has each look for old rows begin at the beginning.
func (s *Store) Anew() { s.beginAnew(time.Now()) }

func (s *Store) beginAnew(at time.Time) {
	all := []*resume{&s.swept, s.purged.get("c")}
	for i := range s.cleaned {
		all = append(all, &s.cleaned[i])
	}
	for _, r := range all {
		r.mu.Lock()
		r.anew = at
		r.mu.Unlock()
	}
}

// Classify and Recent are tested as tables.
var (
	Classify = classify
	Recent   = recent
)

// SetCountLimits makes Counts estimate smaller numbers.
func (s *Store) SetCountLimits(rows, entries int64) { s.countLimits = countLimits{rows, entries} }

// EndLines writes the rows that end the lines of a route.
func (s *Store) EndLines(ctx context.Context, route string) error {
	return (&work{s: s, q: s.own}).endLines(ctx, route)
}

// CountReads returns how many rows the server reads for Counts.
func (s *Store) CountReads(ctx context.Context) (int64, error) {
	return s.reads(ctx, func(w *work) error {
		_, err := w.counts(ctx)
		return err
	})
}

// reads returns how many rows the server reads for fn.
func (s *Store) reads(ctx context.Context, fn func(w *work) error) (n int64, err error) {
	conn, err := s.own.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	w := &work{s: s, q: conn}
	handled := func() (n int64) {
		if err == nil {
			var counts []int64
			counts, err = collect(ctx, conn, func(rows *sql.Rows) (v int64, err error) { return v, rows.Scan(new(string), &v) }, `SHOW SESSION STATUS LIKE 'Handler_read%'`)
			for _, v := range counts {
				n += v
			}
		}
		return n
	}
	if _, err = w.one(ctx, []any{&w.now}, `SELECT `+nowSQL); err != nil {
		return 0, err
	}
	before := handled()
	if err == nil {
		err = fn(w)
	}
	return handled() - before, err
}

// Sight asks which transactions run, as a page does before its snapshot; the page's numbers are upper's.
func (s *Store) Sight(ctx context.Context) (running []int64, err error) {
	if _, err := s.upper(ctx); err != nil {
		return nil, err
	}
	_, running, err = s.sight(ctx)
	return running, err
}

// MaybeEnded asks which of them may have ended, as a page does after its snapshot.
func (s *Store) MaybeEnded(ctx context.Context, running []int64) ([]int64, error) {
	return s.maybeEnded(ctx, running)
}
