package mongo

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/core"
)

var _ core.Waiter = (*Store)(nil)

const (
	// calm is the least time between two wake-ups without anything new in between. Without it records that wait for
	// their key, or that others have out, would wake a relay again and again.
	calm = 100 * time.Millisecond
	// maxSights bounds the number of remembered routes. A caller with other ones each time is woken early.
	maxSights = 1000
	// streamAgain is how long the store polls after a change stream failed.
	streamAgain = time.Minute
)

// stream tells of changes: Next blocks until there is one, or returns false when ctx ends or the stream fails.
type stream interface {
	Next(ctx context.Context) bool
	Err() error
	Close(ctx context.Context) error
}

// watcher is what a store knows of its routes.
type watcher struct {
	open func(ctx context.Context, routes []string) (stream, error) // nil: a change stream of the server

	mu      sync.Mutex
	seen    map[string]sight // by the names of routes that were asked for together
	noUntil time.Time        // no change stream before this time
}

// sight is the state of routes at their last wake-up.
type sight struct {
	seq, notice int64
	woken       time.Time
}

// Wait blocks until there can be something new on routes, until their next known timer or retry is due, limit has
// passed, or ctx ends. It needs no member. It can return early for no reason. It opens a change stream and then looks,
// so that it misses nothing, and looks again at each change. Where there are no change streams it looks every
// Options.PollInterval.
func (s *Store) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	end := time.Now().Add(max(limit, 0))
	if cause, done, err := s.look(ctx, routes, &end); done {
		return cause, err
	}
	st := s.stream(ctx, routes)
	if st == nil {
		return s.poll(ctx, routes, end)
	}
	defer func() {
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = st.Close(detached)
	}()
	for {
		if cause, done, err := s.look(ctx, routes, &end); done {
			return cause, err
		}
		if err := s.change(ctx, st, end); err != nil {
			if ctx.Err() != nil {
				return core.WakeStop, outage("wait", ctx.Err())
			}
			s.noStream(err)
			return s.poll(ctx, routes, end)
		}
	}
}

// change waits for a change, until end, or until a call of Wake.
func (s *Store) change(ctx context.Context, st stream, end time.Time) error {
	until, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	stop := s.onHint(until, cancel)
	defer stop()
	if st.Next(until) || until.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return cmp.Or(ctx.Err(), st.Err(), errEnded)
}

// errEnded reports a change stream that ended without an error, as after a collection was dropped.
var errEnded = errors.New("the change stream ended")

// onHint cancels a wait at a call of Wake. The caller calls stop.
func (s *Store) onHint(ctx context.Context, cancel context.CancelFunc) (stop func()) {
	var wg sync.WaitGroup
	quit := make(chan struct{})
	wg.Go(func() {
		select {
		case <-s.hint:
			cancel()
		case <-ctx.Done():
		case <-quit:
		}
	})
	return func() {
		close(quit)
		wg.Wait()
	}
}

// poll is Wait without a change stream.
func (s *Store) poll(ctx context.Context, routes []string, end time.Time) (core.WakeCause, error) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		left := time.Until(end)
		if left <= 0 {
			return core.WakeLimit, nil
		}
		t.Reset(min(left, s.opts.PollInterval))
		select {
		case <-ctx.Done():
			return core.WakeStop, outage("wait", ctx.Err())
		case <-s.hint:
		case <-t.C:
		}
		if cause, done, err := s.look(ctx, routes, &end); done {
			return cause, err
		}
	}
}

// look reports whether the wait is over. It sets end to the time when the next timer or retry is due, if that is
// sooner.
func (s *Store) look(ctx context.Context, routes []string, end *time.Time) (cause core.WakeCause, done bool, err error) {
	err = s.transact(ctx, "wait", func(ctx context.Context, w *work) error {
		cause = ""
		docs, err := w.metas(ctx, "sequence")
		if err != nil {
			return err
		}
		woken, next, err := w.news(ctx, routes, docs["sequence"].Value)
		if err != nil {
			return err
		}
		cause = woken
		if at := time.Now().Add(next); next >= 0 && at.Before(*end) {
			*end = at
		}
		return nil
	})
	switch {
	case ctx.Err() != nil:
		return core.WakeStop, true, outage("wait", ctx.Err())
	case err != nil:
		return core.WakePoll, true, err
	case cause != "":
		return cause, true, nil
	case !time.Now().Before(*end):
		return core.WakeLimit, true, nil
	}
	return "", false, nil
}

// news looks at routes: why a relay is woken now, at once for new records and now and then for others, and the time
// until the next record is due; negative if none waits for a time.
func (w *work) news(ctx context.Context, routes []string, last int64) (cause core.WakeCause, next time.Duration, err error) {
	next = -1
	of := bson.M{"$in": routes}
	name := strings.Join(routes, "\n")
	old := w.s.watch.last(name)
	notice, err := w.lastNotice(ctx, of)
	if err != nil {
		return "", next, err
	}
	fresh, err := w.some(ctx, bson.M{"route": of, "phase": phaseReady, "seq": bson.M{"$gt": old.seq}})
	if err != nil {
		return "", next, err
	}
	if fresh || notice > old.notice {
		w.s.watch.note(name, sight{last, notice, time.Now()})
		return core.WakeNotify, next, nil
	}
	if next, err = w.nextDue(ctx, of); err != nil {
		return "", next, err
	}
	ready, err := w.some(ctx, bson.M{"route": of, "phase": phaseReady})
	switch {
	case err != nil || !ready && next != 0:
		return "", next, err
	case time.Since(old.woken) < calm:
		return "", calm, nil // it is too early: look again then
	case ready:
		cause = core.WakeNotify
	default:
		cause = core.WakeLimit
	}
	w.s.watch.note(name, sight{last, notice, time.Now()})
	return cause, next, nil
}

// some reports whether there is a record in line that filter selects.
func (w *work) some(ctx context.Context, filter bson.M) (bool, error) {
	found, err := w.all(ctx, filter, w.by("ready").SetProjection(bson.M{"seq": 1}).SetLimit(1))
	return len(found) > 0, err
}

// nextDue returns the time until the next timer or retry of routes is due; 0 = now, negative = there is none.
func (w *work) nextDue(ctx context.Context, routes bson.M) (time.Duration, error) {
	next := time.Duration(-1)
	for _, filter := range []bson.M{{"phase": phaseTimer}, {"phase": phaseRetry, "hold": int64(0)}} {
		filter["route"], filter["due"] = routes, bson.M{"$gt": time.Time{}}
		found, err := w.all(ctx, filter, w.by("due").SetProjection(headOnly).SetSort(bson.M{"due": 1}).SetLimit(1))
		if err != nil {
			return -1, err
		}
		for _, r := range found {
			if in := max(r.Due.Sub(w.now), 0); next < 0 || in < next {
				next = in
			}
		}
	}
	return next, nil
}

// lastNotice returns the greatest number of a notice of routes.
func (w *work) lastNotice(ctx context.Context, routes bson.M) (int64, error) {
	cur, err := w.s.notice.Find(ctx, bson.M{"route": routes}, options.Find().SetSort(bson.M{"_id": -1}).SetLimit(1))
	if err != nil {
		return 0, err
	}
	var docs []noticeDoc
	if err := cur.All(ctx, &docs); err != nil || len(docs) == 0 {
		return 0, err
	}
	return docs[0].Number, nil
}

func (w *watcher) last(routes string) sight {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[routes]
}

func (w *watcher) note(routes string, news sight) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.seen) >= maxSights {
		clear(w.seen)
	}
	if w.seen == nil {
		w.seen = map[string]sight{}
	}
	w.seen[routes] = news
}

// stream opens a change stream of routes; nil if there are none.
func (s *Store) stream(ctx context.Context, routes []string) stream {
	s.watch.mu.Lock()
	off := s.opts.DisableChangeStreams || time.Now().Before(s.watch.noUntil)
	open := s.watch.open
	s.watch.mu.Unlock()
	if off {
		return nil
	}
	if open == nil {
		open = s.changeStream
	}
	st, err := open(ctx, routes)
	if err != nil {
		s.noStream(err)
		return nil
	}
	return st
}

// noStream makes the store poll for a while.
func (s *Store) noStream(err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	s.watch.mu.Lock()
	first := s.watch.noUntil.IsZero()
	s.watch.noUntil = time.Now().Add(streamAgain)
	s.watch.mu.Unlock()
	if first {
		s.logger().Warn("waybill/mongo: no change stream: a sleeping relay polls instead",
			"collection", s.outbox.Name(), "interval", s.opts.PollInterval, "error", core.ErrorText(classify("wait", err)))
	}
}

// changeStream opens a change stream of the server for all changes that can wake a relay of routes: a record that is
// ready, or that waits for a time, and a notice. An update has the whole document, as it is when it is read.
func (s *Store) changeStream(ctx context.Context, routes []string) (stream, error) {
	names := bson.A{s.outbox.Name(), s.notice.Name()}
	return s.db.Watch(ctx, bson.A{bson.M{"$match": bson.M{
		"ns.coll": bson.M{"$in": names}, "operationType": bson.M{"$in": bson.A{"insert", "update", "replace"}},
		"fullDocument.route": bson.M{"$in": routes},
		"$or": bson.A{
			bson.M{"ns.coll": s.notice.Name()},
			bson.M{"fullDocument.phase": bson.M{"$in": bson.A{phaseReady, phaseTimer, phaseRetry}}, "fullDocument.hold": int64(0)},
		},
	}}}, options.ChangeStream().SetFullDocument(options.UpdateLookup))
}

// Wake makes a Wait in this process look at once. A producer can call it after a commit. It never blocks.
func (s *Store) Wake() {
	select {
	case s.hint <- struct{}{}:
	default:
	}
}
