package cli_test

// A deployment stops its relays when a store is empty. A count that does not say so must not pass for it.

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// perhaps is a store that cannot tell whether a record waits.
type perhaps struct{ *memory.Store }

func (perhaps) Counts(context.Context) ([]admin.Count, error) {
	return []admin.Count{{Route: "default", State: core.StatePending, Estimated: true, AtLeast: true}}, nil
}

func TestLeastNumberIsNotEmpty(t *testing.T) {
	t.Parallel()
	store, err := memory.New(memory.Options{Source: "/shop"})
	if err != nil {
		t.Fatal(err)
	}
	kind := cli.NewStoreKind("perhaps", func(context.Context, *struct{}, cli.Env) (*cli.Store, error) {
		return &cli.Store{Outbox: perhaps{store}, Close: func(context.Context) error { return nil }}, nil
	})
	var in, out, errs bytes.Buffer
	app := cli.App{Stores: []cli.StoreKind{kind}}
	code := app.Run(t.Context(), []string{"status", "--wait-empty", "--wait-timeout", "1ms", "--set", "stores.shop.kind=perhaps"}, cli.IO{In: &in, Out: &out, Err: &errs})
	if code != 5 || !strings.Contains(errs.String(), "still waiting after 1ms: more than 0 records") {
		t.Errorf("status --wait-empty: %d, %s%s", code, out.String(), errs.String())
	}
}
