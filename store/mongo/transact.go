package mongo

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/sleep"
)

const (
	// stripes is the number of fences of a member: so many of its calls can run without a conflict.
	stripes = 4
	// maxTries bounds how often a transaction that conflicts runs again, and commitTries how often a commit is sent
	// whose result is unknown.
	maxTries    = 100
	commitTries = 5
	// commitLimit and rollbackLimit bound the end of a transaction whose context has ended.
	commitLimit, rollbackLimit = 5 * time.Second, time.Second
)

// txOptions are those of the store's own transactions: one snapshot, kept by a majority.
func txOptions() *options.TransactionOptionsBuilder {
	return options.Transaction().SetReadConcern(readconcern.Snapshot()).SetWriteConcern(durably()).
		SetReadPreference(readpref.Primary())
}

// durably has a write answered when a majority has it in its journals, also where the replica set's own setting
// (writeConcernMajorityJournalDefault) says that memory will do.
func durably() *writeconcern.WriteConcern {
	w, journal := writeconcern.Majority(), true
	w.Journal = &journal
	return w
}

// work is one run of a transaction with facts that were read in it. The session is in the context.
type work struct {
	s   *Store
	now time.Time // the server's
}

// lockedError says that another transaction is at one of the records.
type lockedError struct{ err error }

func (e *lockedError) Error() string { return "a record is locked: " + e.err.Error() }
func (e *lockedError) Unwrap() error { return e.err }

// locked marks err, if it is a conflict, as one about the records.
func locked(err error) error {
	if conflicts(err) {
		return &lockedError{err}
	}
	return err
}

// transact runs fn in a transaction, and again, after a while, as long as it conflicts with others. A lockedError is
// returned at once.
func (s *Store) transact(ctx context.Context, op string, fn func(ctx context.Context, w *work) error) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	for try := 0; ; try++ {
		err := s.once(ctx, func(ctx context.Context) error { return fn(ctx, &work{s: s}) })
		if _, ok := errors.AsType[*lockedError](err); ok {
			return err
		}
		if !conflicts(err) || try >= maxTries {
			return classify(op, err)
		}
		if sleep.For(ctx, backOff(try)) != nil {
			return classify(op, err)
		}
	}
}

// once runs fn in one transaction and commits it if fn returns nil.
func (s *Store) once(ctx context.Context, fn func(ctx context.Context) error) error {
	sess, err := s.db.Client().StartSession()
	if err != nil {
		return err
	}
	detached := context.WithoutCancel(ctx)
	defer func() {
		end, cancel := context.WithTimeout(detached, rollbackLimit)
		defer cancel()
		sess.EndSession(end) // it rolls back what was not committed
	}()
	if err := sess.StartTransaction(txOptions()); err != nil {
		return err
	}
	if err := fn(driver.NewSessionContext(ctx, sess)); err != nil {
		return err
	}
	return commit(ctx, sess)
}

// commit commits, and asks again if the result is unknown: the server answers a second commit like the first. Once it
// has begun it does not end with ctx, since the driver rolls back nothing after it; it has a limit of its own.
func commit(ctx context.Context, sess *driver.Session) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitLimit)
	defer cancel()
	for try := 0; ; try++ {
		err := sess.CommitTransaction(ctx)
		if err == nil || !hasLabel(err, "UnknownTransactionCommitResult") || try >= commitTries {
			return err
		}
		if sleep.For(ctx, backOff(try)) != nil {
			return err
		}
	}
}

// fenced is transact for self: no removal of self, and no loss of its partitions, can come in between.
func (s *Store) fenced(
	ctx context.Context, op string, self core.Session, settled stamps, fn func(ctx context.Context, w *work) error,
) error {
	return s.fencedAll(ctx, op, []core.Session{self}, settled, fn)
}

// fencedAll is fenced for several members of this process. The first one keeps the stamps.
func (s *Store) fencedAll(
	ctx context.Context, op string, selves []core.Session, settled stamps, fn func(ctx context.Context, w *work) error,
) error {
	for _, self := range selves {
		if self == 0 { // nobody
			return core.NewFencedError("waybill/mongo: "+op, self)
		}
	}
	var stripe int32
	select {
	case stripe = <-s.stripes:
	case <-ctx.Done():
		return classify(op, ctx.Err())
	}
	defer func() { s.stripes <- stripe }()
	return s.transact(ctx, op, func(ctx context.Context, w *work) error {
		if err := w.fence(ctx, op, selves[0], stripe, settled); err != nil {
			return err
		}
		if err := w.fenceOthers(ctx, op, selves[1:], stripe); err != nil {
			return err
		}
		return fn(ctx, w)
	})
}

// fenceID names one of the fences of a member.
type fenceID struct {
	Session int64 `bson:"session"`
	Stripe  int32 `bson:"stripe"`
}

func fencesOf(self core.Session) bson.A {
	var ids bson.A
	for stripe := range int32(stripes) {
		ids = append(ids, fenceID{int64(self), stripe})
	}
	return ids
}

// stamps are the greatest stamp of the settled records, and the greatest one that counts by this machine's clock.
type stamps struct{ top, near int64 }

// fence writes a fence of self, which must be a member. It keeps the greatest stamp there that counts by the server's
// clock.
func (w *work) fence(ctx context.Context, op string, self core.Session, stripe int32, settled stamps) error {
	bound := bson.M{"$multiply": bson.A{bson.M{"$add": bson.A{bson.M{"$toLong": "$$NOW"}, hlc.DefaultMaxDrift.Milliseconds()}}, int64(1 << 16)}}
	counts := func(stamp int64) bson.M {
		return bson.M{"$cond": bson.A{bson.M{"$lte": bson.A{stamp, bound}}, stamp, int64(0)}}
	}
	kept := bson.A{"$hlc", counts(settled.top)}
	if settled.near != settled.top {
		kept = append(kept, counts(settled.near))
	}
	change := bson.A{bson.M{"$set": bson.M{
		"n": bson.M{"$add": bson.A{"$n", 1}}, "hlc": bson.M{"$max": kept}, "at": "$$NOW",
	}}}
	var f struct {
		At time.Time `bson:"at"`
	}
	err := w.s.fences.FindOneAndUpdate(ctx, bson.M{"_id": fenceID{int64(self), stripe}}, change,
		options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&f)
	if errors.Is(err, driver.ErrNoDocuments) {
		return core.NewFencedError("waybill/mongo: "+op, self)
	}
	w.now = f.At
	return err
}

// fenceOthers writes a fence of each of selves, which must be members.
func (w *work) fenceOthers(ctx context.Context, op string, selves []core.Session, stripe int32) error {
	if len(selves) == 0 {
		return nil
	}
	ids := make(bson.A, len(selves))
	for i, self := range selves {
		ids[i] = fenceID{int64(self), stripe}
	}
	known, err := w.touch(ctx, ids)
	if err == nil && known < len(selves) {
		err = core.NewFencedError("waybill/mongo: "+op, selves[0])
	}
	return err
}

// pieces handles the items [from, to) in one transaction. If a record is locked, it handles them in halves, and tells
// of an item that is locked alone. do returns what to do after the commit.
type pieces struct {
	s  *Store
	op string
	// member: for the member self; without it for no session
	member bool
	self   core.Session
	stamps stamps
	do     func(ctx context.Context, w *work, from, to int) (apply func(), err error)
	busy   func(i int)
}

func (p *pieces) run(ctx context.Context, from, to int) error {
	if from >= to {
		return nil
	}
	var apply func()
	fn := func(ctx context.Context, w *work) (err error) {
		apply, err = p.do(ctx, w, from, to)
		return err
	}
	var err error
	if !p.member {
		err = p.s.transact(ctx, p.op, fn)
	} else {
		err = p.s.fenced(ctx, p.op, p.self, p.stamps, fn)
	}
	if _, ok := errors.AsType[*lockedError](err); !ok {
		if err == nil && apply != nil {
			apply()
		}
		return err
	}
	if to-from == 1 {
		p.busy(from)
		return nil
	}
	mid := (from + to) / 2
	if err := p.run(ctx, from, mid); err != nil {
		return err
	}
	return p.run(ctx, mid, to)
}

// outside returns ctx without its session.
func outside(ctx context.Context) context.Context { return driver.NewSessionContext(ctx, nil) }

// backOff is how long to wait after the given number of tries, at random below 50 ms.
func backOff(try int) time.Duration {
	most := min(time.Millisecond<<min(try, 6), 50*time.Millisecond)
	return most/4 + time.Duration(rand.Int64N(int64(most)))*3/4
}
