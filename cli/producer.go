package cli

import (
	"context"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
)

// Producer stages and cancels messages in transactions of its own, for the commands cancel and bench. Make one with
// NewProducer.
type Producer interface {
	// Stage stages messages in one transaction.
	Stage(ctx context.Context, msgs ...waybill.Message) error
	// Cancel cancels messages in one transaction, and returns one status for each key.
	Cancel(ctx context.Context, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error)
}

// StagerCanceller is what a Producer needs of a store.
type StagerCanceller[Tx any] interface {
	waybill.Stager[Tx]
	waybill.Canceller[Tx]
}

// NewProducer returns a Producer of store. transact is as in [waybill.NewUnitOfWork].
func NewProducer[Tx any](
	store StagerCanceller[Tx], transact func(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error,
) Producer {
	return producer[Tx]{store, transact}
}

type producer[Tx any] struct {
	store    StagerCanceller[Tx]
	transact func(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error
}

func (p producer[Tx]) Stage(ctx context.Context, msgs ...waybill.Message) error {
	return p.transact(ctx, func(ctx context.Context, tx Tx) error {
		_, err := p.store.Stage(ctx, tx, msgs...)
		return err
	})
}

func (p producer[Tx]) Cancel(ctx context.Context, keys ...waybill.CancelKey) (statuses []waybill.CancelStatus, err error) {
	err = p.transact(ctx, func(ctx context.Context, tx Tx) error {
		statuses, err = p.store.Cancel(ctx, tx, keys...)
		return err
	})
	return statuses, err
}

// NewMark returns a [Store.Mark] of an inbox.
func NewMark[Tx any](store core.Inbox[Tx]) func(consumer, topic string) (waybill.Handler, error) {
	return func(consumer, topic string) (waybill.Handler, error) {
		box, err := inbox.New(store, consumer, inbox.Options{})
		if err != nil {
			return waybill.Handler{}, err
		}
		return inbox.Handler(box, waybill.NewTopic(topic, waybill.Bytes("")), func(context.Context, Tx, []byte) error { return nil }), nil
	}
}
