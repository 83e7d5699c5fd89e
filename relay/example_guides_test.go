package relay_test

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
)

type Reminder struct{ Invoice string }

var ReminderDue = waybill.NewTopic("reminders.due", waybill.JSON[Reminder]())

// Timers, as docs/scheduling.md tells them.
func Example_scheduling() {
	ctx := context.Background()
	store, _ := exampleStore()

	schedule := func(tx *memory.Tx, invoice string) error {
		_, err := store.Stage(ctx, tx,
			ReminderDue.Message(Reminder{invoice}, waybill.Delay(14*24*time.Hour), waybill.DedupeKey(invoice)))
		return err
	}

	at := func(tx *memory.Tx, invoice string, when time.Time) error {
		_, err := store.Stage(ctx, tx,
			ReminderDue.Message(Reminder{invoice}, waybill.DeliverAt(when), waybill.TTL(30*24*time.Hour)))
		return err
	}

	postpone := func(tx *memory.Tx, invoice string) error {
		staged, err := store.Stage(ctx, tx,
			ReminderDue.Message(Reminder{invoice}, waybill.Delay(28*24*time.Hour), waybill.Replace(invoice)))
		if err == nil && staged[0].Replaced == waybill.CancelInFlight {
			fmt.Println("the old reminder is on its way; there will be two")
		}
		return err
	}

	paid := func(tx *memory.Tx, invoice string) error {
		status, err := store.Cancel(ctx, tx, ReminderDue.CancelKeys(invoice)...)
		if err == nil {
			fmt.Println("the reminder:", status[0])
		}
		return err
	}

	tx := store.Begin()
	orPanic(schedule(tx, "17"))
	orPanic(at(tx, "18", time.Now().Add(time.Hour)))
	orPanic(tx.Commit())
	for _, f := range []func(*memory.Tx, string) error{postpone, paid} {
		tx := store.Begin()
		orPanic(f(tx, "17"))
		orPanic(tx.Commit())
	}
	// Output: the reminder: cancelled
}

// The orders of a route, as docs/ordering.md tells them.
func Example_ordering() {
	ctx := context.Background()
	store, bus := exampleStore()

	tx := store.Begin()
	_, err := store.Stage(ctx, tx,
		InvoiceDue.Message(Invoice{ID: "17"}, waybill.Key("17")), // in order with the others of invoice 17
		MailWanted.Message(Invoice{ID: "17"}))                    // in no order: no key
	orPanic(err)
	orPanic(tx.Commit())

	r, err := relay.New(store, bus, relay.Options{Routes: []relay.Route{
		{Name: "default"},                                    // per key
		{Name: "ledger", BlockAfterAbandon: true},            // nothing of a key passes one that was given up
		{Name: "mails", Order: waybill.OrderBestEffort},      // a message that is retried holds nobody up
		{Name: "journal", Order: waybill.OrderBestEffortHLC}, // by time stamp, within a read
	}})
	orPanic(err)
	_ = r

	keys, _, err := store.BlockedKeys(ctx, admin.BlockedKeysRequest{Route: "ledger", BlockAfterAbandon: true, Limit: 100})
	orPanic(err)
	for _, k := range keys {
		fmt.Println(k.Key, "waits since", k.Since, "for", k.Head.Envelope.ID, k.Head.LastError)
		orPanic(store.DecideHead(ctx, k.Route, k.Key, k.Head.Envelope.ID, admin.HeadSkip))
	}
	// Output:
}
