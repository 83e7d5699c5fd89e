package mongo

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/hlc"
)

// Numbers come from a document that a transaction does not take part in: a counter within it would make every two
// stagers conflict. So a number is drawn before its record can be seen, and readers must know which numbers are open.
//
// A staging transaction first inserts a ticket with a random id. Then, outside of the transaction, one atomic update
// draws the numbers and adds an entry with the first of them and the ticket to the list of open ones. The ticket is
// committed with the records. So a reader, in one snapshot, sees of each entry whether its transaction has committed.
// One that has not either runs or was rolled back. An insert of the same ticket tells these apart: it conflicts with a
// transaction that runs, and succeeds if it was rolled back. No clock and no limit counts.
//
// The id of a transaction is the first number that it drew.

// drawn is an entry for numbers whose transaction may still run.
type drawn struct {
	From   int64         `bson:"f"`
	Ticket bson.ObjectID `bson:"t"`
}

// sequence is the document that numbers come from.
type sequence struct {
	Value int64     `bson:"value"` // the last number that was drawn
	Open  []drawn   `bson:"open"`
	Size  int       `bson:"size"` // of Open, after the latest draw
	At    time.Time `bson:"at"`   // when that was
}

const (
	// tidyAt is the number of entries at which a stager tidies the list up, if no reader does.
	tidyAt = 256
	// tidyDone is the number of committed entries at which a reader does.
	tidyDone = 64
	// doubtAfter is how long a reader lets an entry be before it asks whether the transaction still runs, and again
	// after the same time. maxAsked bounds these questions of one read.
	doubtAfter = 300 * time.Millisecond
	maxAsked   = 16
)

var sequenceID = bson.M{"_id": "sequence"}

// draw inserts a ticket in the transaction of ctx, draws n numbers outside of it, and returns the first one and the
// time.
func (s *Store) draw(ctx context.Context, n int) (first int64, now time.Time, err error) {
	ticket := bson.NewObjectID()
	if _, err := s.tickets.InsertOne(ctx, bson.M{"_id": ticket}); err != nil {
		return 0, now, err
	}
	entry := bson.D{{Key: "f", Value: bson.M{"$add": bson.A{"$value", 1}}}, {Key: "t", Value: ticket}}
	var seq sequence
	err = s.counter.FindOneAndUpdate(outside(ctx), sequenceID, bson.A{bson.M{"$set": bson.D{
		{Key: "value", Value: bson.M{"$add": bson.A{"$value", int64(n)}}},
		{Key: "open", Value: bson.M{"$concatArrays": bson.A{"$open", bson.A{entry}}}},
		{Key: "size", Value: bson.M{"$add": bson.A{bson.M{"$size": "$open"}, 1}}},
		{Key: "at", Value: "$$NOW"},
	}}}, options.FindOneAndUpdate().SetReturnDocument(options.After).SetProjection(bson.M{"value": 1, "size": 1, "at": 1})).Decode(&seq)
	if errors.Is(err, driver.ErrNoDocuments) {
		return 0, now, misconfigured("stage", errors.New(noSchema))
	}
	if err != nil {
		return 0, now, err
	}
	if seq.Size >= tidyAt && seq.Size%tidyDone == 0 {
		s.tidy(outside(ctx))
	}
	return seq.Value - int64(n) + 1, seq.At, nil
}

// committed returns which of the entries' transactions have committed.
func (s *Store) committed(ctx context.Context, list []drawn) (map[bson.ObjectID]bool, error) {
	done := map[bson.ObjectID]bool{}
	if len(list) == 0 {
		return done, nil
	}
	ids := make(bson.A, len(list))
	for i, o := range list {
		ids[i] = o.Ticket
	}
	cur, err := s.tickets.Find(ctx, bson.M{"_id": bson.M{"$in": ids}})
	if err != nil {
		return nil, err
	}
	var found []struct {
		ID bson.ObjectID `bson:"_id"`
	}
	if err := cur.All(ctx, &found); err != nil {
		return nil, err
	}
	for _, f := range found {
		done[f.ID] = true
	}
	return done, nil
}

// doubts are the entries that readers of this store have seen and that did not commit.
type doubts struct {
	mu   sync.Mutex
	seen map[bson.ObjectID]time.Time // when to ask next
}

// due notes the entries that run as far as known, and returns those to ask about now.
func (d *doubts) due(running []drawn) (ask []drawn) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := make(map[bson.ObjectID]time.Time, len(running))
	for _, o := range running {
		at, known := d.seen[o.Ticket]
		switch {
		case !known:
			at = now.Add(doubtAfter)
		case now.After(at) && len(ask) < maxAsked:
			ask = append(ask, o)
			at = now.Add(doubtAfter)
		}
		seen[o.Ticket] = at
	}
	d.seen = seen
	return ask
}

// resolve removes entries from the list: those that have committed, and those of ask whose transaction was rolled back.
// After a failure the next read tries again.
func (s *Store) resolve(ctx context.Context, done, ask []drawn) {
	gone := bson.A{}
	for _, o := range done {
		gone = append(gone, o.Ticket)
	}
	for _, o := range ask {
		if ended, err := s.ended(ctx, o.Ticket); err != nil {
			break
		} else if ended {
			gone = append(gone, o.Ticket)
		}
	}
	if len(gone) == 0 {
		return
	}
	pull := bson.M{"$pull": bson.M{"open": bson.M{"t": bson.M{"$in": gone}}}}
	if _, err := s.meta.UpdateOne(ctx, sequenceID, pull); err != nil {
		return
	}
	// Only now: an entry without its ticket looks like one that was rolled back.
	_, _ = s.tickets.DeleteMany(ctx, bson.M{"_id": bson.M{"$in": gone}})
}

// errAsked ends the transaction of a question.
var errAsked = errors.New("asked")

// ended reports whether the transaction that inserted ticket was rolled back, or committed meanwhile.
func (s *Store) ended(ctx context.Context, ticket bson.ObjectID) (bool, error) {
	err := s.once(ctx, func(ctx context.Context) error {
		if _, err := s.tickets.InsertOne(ctx, bson.M{"_id": ticket}); err != nil {
			return err
		}
		return errAsked
	})
	switch {
	case errors.Is(err, errAsked), driver.IsDuplicateKeyError(err):
		return true, nil
	case conflicts(err):
		return false, nil
	}
	return false, err
}

// tidy removes the entries of ended transactions from the list of open numbers, for stagers on an outbox without
// readers.
func (s *Store) tidy(ctx context.Context) {
	var seq sequence
	if err := s.meta.FindOne(ctx, sequenceID).Decode(&seq); err != nil {
		return
	}
	is, err := s.committed(ctx, seq.Open)
	if err != nil {
		return
	}
	var done, running []drawn
	for _, o := range seq.Open {
		if is[o.Ticket] {
			done = append(done, o)
		} else {
			running = append(running, o)
		}
	}
	s.resolve(ctx, done, s.doubts.due(running))
}

// sweepTickets deletes tickets that resolve had to leave behind.
func (s *Store) sweepTickets(ctx context.Context) error {
	return s.transact(ctx, "clean", func(ctx context.Context, _ *work) error {
		var seq sequence
		if err := s.meta.FindOne(ctx, sequenceID).Decode(&seq); err != nil {
			return err
		}
		used := bson.A{}
		for _, o := range seq.Open {
			used = append(used, o.Ticket)
		}
		_, err := s.tickets.DeleteMany(ctx, bson.M{"_id": bson.M{"$nin": used}})
		return err
	})
}

// HighWater returns the highest stamp among the settled records and the newest 10,000 records. One that is further
// ahead of the server's clock than hlc.DefaultMaxDrift does not count.
func (s *Store) HighWater(ctx context.Context) (hlc.Timestamp, error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	var all []struct {
		HLC hlc.Timestamp `bson:"hlc"`
		Now time.Time     `bson:"now"`
	}
	cur, err := s.meta.Aggregate(ctx, bson.A{bson.M{"$match": bson.M{"_id": "hlc"}}, bson.M{"$addFields": bson.M{"now": "$$NOW"}}})
	if err != nil {
		return 0, classify("high water", err)
	}
	if err := cur.All(ctx, &all); err != nil || len(all) == 0 {
		return 0, classify("high water", err)
	}
	bound, top := hlc.MaxMark(all[0].Now), hlc.Timestamp(0)
	count := func() {
		for _, d := range all {
			if d.HLC <= bound {
				top = max(top, d.HLC)
			}
		}
	}
	count()
	for _, q := range []struct {
		coll *driver.Collection
		opts *options.FindOptionsBuilder
	}{
		{s.fences, options.Find()},
		{s.outbox, options.Find().SetSort(bson.M{"seq": -1}).SetLimit(10_000).SetProjection(bson.M{"hlc": 1})},
	} {
		cur, err := q.coll.Find(ctx, bson.M{}, q.opts)
		if err != nil {
			return 0, classify("high water", err)
		}
		if err := cur.All(ctx, &all); err != nil {
			return 0, classify("high water", err)
		}
		count()
	}
	return top, nil
}
