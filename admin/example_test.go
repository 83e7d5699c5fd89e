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

// Delete what an outbox holds of a tenant.
func ExamplePurger() {
	ctx := context.Background()
	outbox, err := memory.New(memory.Options{Source: "/orders"})
	if err != nil {
		panic(err)
	}
	tx := outbox.Begin()
	for _, tenant := range []string{"acme", "acme", "other"} {
		m := waybill.RawMessage("orders.reminder", "", nil, waybill.Tenant(tenant), waybill.Delay(time.Hour))
		if _, err := outbox.Stage(ctx, tx, m); err != nil {
			panic(err)
		}
	}
	if err := tx.Commit(); err != nil {
		panic(err)
	}
	left := 0
	erase := func(purger admin.Purger) error {
		req := admin.PurgeRequest{Filter: admin.Filter{Tenants: []string{"acme"}}, Waiting: true}
		for {
			step, err := purger.PurgeRecords(ctx, req)
			if err != nil {
				return err
			}
			left += step.Matched - step.Deleted
			if step.Next == 0 {
				break
			}
			req.Page.After = step.Next
		}
		return nil
	}
	purger, ok := core.As[admin.Purger](outbox)
	if !ok {
		panic("this store cannot delete records")
	}
	if err := erase(purger); err != nil {
		panic(err)
	}
	fmt.Println(left, "left")
	// Output:
	// 0 left
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
