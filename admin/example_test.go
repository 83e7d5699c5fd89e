package admin_test

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// Delete the records of a tenant from an outbox, due or not.
func ExamplePurgeAll() {
	ctx := context.Background()
	outbox, err := memory.New(memory.Options{Source: "/orders"})
	if err != nil {
		panic(err)
	}
	tx := outbox.Begin()
	for _, tenant := range []string{"acme", "other"} {
		later := waybill.RawMessage("orders.reminder", "", nil, waybill.Tenant(tenant), waybill.Delay(time.Hour))
		due := waybill.RawMessage("orders.placed", "", nil, waybill.Tenant(tenant))
		if _, err := outbox.Stage(ctx, tx, later, due); err != nil {
			panic(err)
		}
	}
	if err := tx.Commit(); err != nil {
		panic(err)
	}
	erase := func() error {
		req := admin.PurgeRequest{Filter: admin.Filter{Tenants: []string{"acme"}}}
		sum, err := admin.PurgeAll(ctx, outbox, req, admin.TerminateOptions{})
		if err != nil {
			return err
		}
		fmt.Println(sum.Purged.Deleted, "deleted,", sum.Ended.Otherwise, "published meanwhile")
		return nil
	}
	if err := erase(); err != nil {
		panic(err)
	}
	// Output:
	// 2 deleted, 0 published meanwhile
}

// Ask a store for the capability, then list its records page by page.
func ExampleInspector() {
	ctx := context.Background()
	outbox, err := memory.New(memory.Options{Source: "/orders"})
	if err != nil {
		panic(err)
	}
	tx := outbox.Begin()
	for _, id := range []string{"m-1", "m-2", "m-3"} {
		if _, err := outbox.Stage(ctx, tx, waybill.RawMessage("orders.placed", "", nil, waybill.ID(id))); err != nil {
			panic(err)
		}
	}
	if err := tx.Commit(); err != nil {
		panic(err)
	}

	inspector, ok := core.As[admin.Inspector](outbox)
	if !ok {
		panic("this store cannot list its records")
	}
	waiting := admin.Filter{States: []core.State{core.StatePending}}
	page := admin.PageRequest{Limit: 2}
	for {
		list, err := inspector.List(ctx, waiting, page)
		if err != nil {
			panic(err)
		}
		for _, r := range list.Records {
			fmt.Println(r.Seq, r.Route, r.Envelope.ID, r.State)
		}
		if list.Next == 0 {
			break
		}
		page.After = list.Next
	}
	// Output:
	// 1 default m-1 pending
	// 2 default m-2 pending
	// 3 default m-3 pending
}
