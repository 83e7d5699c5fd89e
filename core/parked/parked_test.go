package parked_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core/parked"
	"github.com/waybill-go/waybill/internal/content"
	"github.com/waybill-go/waybill/internal/patience"
)

// lot is a queue of parked messages, and records the calls of its walk.
type lot struct {
	items  []parked.Item
	at     int
	wants  []int
	calls  []string
	closed int
	fail   map[string]error // by id, and the errors of Replay and Remove
	gone   string           // is an id
}

func newLot(ids ...string) *lot {
	l := &lot{fail: map[string]error{}}
	for i, id := range ids {
		l.items = append(l.items, parked.Item{Parked: admin.Parked{
			Envelope: waybill.Envelope{ID: id, Body: []byte("body")}, Position: i + 1, Reason: waybill.ReasonRejected,
		}})
	}
	return l
}

func (l *lot) walks(batch int) parked.Walks {
	return parked.Walks{Adapter: "waybill/test", Batch: batch, Open: func(context.Context, string, string) (parked.Walk, error) {
		l.at, l.wants, l.calls = 0, nil, nil
		return l, nil
	}}
}

func (l *lot) Total(context.Context) (int, error) { return len(l.items), nil }

func (l *lot) Next(_ context.Context, want int) (*parked.Item, error) {
	l.wants = append(l.wants, want)
	if l.at == len(l.items) {
		return nil, nil //nolint:nilnil // the end
	}
	m := l.items[l.at]
	l.at++
	return &m, nil
}

func (l *lot) Replay(_ context.Context, items []*parked.Item) error {
	return l.do("replay", items)
}

func (l *lot) Remove(_ context.Context, items []*parked.Item) error {
	return l.do("remove", items)
}
func (l *lot) Close(context.Context) { l.closed++ }

func (l *lot) do(verb string, items []*parked.Item) (first error) {
	ids := []string{verb}
	for _, m := range items {
		ids = append(ids, m.Envelope.ID)
		if m.Edited {
			ids = append(ids, string(m.Envelope.Body))
		}
		m.Err = l.fail[m.Envelope.ID]
		m.Changed = m.Err == nil && m.Envelope.ID != l.gone
		first = errors.Join(first, m.Err)
	}
	l.calls = append(l.calls, strings.Join(ids, " "))
	return first
}

// A read ends when it has as many messages as it wants. Only an inspection shows a body.
func TestReads(t *testing.T) {
	t.Parallel()
	l := newLot("a", "b", "a", "a")
	s := l.walks(0)
	a := admin.ParkedFilter{IDs: []string{"a"}}
	list, err := s.ListParked(t.Context(), "q", a, 2)
	if err != nil || len(list) != 2 || list[1].Position != 3 || list[0].Envelope.Body != nil || !reflect.DeepEqual(l.wants, []int{2, 1, 1}) {
		t.Errorf("a list of 2 wanted %v, and has %+v, %v", l.wants, list, err)
	}
	if p, err := s.InspectParked(t.Context(), "q", a); err != nil || p.Position != 1 || len(p.Envelope.Body) == 0 {
		t.Errorf("the oldest is %+v, %v", p, err)
	}
	if _, err := s.InspectParked(t.Context(), "q", admin.ParkedFilter{IDs: []string{"c"}}); !errors.Is(err, waybill.ErrNotFound) {
		t.Errorf("nothing matches: %v, want waybill.ErrNotFound", err)
	}
	if counts, err := s.CountParked(t.Context(), "q"); err != nil || counts[waybill.ReasonRejected] != 4 {
		t.Errorf("counted %v, %v", counts, err)
	}
	if n, err := s.ParkedDepth(t.Context(), "q"); n != 4 || err != nil {
		t.Errorf("%d are parked, %v", n, err)
	}
	if l.closed != 5 {
		t.Errorf("%d of 5 walks were closed", l.closed)
	}
	for _, f := range []admin.ParkedFilter{{}, {Positions: []int{-1}}} {
		if _, err := s.ListParked(t.Context(), "q", f, 0); !errors.Is(err, waybill.ErrInvalid) {
			t.Errorf("a list of 0: %v, want waybill.ErrInvalid", err)
		}
	}
	s.MaxListed = 2
	if list, err := s.ListParked(t.Context(), "q", admin.ParkedFilter{}, 10); err != nil || len(list) != 2 || len(l.wants) != 2 {
		t.Errorf("a list that looks at 2 looked at %d, and has %d, %v", len(l.wants), len(list), err)
	}
}

// Replay and Purge pass the selected messages to the walk in steps. The limit counts the changed messages.
func TestChanges(t *testing.T) {
	t.Parallel()
	outage, refused, fixed := errors.New("outage"), errors.New("refused"), errors.New("fixed")
	edit := func(p admin.Parked) ([]byte, error) {
		if p.Envelope.ID == "c" {
			return nil, refused
		}
		return append([]byte("new "), p.Envelope.Body...), nil
	}
	for name, c := range map[string]struct {
		batch  int
		req    admin.ParkedRequest
		purge  bool
		setup  func(l *lot)
		calls  []string
		done   int
		err    error
		told   string
		wanted []int
	}{
		"one after the other": {calls: []string{"replay a", "replay b", "replay c", "replay d", "replay e"}, done: 5, told: "a b c d e"},
		"steps":               {batch: 2, calls: []string{"replay a b", "replay c d", "replay e"}, done: 5, told: "a b c d e"},
		"a purge":             {batch: 3, purge: true, calls: []string{"remove a b c", "remove d e"}, done: 5, told: "a b c d e"},
		"a filter": {
			batch: 2, req: admin.ParkedRequest{Filter: admin.ParkedFilter{IDs: []string{"b", "c", "e"}}},
			calls: []string{"replay b c", "replay e"}, done: 3, told: "b c e",
		},
		"a limit": {
			batch: 2, req: admin.ParkedRequest{All: true, Limit: 3}, calls: []string{"replay a b", "replay c"}, done: 3, told: "a b c",
			wanted: []int{3, 2, 1},
		},
		"another call is faster": {
			batch: 2, req: admin.ParkedRequest{All: true, Limit: 2}, setup: func(l *lot) { l.gone = "b" },
			calls: []string{"replay a b", "replay c"}, done: 2, told: "a c",
		},
		"a failure ends it": {
			batch: 2, setup: func(l *lot) { l.fail["d"] = outage }, calls: []string{"replay a b", "replay c d"}, done: 3, err: outage, told: "a b c d:outage",
		},
		"expired messages stay": {
			setup: func(l *lot) {
				l.items[0].Reason = waybill.ReasonExpired
				l.items[1].Envelope.Expires = time.Now().Add(-time.Second)
				l.items[2].Envelope.Expires = time.Now().Add(time.Hour)
			},
			calls: []string{"replay c", "replay d", "replay e"}, done: 3, told: "c d e",
		},
		"a purge takes expired ones": {
			batch: 9, purge: true, setup: func(l *lot) { l.items[0].Reason, l.items[1].Fixed = waybill.ReasonExpired, fixed },
			calls: []string{"remove a b c d e"}, done: 5, told: "a b c d e",
		},
		"some cannot be replayed": {
			batch: 9, setup: func(l *lot) { l.items[1].Fixed = fixed }, calls: []string{"replay a c d e"}, done: 4, told: "b:fixed a c d e",
		},
		"an edit": {
			batch: 2, req: admin.ParkedRequest{All: true, Edit: edit, Limit: 3},
			calls: []string{"replay a new body b new body", "replay d new body"}, done: 3, told: "a b c:refused d",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLot("a", "b", "c", "d", "e")
			if c.setup != nil {
				c.setup(l)
			}
			var told []string
			c.req.Queue, c.req.All = "q", c.req.All || c.req.Filter.IsZero()
			c.req.Result = func(p admin.Parked, err error) {
				if told = append(told, p.Envelope.ID); err != nil {
					told[len(told)-1] += ":" + err.Error()
				}
				if p.Envelope.Body != nil {
					t.Errorf("the result of %s has a body", p.Envelope.ID)
				}
			}
			looked, total := 0, 0
			c.req.Progress = func(l, n int) { looked, total = l, n }
			call := l.walks(c.batch).ReplayParked
			if c.purge {
				call = l.walks(c.batch).PurgeParked
			}
			n, err := call(t.Context(), c.req)
			if n != c.done || !errors.Is(err, c.err) || !slices.Equal(l.calls, c.calls) || strings.Join(told, " ") != c.told {
				t.Errorf("changed %d, %v\nby %q\nand told %q", n, err, l.calls, told)
			}
			if c.wanted != nil && !slices.Equal(l.wants, c.wanted) {
				t.Errorf("it wanted %v, not %v", l.wants, c.wanted)
			}
			if err == nil && (looked != l.at || total != 5) || l.closed != 1 {
				t.Errorf("at last %d of %d were looked at, not %d; closed %d times", looked, total, l.at, l.closed)
			}
		})
	}
}

// The rate is kept in steps of a tenth of a second at most. A cancelled call says how far it came.
func TestRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		l := newLot("a", "b", "c", "d", "e")
		began := time.Now()
		n, err := l.walks(64).ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true, PerSecond: 20})
		if took := time.Since(began); n != 5 || err != nil || took != 200*time.Millisecond || l.calls[0] != "replay a b" {
			t.Errorf("replayed %d, %v, by %q in %s, want 2 each 100 ms", n, err, l.calls, took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		req := admin.ParkedRequest{Queue: "q", All: true, PerSecond: 1, Result: func(admin.Parked, error) { cancel() }}
		if n, err := l.walks(1).PurgeParked(ctx, req); n != 1 || !errors.Is(err, context.Canceled) || waybill.ClassOf(err) != waybill.ClassOutage || !strings.HasPrefix(fmt.Sprint(err), "waybill/test: purge parked: ") {
			t.Errorf("purged %d before it was cancelled, %v", n, err)
		}
	})
}

// A call whose context has ended looks no further, also where no message matches.
func TestCancelled(t *testing.T) {
	t.Parallel()
	l := newLot("a", "b", "c")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := admin.ParkedFilter{IDs: []string{"none"}}
	if n, err := l.walks(2).ReplayParked(ctx, admin.ParkedRequest{Queue: "q", Filter: f}); n != 0 || !errors.Is(err, context.Canceled) || l.at != 0 || l.closed != 1 {
		t.Errorf("looked at %d, %v, closed %d times", l.at, err, l.closed)
	}
}

// A message whose body was edited has the hash of the one before, so that an inbox does not take it for another one.
func TestEditIsMarked(t *testing.T) {
	t.Parallel()
	l := newLot("a")
	before := content.Hash(&waybill.Envelope{ID: "a", Body: []byte("loaded")}, false)
	w := l.walks(1)
	open := w.Open
	m := &marked{lot: l}
	w.Open = func(ctx context.Context, op, queue string) (parked.Walk, error) {
		_, err := open(ctx, op, queue)
		return m, err
	}
	edit := func(p admin.Parked) ([]byte, error) { return append(p.Envelope.Body, " is new"...), nil }
	n, err := w.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true, Edit: edit})
	if mark, ok := content.Before(&m.sent); n != 1 || err != nil || !ok || mark != before || string(m.sent.Body) != "loaded is new" {
		t.Errorf("replayed %d, %v: %+v", n, err, m.sent)
	}
	m.missing = fmt.Errorf("of %w", waybill.ErrNotFound)
	if n, err := w.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true, Edit: edit}); n != 0 || err != nil {
		t.Errorf("replayed %d, %v, though another call was faster", n, err)
	}
}

// marked has bodies only when they are loaded, and keeps the last message that it sends.
type marked struct {
	*lot
	missing error
	sent    waybill.Envelope
}

func (m *marked) Load(_ context.Context, item *parked.Item) error {
	item.Envelope.Body = []byte("loaded")
	return m.missing
}

func (m *marked) Replay(ctx context.Context, items []*parked.Item) error {
	m.sent = items[0].Envelope
	return m.lot.Replay(ctx, items)
}
