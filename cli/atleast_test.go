package cli_test

// A deployment stops its relays when a store is empty. A count that does not say so must not pass for it.

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// perhaps is a store that cannot tell whether a record waits, the first times that it is asked.
type perhaps struct {
	*memory.Store
	asked *atomic.Int64 // how often it still cannot tell
}

func (p perhaps) Counts(context.Context) ([]admin.Count, error) {
	if p.asked.Add(-1) < 0 {
		return nil, nil
	}
	return []admin.Count{{Route: "default", State: core.StatePending, Estimated: true, AtLeast: true}}, nil
}

// OP-20: "more than 0" is not empty: status waits on, and says so in the end.
func TestLeastNumberIsNotEmpty(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		asked         int64
		timeout, says string
		code          int
	}{
		{1 << 30, "1ms", "still waiting after 1ms: more than 0 records", 5},
		{2, "1h", "", 0}, // a second later it can tell
	} {
		store, err := memory.New(memory.Options{Source: "/shop"})
		if err != nil {
			t.Fatal(err)
		}
		asked := new(atomic.Int64)
		asked.Store(c.asked)
		kind := cli.NewStoreKind("perhaps", func(context.Context, *struct{}, cli.Env) (*cli.Store, error) {
			return &cli.Store{Outbox: perhaps{store, asked}, Close: func(context.Context) error { return nil }}, nil
		})
		var in, out, errs bytes.Buffer
		app := cli.App{Stores: []cli.StoreKind{kind}}
		code := app.Run(t.Context(), []string{"status", "--wait-empty", "--wait-timeout", c.timeout, "--set", "stores.shop.kind=perhaps"}, cli.IO{In: &in, Out: &out, Err: &errs})
		if code != c.code || !strings.Contains(errs.String(), c.says) {
			t.Errorf("status --wait-empty --wait-timeout %s: %d, %s%s", c.timeout, code, out.String(), errs.String())
		}
	}
}
