package inbox_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
)

// single is a store without batches that has a check and a pool.
type single struct{ err error }

func (s *single) Check(context.Context) error { return s.err }

func (s *single) Pool() waybill.Pool { return waybill.Pool{Max: 7} }

func (s *single) Do(ctx context.Context, _ core.InboxKey, fn func(context.Context, int) error) (core.InboxStatus, error) {
	return core.InboxNew, fn(ctx, 0)
}

// batched is a store that answers batches as a test says.
type batched struct {
	single
	fresh []int // for which messages fn runs; the others are duplicates
	runs  int   // how often
	short bool  // one status is missing
}

func (b *batched) DoBatch(ctx context.Context, keys []core.InboxKey, fn func(context.Context, int, []int) error) ([]core.InboxStatus, error) {
	for range b.runs {
		if err := fn(ctx, 0, b.fresh); err != nil {
			return nil, err
		}
	}
	out := make([]core.InboxStatus, len(keys))
	for i := range out {
		out[i] = core.InboxDuplicate
		if slices.Contains(b.fresh, i) {
			out[i] = core.InboxNew
		}
	}
	if b.short {
		out = out[1:]
	}
	return out, nil
}

var lists = waybill.NewTopic("lists", waybill.JSON[[]int]())

// batchOf returns the handler of a batch, and deliveries: the body of number i is the list of i alone.
func batchOf(t *testing.T, s core.Inbox[int], n int, fn func(ctx context.Context, tx int, items []inbox.Item[[]int]) error) (waybill.Handler, []*waybill.Delivery) {
	t.Helper()
	box, err := inbox.New(s, "me", inbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ds := make([]*waybill.Delivery, n)
	for i := range ds {
		ds[i] = &waybill.Delivery{Queue: "q", Envelope: waybill.Envelope{ID: strconv.Itoa(i), Source: "/s", ContentType: "application/json", Topic: "lists", Body: []byte("[" + strconv.Itoa(i) + "]")}}
	}
	return inbox.BatchHandler(box, lists, fn, inbox.BatchOptions{Size: 5, Wait: time.Second}), ds
}

// TestStoreIsPassedOn: the runner gets the check and the pool of the store, so that a consumer does not start without
// tables, and warns of a small pool.
func TestStoreIsPassedOn(t *testing.T) {
	t.Parallel()
	s := &single{err: errors.New("no table")}
	h, ds := batchOf(t, s, 1, func(context.Context, int, []inbox.Item[[]int]) error { return nil })
	if h.Check == nil || !errors.Is(h.Check(t.Context()), s.err) {
		t.Error("the check is not passed on")
	}
	if h.Pool == nil || h.Pool().Max != 7 {
		t.Error("the pool is not passed on")
	}
	if h.Batch != nil || h.BatchSize != 0 || h.BatchWait != 0 {
		t.Errorf("a store without batches gets some: size %d, wait %s", h.BatchSize, h.BatchWait)
	}
	if _, err := h.Handle(t.Context(), ds[0]); err != nil {
		t.Error(err)
	}
}

// IN-08: fn gets the new messages of a batch, and each message the status of its own.
func TestBatchWithDuplicates(t *testing.T) {
	t.Parallel()
	var got []string
	h, ds := batchOf(t, &batched{fresh: []int{1, 3}, runs: 1}, 5, func(_ context.Context, _ int, items []inbox.Item[[]int]) error {
		for _, item := range items {
			got = append(got, item.Delivery.Envelope.ID+strconv.Itoa(item.Value[0]))
		}
		return nil
	})
	ds[0].Envelope.Body = []byte("{") // left out, so that the others have other places
	statuses, err := h.Batch(t.Context(), ds)
	if err != nil {
		t.Fatal(err)
	}
	const done, dup, out = waybill.HandlerProcessed, waybill.HandlerDuplicate, waybill.HandlerLeftOut
	if diff := cmp.Diff([]waybill.HandlerStatus{out, dup, done, dup, done}, statuses); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"22", "44"}, got); diff != "" {
		t.Error(diff)
	}
}

// IN-01: a second run of fn, which the database asked for, sees none of the changes that the first run made to the
// values.
func TestBatchRunsAgainWithFreshValues(t *testing.T) {
	t.Parallel()
	var seen []int
	h, ds := batchOf(t, &batched{fresh: []int{0, 1}, runs: 2}, 2, func(_ context.Context, _ int, items []inbox.Item[[]int]) error {
		for i := range items {
			seen = append(seen, items[i].Value[0])
			items[i].Value[0] = 100
		}
		return nil
	})
	if _, err := h.Batch(t.Context(), ds); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{0, 1, 0, 1}, seen); diff != "" {
		t.Error(diff)
	}
}

// TestBrokenBatchStore: a store that leaves a status out is named, and no message counts as handled.
func TestBrokenBatchStore(t *testing.T) {
	t.Parallel()
	h, ds := batchOf(t, &batched{fresh: []int{0, 1}, runs: 1, short: true}, 2, func(context.Context, int, []inbox.Item[[]int]) error { return nil })
	if _, err := h.Batch(t.Context(), ds); err == nil || !strings.Contains(err.Error(), "1 statuses for 2 keys") {
		t.Errorf("it says %v", err)
	}
}
