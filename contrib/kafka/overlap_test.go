package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/kafka"
)

// copiesOf returns how many copies of a message a bus has.
func copiesOf(t *testing.T, f *fake, bus, id string) (n int) {
	t.Helper()
	for _, other := range stored(t, f.address(), bus) {
		if other == id {
			n++
		}
	}
	return n
}

// TR-17: two calls publish the same message at the same time, and one of them ends without a result. Another publish,
// before or after the result has come, loses nothing. It makes a second copy only when a call was told the result.
func TestOverlappingPublishes(t *testing.T) {
	t.Parallel()
	retriable, final := kerr.NotEnoughReplicas, kerr.InvalidRecord
	for name, c := range map[string]struct {
		failure *kerr.Error // of the produce requests, until the fault is removed
		stays   bool        // the first call waits for its result
		before  bool        // the last publish begins before the fault is removed
		copies  int
	}{
		"one waits, and another call joins it":             {failure: retriable, stays: true, before: true, copies: 1},
		"one waits, and its result is known":               {failure: retriable, stays: true, copies: 2},
		"none waits, and another call joins the record":    {failure: retriable, before: true, copies: 1},
		"none waits, and the record was stored meanwhile":  {failure: retriable, copies: 1},
		"none waits, and the record was refused meanwhile": {failure: final, copies: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, opts := startFake(t), options()
			opts.Partitions = 1
			bus := dial(t, f.address(), opts)
			message := []waybill.Envelope{{ID: "m", Topic: "orders", Key: "k", Body: []byte("x")}}
			// The broker knows the producer.
			if err := bus.Publish(t.Context(), batchOf(1)).FirstErr(); err != nil {
				t.Fatal(err)
			}
			h := f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: c.failure, Count: -1})
			leave := func() {
				ctx, end := context.WithCancel(t.Context())
				if err := bus.Publish(impatient{ctx, end}, message).FirstErr(); err == nil {
					t.Error("a success, though the broker has stored nothing")
				}
			}
			var calls sync.WaitGroup
			var results [2]error
			if c.stays {
				calls.Go(func() { results[0] = bus.Publish(t.Context(), message).FirstErr() })
			} else {
				leave()
			}
			if err := h.Wait(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			leave()
			if c.before {
				calls.Go(func() { results[1] = bus.Publish(t.Context(), message).FirstErr() })
				kafka.WaitForJoin(t.Context(), bus, "m", map[bool]int{true: 2, false: 1}[c.stays])
			}
			h.Remove()
			calls.Wait()
			kafka.WaitForFlights(t.Context(), bus)
			if err := errors.Join(results[:]...); err != nil {
				t.Error(err)
			}
			if !c.before {
				if err := bus.Publish(t.Context(), message).FirstErr(); err != nil {
					t.Errorf("the last publish: %v", err)
				}
			}
			if n := copiesOf(t, f, opts.Bus, "m"); n != c.copies {
				t.Errorf("%d copies are stored, want %d", n, c.copies)
			}
		})
	}
}

// RL-06: a refused message of one call harms no other call, though the client puts the records of both into one
// request.
func TestRefusedMessageHarmsNoOtherCall(t *testing.T) {
	t.Parallel()
	f, opts := startFake(t), options()
	opts.Partitions = 1
	opts.Client = []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxProduceRequestsInflightPerBroker(1)}
	bus := dial(t, f.address(), opts)
	f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, Count: -1, When: func(req kmsg.Request) bool {
		for _, topic := range req.(*kmsg.ProduceRequest).Topics {
			for _, p := range topic.Partitions {
				if bytes.Contains(p.Records, []byte("poison")) {
					return true
				}
			}
		}
		return false
	}})
	const callers, rounds = 16, 8
	var calls sync.WaitGroup
	for caller := range callers {
		calls.Go(func() {
			for round := range rounds {
				id := fmt.Sprintf("%d-%d", caller, round)
				batch := []waybill.Envelope{
					{ID: id + "-a", Topic: "orders", Body: []byte("x")},
					{ID: id + "-bad", Topic: "orders", Body: []byte("poison")},
					{ID: id + "-b", Topic: "orders", Body: []byte("x")},
				}
				for i, err := range bus.Publish(t.Context(), batch) {
					switch bad := i == 1; {
					case bad && waybill.ClassOf(err) != waybill.ClassRejected, !bad && err != nil:
						t.Errorf("message %s: %v", batch[i].ID, err)
					}
				}
			}
		})
	}
	calls.Wait()
	ids := stored(t, f.address(), opts.Bus)
	slices.Sort(ids)
	if n := len(slices.Compact(slices.Clone(ids))); len(ids) != 2*callers*rounds || n != len(ids) || slices.ContainsFunc(ids, func(id string) bool { return strings.HasSuffix(id, "bad") }) {
		t.Errorf("%d records of %d messages are stored, want %d", len(ids), n, 2*callers*rounds)
	}
}

// TR-17: the brokers forget the producer, or say that a number is missing. The client numbers its records anew, under
// another epoch. So a record that was stored before, and whose answer said otherwise, has a second copy; see the doc of
// the package. Each message is stored.
func TestProducerIsForgotten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers []*kerr.Error
		copies  int // of a message, at most
	}{
		"unknown producer": {[]*kerr.Error{kerr.UnknownProducerID}, 1},
		"out of order":     {[]*kerr.Error{kerr.OutOfOrderSequenceNumber}, 1},
		"stored, unknown answer, unknown producer": {[]*kerr.Error{kerr.RequestTimedOut, kerr.UnknownProducerID}, 2},
		"stored, unknown answer, out of order":     {[]*kerr.Error{kerr.RequestTimedOut, kerr.OutOfOrderSequenceNumber}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, opts := startFake(t), options()
			opts.Partitions = 1
			bus := dial(t, f.address(), opts)
			if err := bus.Publish(t.Context(), []waybill.Envelope{{ID: "first", Topic: "orders", Key: "k"}}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			var faults []kfake.Fault
			for _, answer := range c.answers {
				faults = append(faults, kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: answer, Count: 1})
			}
			f.cluster.Fault(faults...)
			batch := batchOf(5)
			res := bus.Publish(t.Context(), batch)
			for i, err := range res {
				if err != nil && waybill.ClassOf(err) != waybill.ClassOutage {
					t.Errorf("message %d: %v", i, err)
				}
			}
			if err := res.FirstErr(); err != nil {
				t.Log("told: ", err)
				if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			for i := range batch {
				n := copiesOf(t, f, opts.Bus, batch[i].ID)
				t.Log(batch[i].ID, n)
				if n < 1 || n > c.copies {
					t.Errorf("message %d has %d copies, want 1 to %d", i, n, c.copies)
				}
			}
		})
	}
}

// Results that came late are forgotten when their time is over.
func TestLateResultsExpire(t *testing.T) {
	t.Parallel()
	var l kafka.LateResults
	start := time.Now()
	for i := range 1000 {
		l.Add(strconv.Itoa(i), "x", start.Add(time.Duration(i)*time.Millisecond))
	}
	if l.Take("1", "y", start) || !l.Take("2", "x", start) || l.Take("2", "x", start) {
		t.Error("a result is of one record, and is told once")
	}
	l.Add("3", "x", start.Add(2*time.Second)) // again
	if l.Take("500", "x", start.Add(kafka.LateFor+501*time.Millisecond)) {
		t.Error("an old result is told")
	}
	if by, old := l.Len(); by > 500 || old > 500 {
		t.Errorf("%d results are remembered, in a list of %d", by, old)
	}
	if !l.Take("3", "x", start.Add(kafka.LateFor+time.Second+999*time.Millisecond)) {
		t.Error("a new result is forgotten with an old one of the same message")
	}
	l.Add("last", "x", start.Add(time.Hour))
	if by, old := l.Len(); by != 1 || old != 1 {
		t.Errorf("%d results are remembered after an hour, in a list of %d", by, old)
	}
}
