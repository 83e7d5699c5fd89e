package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/core/rules"
)

// In the table of heads the records of a key stand in all orders of these ways to be.
var keyed = []struct {
	name  string
	facts facts
	ended waybill.Reason
}{
	{"ready", facts{}, ""},
	{"retry", facts{line: retry}, ""},
	{"rejected", facts{}, waybill.ReasonRejected},
	{"held retry", facts{line: retry, held: other}, ""},
	{"held", facts{held: other}, ""},
	{"skipped", facts{}, waybill.ReasonSkipped},
	{"timer", facts{line: timer}, ""},
}

// headTable is a table of keys. decide names the record of each key that an operator decides about.
type headTable struct {
	*table
	list   []facts
	ends   []waybill.Reason
	names  []string
	decide map[int]admin.HeadAction
}

// add adds a key whose records are those ways, and returns the number of the first.
func (h *headTable) add(owner who, ways ...int) int {
	var names []string
	for _, way := range ways {
		names = append(names, keyed[way].name)
	}
	for i, way := range ways {
		f := keyed[way].facts
		f.keyed, f.partition, f.follows = true, owner, i > 0
		h.list, h.ends = append(h.list, f), append(h.ends, keyed[way].ended)
		h.names = append(h.names, fmt.Sprintf("%d of [%s]", i+1, strings.Join(names, ", ")))
	}
	return len(h.list) - len(ways)
}

// heads returns the table: keys of up to two records, each of which is decided about, and keys of three.
func (k *kit) heads() *headTable {
	h := &headTable{decide: map[int]admin.HeadAction{}}
	both := func(ways ...int) {
		for at := range ways {
			h.decide[h.add(self, ways...)+at] = admin.HeadSkip
			h.decide[h.add(self, ways...)+at] = admin.HeadRequeue
			h.decide[h.add(nobody, ways...)+at] = admin.HeadSetAside
		}
	}
	for way := range keyed {
		both(way)
	}
	const pairs, triples = 6, 4 // the first ways
	for a := range pairs {
		for b := range pairs {
			both(a, b)
			for c := range triples {
				if max(a, b) < triples {
					h.add(self, a, b, c)
				}
			}
		}
	}
	trial := len(h.list)
	h.list, h.ends, h.names = append(h.list, facts{partition: self}), append(h.ends, ""), append(h.names, "alone")
	h.table = k.table(h.list)
	h.self.own(0)
	var out []core.Outcome
	for i, r := range h.rows {
		if r.way = h.names[i]; h.ends[i] != "" {
			h.settles(&out, r, core.Cancel(&r.rec, h.ends[i]))
		}
	}
	k.must("end records", k.store.Settle(k.ctx, h.self.Session, out).FirstErr())
	h.shareOut(h.self)
	h.compare("before", func(r *truth) *rules.Row { return &r.Row })
	h.listed(true, false)
	h.hindered()
	out = nil
	h.settles(&out, h.rows[trial], core.Retry(&h.rows[trial].rec, waybill.ErrUnroutable, far))
	k.must("fail for want of a queue", k.store.Settle(k.ctx, h.self.Session, out).FirstErr())
	h.listed(false, true)
	return h
}

// settles adds an outcome, which must work, and its result.
func (h *headTable) settles(out *[]core.Outcome, r *truth, o core.Outcome) {
	to, err := rules.Settle(&r.Row, &o, h.self.Session, true)
	h.k.must("settle", err)
	*out, r.Row = append(*out, o), to.Row
}

// of returns the heads of r's key without record except.
func (h *headTable) of(r *truth, except int64) *rules.KeyHeads {
	var heads rules.KeyHeads
	for _, o := range h.rows {
		if o.key == r.key && o.Seq != except {
			heads.Add(&o.Row)
		}
	}
	return &heads
}

// listed compares a list of blocked keys with the rules.
func (h *headTable) listed(blocking, unbound bool) {
	keeper, ok := core.As[admin.BlockedKeys](h.k.store)
	if !ok {
		return
	}
	got := map[string]string{}
	req := admin.BlockedKeysRequest{Route: h.k.route, BlockAfterAbandon: blocking, Limit: 100}
	for more := true; more; {
		var keys []admin.BlockedKey
		var err error
		keys, more, err = keeper.BlockedKeys(h.k.ctx, req)
		h.k.must("blocked keys", err)
		for _, b := range keys {
			h.k.failIf(b.Key <= req.After, "key %q is listed behind %q", b.Key, req.After)
			got[b.Head.Envelope.ID], req.After = fmt.Sprint(b.Cause, ", behind it ", b.Behind), b.Key
		}
	}
	h.differences(fmt.Sprintf("a list of blocked keys, blocking %v, no queue bound %v", blocking, unbound), func(r *truth) (string, string) {
		return got[r.ID], h.listing(r, blocking, unbound)
	})
}

// listing is what a list says of r.
func (h *headTable) listing(r *truth, blocking, unbound bool) string {
	if !r.keyed {
		return ""
	}
	behind, heads := 0, h.of(r, 0)
	for _, o := range h.rows {
		if o.key == r.key && o != r && o.Ready() {
			behind++
		}
	}
	var cause string
	switch head := heads.Head(blocking); {
	case head == 0 && heads.Next() == r.Seq && unbound && behind > 0:
		cause = "topic"
	case head != r.Seq:
		return ""
	case r.State == core.StateAbandoned:
		cause = "abandoned"
	default:
		cause = "retry"
	}
	return fmt.Sprint(cause, ", behind it ", behind)
}

// hindered compares which record another one waits for with the rules.
func (h *headTable) hindered() {
	explainer, ok := core.As[admin.Explainer](h.k.store)
	if !ok {
		return
	}
	stored := h.stored()
	h.each("ahead of a record", func(i int, r *truth) (string, string) {
		if h.decide[i] != admin.HeadSkip || stored[r.ID] == nil {
			return "", ""
		}
		blocking := i%2 == 0
		in, err := explainer.Hindrances(h.k.ctx, stored[r.ID], blocking)
		h.k.must("hindrances", err)
		ahead := int64(0)
		if in.Ahead != nil {
			ahead = in.Ahead.Seq
		}
		return fmt.Sprint("record ", ahead), fmt.Sprint("record ", h.of(r, r.Seq).Ahead(r.Seq, blocking))
	})
}

// Lists of blocked keys, hindrances, and decisions about heads follow rules.KeyHeads. OR-05 OP-18.
func rulesHeads(k *kit) {
	keeper, keeps := core.As[admin.BlockedKeys](k.store)
	if _, explains := core.As[admin.Explainer](k.store); !keeps && !explains {
		k.undeclared("admin.BlockedKeys")
	}
	h := k.heads()
	if !keeps {
		return
	}
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	decide := func(i int) error {
		return keeper.DecideHead(ctx, k.route, h.rows[i].key, h.rows[i].ID, h.decide[i])
	}
	changes := make([]rules.HeadChange, len(h.rows))
	pending, waiting := make(chan error, len(h.rows)), 0 // a check can end before the answers
	told := h.told(func() {
		for i := range h.rows {
			if h.decide[i] == 0 {
				continue
			}
			r := h.rows[i]
			r.way = fmt.Sprint(h.decide[i], " ", r.way)
			if changes[i] = h.of(r, 0).Decide(&r.Row, r.in, h.decide[i]); changes[i] == rules.HeadTold {
				waiting++
				go func() {
					_, err := suitetest.Call(func() (any, error) { return nil, decide(i) })
					pending <- err
				}()
				continue
			}
			r.got = headAnswer(decide(i))
		}
		waiting -= h.decisions(waiting, pending)
	})
	cancel()
	for range waiting {
		err := <-pending
		k.failIf(err == nil, "a decision that was not carried out was answered with success when its context ended")
	}
	h.each("decide about a head", func(i int, r *truth) (string, string) {
		if h.decide[i] == 0 || changes[i] == rules.HeadTold {
			return "", ""
		}
		return r.got, map[rules.HeadChange]string{
			rules.HeadNone: "not the head", rules.HeadInFlight: "in flight", rules.HeadEnded: "done", rules.HeadRequeued: "done",
		}[changes[i]]
	})
	for i, r := range h.rows {
		switch changes[i] {
		case rules.HeadEnded:
			r.Row = rules.End(&r.Row, r.in, rules.HeadReason(h.decide[i]))
		case rules.HeadRequeued:
			r.Row, _ = rules.Requeue(&r.Row)
		case rules.HeadNone, rules.HeadInFlight, rules.HeadTold:
		}
	}
	h.compare("after decisions about heads", func(r *truth) *rules.Row { return &r.Row })
	h.each("who is told of decisions about heads", func(i int, r *truth) (string, string) {
		return yes(told(r, core.NoticeDecide)) + yes(told(r, core.NoticeKey)),
			yes(changes[i] == rules.HeadTold) + yes(changes[i] == rules.HeadEnded || changes[i] == rules.HeadRequeued)
	})
}

// decisions waits until owners are told of that many decisions. It returns how many of these were answered meanwhile: a
// store that waits for an owner says after ten seconds that the decision stands, also on a slow machine.
func (h *headTable) decisions(want int, answered <-chan error) (stand int) {
	most := 0
	for w := (suitetest.Wait{}); ; {
		n := 0
		for _, c := range h.self.look(core.ReadRequest{Slots: all(h.k.route), Bytes: int64(pageSize)}).Notices {
			if c.Kind == core.NoticeDecide {
				n++
			}
		}
		if n >= want {
			return stand
		}
		if n > most {
			most = n
			w.Moved()
		}
		select {
		case err := <-answered:
			h.k.failIf(!errors.Is(err, waybill.ErrInFlight), "a decision about a record that can be out was answered before its owner carried it out: %w", err)
			stand++
		default:
		}
		h.k.failIf(!w.Again(h.k.ctx), "owners are told of %d decisions, want %d", n, want)
	}
}

func headAnswer(err error) string {
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, waybill.ErrNotFound):
		return "not the head"
	case errors.Is(err, waybill.ErrInFlight):
		return "in flight"
	}
	return err.Error()
}
