package cli

import (
	"context"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
)

// Unit stages and cancels messages in transactions of its own, for the commands cancel and bench. Make one with
// NewUnit.
type Unit interface {
	// Stage stages messages in one transaction.
	Stage(ctx context.Context, msgs ...waybill.Message) error
	// Cancel cancels messages in one transaction, and returns one status for each key.
	Cancel(ctx context.Context, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error)
}

// StagerCanceller is what a Unit needs of a store.
type StagerCanceller[Tx any] interface {
	waybill.Stager[Tx]
	waybill.Canceller[Tx]
}

// NewUnit returns a Unit of store. transact is as in [waybill.NewUnitOfWork].
func NewUnit[Tx any](
	store StagerCanceller[Tx], transact func(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error,
) Unit {
	return partition[Tx]{store, transact}
}

type partition[Tx any] struct {
	store    StagerCanceller[Tx]
	transact func(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error
}

func (u partition[Tx]) Stage(ctx context.Context, msgs ...waybill.Message) error {
	return u.transact(ctx, func(ctx context.Context, tx Tx) error {
		_, err := u.store.Stage(ctx, tx, msgs...)
		return err
	})
}

func (u partition[Tx]) Cancel(ctx context.Context, keys ...waybill.CancelKey) (statuses []waybill.CancelStatus, err error) {
	err = u.transact(ctx, func(ctx context.Context, tx Tx) error {
		statuses, err = u.store.Cancel(ctx, tx, keys...)
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
