package mongo

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

func (s *Store) openNumbers(t *testing.T) sequence {
	t.Helper()
	var seq sequence
	if err := s.meta.FindOne(t.Context(), sequenceID).Decode(&seq); err != nil {
		t.Fatal(err)
	}
	return seq
}

func message(i int) waybill.Message {
	return waybill.RawMessage("t.x", "text/plain", nil, waybill.Routes(benchRoute), waybill.ID(strconv.Itoa(i)))
}

// A transaction that runs for long stays open for readers, however often they ask, and its records are found; one that
// was rolled back is removed from the list without any clock. DB-15 OR-08.
func TestOpenNumbers(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	self := join(t, s, benchRoute).Session
	running := func() []int64 {
		p, err := s.Read(t.Context(), self, core.ReadRequest{BlockingLimit: 1})
		if err != nil {
			t.Fatal(err)
		}
		return p.RunningTxs
	}
	long, err := begin(s)
	if err != nil {
		t.Fatal(err)
	}
	defer long.EndSession(context.Background())
	if _, err := s.Stage(t.Context(), long, message(1), message(2)); err != nil {
		t.Fatal(err)
	}
	back, err := begin(s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Stage(t.Context(), back, message(3)); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(running()); got != "[1 3]" {
		t.Fatalf("running are %s, want [1 3]", got)
	}
	back.EndSession(t.Context())
	patience.Until(t, "the one that was rolled back is gone", func() bool { return fmt.Sprint(running()) == "[1]" })
	for range 3 { // it was asked about, and lives
		ask := []drawn{{1, s.openNumbers(t).Open[0].Ticket}}
		s.resolve(t.Context(), nil, ask)
		if got := fmt.Sprint(running()); got != "[1]" {
			t.Fatalf("running are %s, want [1]", got)
		}
	}
	if err := commit(t.Context(), long); err != nil {
		t.Fatal(err)
	}
	if got := running(); len(got) > 0 {
		t.Errorf("running are %v after the commit", got)
	}
	p, err := s.Read(t.Context(), self, core.ReadRequest{Ranges: []core.Range{{RouteSlots: all(benchRoute), UpToSeq: 1 << 62}}})
	if err != nil || len(p.Ranges[0].Records) != 2 {
		t.Errorf("%d records after the commit: %v", len(p.Ranges[0].Records), err)
	}
}

// Without any reader the stagers keep the list of open numbers short. Clean deletes the documents that they leave
// behind. DB-15.
func TestStagersTidyUp(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	u, err := s.NewUnitOfWork()
	if err != nil {
		t.Fatal(err)
	}
	entries := bson.A{}
	for i := range tidyAt - 1 { // as if so many calls had staged and committed
		ticket := bson.NewObjectID()
		if _, err := s.tickets.InsertOne(t.Context(), bson.M{"_id": ticket}); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, drawn{int64(i + 1), ticket})
	}
	if _, err := s.meta.UpdateOne(t.Context(), sequenceID, bson.M{"$set": bson.M{"open": entries, "value": int64(tidyAt)}}); err != nil {
		t.Fatal(err)
	}
	if err := u.Do(t.Context(), func(ctx context.Context, _ Tx) error { return u.Stage(ctx, message(1)) }); err != nil {
		t.Fatal(err)
	}
	if n := len(s.openNumbers(t).Open); n != 1 {
		t.Errorf("%d entries are left, want that of the last call", n)
	}
	if n, err := s.tickets.CountDocuments(t.Context(), bson.M{}); err != nil || n != 1 {
		t.Errorf("%d tickets are left, want that of the last call: %v", n, err)
	}
	orphan := bson.M{"_id": bson.NewObjectID()}
	if _, err := s.tickets.InsertOne(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Clean(t.Context(), "me", time.Minute); err != nil {
		t.Fatal(err)
	}
	if n, err := s.tickets.CountDocuments(t.Context(), bson.M{}); err != nil || n != 1 {
		t.Errorf("%d tickets are left, want that of the last call: %v", n, err)
	}
}

// The clock continues above the stamps of records that were settled, also after their member has left. OR-07 DB-15.
func TestHighWater(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	m := join(t, s, benchRoute)
	in(t, s, func(ctx context.Context, tx Tx) error {
		_, err := s.Stage(ctx, tx, message(1))
		return err
	})
	want, err := s.HighWater(t.Context())
	if err != nil || want == 0 {
		t.Fatalf("high water %v: %v", want, err)
	}
	p, err := s.Read(t.Context(), m.Session, core.ReadRequest{Ranges: []core.Range{{RouteSlots: all(benchRoute), UpToSeq: 1 << 62}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Settle(t.Context(), m.Session, []core.Outcome{core.Published(&p.Ranges[0].Records[0])}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if got, err := s.HighWater(t.Context()); err != nil || got != want {
		t.Errorf("after the settle %v, want %v: %v", got, want, err)
	}
	if _, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Leave: true}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.HighWater(t.Context()); err != nil || got != want {
		t.Errorf("after the member has left %v, want %v: %v", got, want, err)
	}
}
