package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// BatchOptions configures a [BatchHandler]. The zero value is a good choice.
type BatchOptions struct {
	// Size bounds the messages of one transaction; default 100.
	Size int
	// Wait is how long a message waits for its batch to fill; default 0: a batch holds the messages that are there
	// when a handler is free.
	Wait time.Duration
}

// Item is one message of a batch.
type Item[T any] struct {
	// Value is the decoded body.
	Value T
	// Delivery is the delivered message. Do not change it.
	Delivery *waybill.Delivery
}

// Context returns a context for reactions to this item: messages that are staged under it are caused by the item.
func (i *Item[T]) Context(ctx context.Context) context.Context {
	return waybill.WithDelivery(ctx, i.Delivery)
}

// BatchHandler is [Handler] for many messages at a time: fn's writes through tx and the marks of all items are one
// transaction. That is many times cheaper than one transaction a message. fn gets the new messages in the order of
// their arrival, and messages of one key in their order. Duplicates and messages that cannot be decoded are left out.
// If fn fails or panics, nothing had an effect, and every message of the batch is handled alone: fn is then called with
// one item, as Handler would do. So one bad message does not fail its neighbours. An outage releases all of them
// instead.
//
// Messages staged under ctx have no cause; use [Item.Context]. With a store that has no [core.BatchInbox], fn always
// gets one item.
func BatchHandler[Tx, T any](
	box *Inbox[Tx], topic waybill.Topic[T], fn func(ctx context.Context, tx Tx, items []Item[T]) error, opts BatchOptions,
) waybill.Handler {
	if box == nil || fn == nil {
		// without Handle: the consumer refuses it by name
		return waybill.Handler{Name: topic.Name(), NameIsTopic: true}
	}
	single := func(ctx context.Context, tx Tx, v T) error {
		d, _ := waybill.DeliveryFrom(ctx)
		return fn(ctx, tx, []Item[T]{{Value: v, Delivery: d}})
	}
	h := Handler(box, topic, single)
	h.BatchSize, h.BatchWait = opts.Size, opts.Wait
	store, ok := core.As[core.BatchInbox[Tx]](box.store)
	if !ok {
		h.BatchSize, h.BatchWait = 0, 0
		return h
	}
	h.Batch = func(ctx context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
		// 1. Messages without a key or a value are left out of the batch. keys, items and slots have the others
		// in one order; slots are their places in ds.
		statuses := make([]waybill.HandlerStatus, len(ds))
		keys, items, slots := make([]core.InboxKey, 0, len(ds)), make([]Item[T], 0, len(ds)), make([]int, 0, len(ds))
		for i, d := range ds {
			key, errKey := box.Key(d)
			v, err := decode(topic, &d.Envelope)
			if errKey != nil || err != nil {
				statuses[i] = waybill.HandlerLeftOut // Handle finds the same and says so
				continue
			}
			keys, items, slots = append(keys, key), append(items, Item[T]{v, d}), append(slots, i)
		}
		if len(keys) == 0 {
			return statuses, nil
		}
		// 2. One transaction: the marks of all, and fn with those that are new.
		first := true
		marks, err := store.DoBatch(ctx, keys, func(ctx context.Context, tx Tx, fresh []int) error {
			news := make([]Item[T], len(fresh))
			for n, i := range fresh {
				news[n] = items[i]
				if !first { // as in Handler: the database asked for another run
					v, err := decode(topic, &items[i].Delivery.Envelope)
					if err != nil {
						return err
					}
					news[n].Value = v
				}
			}
			first = false
			return fn(ctx, tx, news)
		})
		if err != nil {
			return nil, err
		}
		if len(marks) != len(keys) {
			return nil, fmt.Errorf("waybill/inbox: the store returned %d statuses for %d keys; "+
				"its DoBatch is broken", len(marks), len(keys))
		}
		// 3. Each message gets its status.
		for n, i := range slots {
			switch marks[n] {
			case core.InboxDuplicate:
				statuses[i] = waybill.HandlerDuplicate
			case core.InboxConflict:
				statuses[i] = waybill.HandlerLeftOut // Handle finds the same and says so
			case core.InboxNone, core.InboxNew:
			}
		}
		return statuses, nil
	}
	return h
}
