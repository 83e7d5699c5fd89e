package cli_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// counted is a store that notes what it is asked, and walks over many records that match nothing.
type counted struct {
	*memory.Store
	mu    sync.Mutex
	calls []string
	pages []admin.PageRequest
}

func (s *counted) note(call string, page admin.PageRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.pages = append(s.calls, call), append(s.pages, page)
}

func (s *counted) Counts(ctx context.Context) ([]admin.Count, error) {
	s.note("counts", admin.PageRequest{})
	return s.Store.Counts(ctx)
}

func (s *counted) Inspect(ctx context.Context, route, id string) (admin.Stored, error) {
	s.note("inspect", admin.PageRequest{})
	return s.Store.Inspect(ctx, route, id)
}

// next is where a walk over 45,000 records goes on.
func next(p admin.PageRequest) int64 {
	if n := p.After + int64(p.Budget); n < 45_000 {
		return n
	}
	return 0
}

func (s *counted) List(_ context.Context, _ admin.Filter, p admin.PageRequest) (admin.Listing, error) {
	s.note("list", p)
	return admin.Listing{Next: next(p)}, nil
}

func (s *counted) PurgeRecords(_ context.Context, req admin.PurgeRequest) (admin.Purged, error) {
	s.note("purge", req.Page)
	return admin.Purged{Next: next(req.Page)}, nil
}

func (s *counted) Redrive(_ context.Context, req admin.RedriveRequest) (admin.Redriven, error) {
	s.note("redrive", req.Page)
	return admin.Redriven{Next: next(req.Page)}, nil
}

func (s *counted) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	s.note("heartbeat", admin.PageRequest{})
	return s.Store.Heartbeat(ctx, m)
}

func (s *counted) BlockedKeys(ctx context.Context, req admin.BlockedKeysRequest) ([]admin.BlockedKey, bool, error) {
	s.note("keys", admin.PageRequest{Limit: req.Limit})
	return s.Store.BlockedKeys(ctx, req)
}

// OP-01: with any number of records in a store, one question looks at no more than 20,000 rows, and a command that only
// looks asks a fixed number of questions. So its time does not depend on how many records wait.
func TestScanIsBounded(t *testing.T) {
	t.Parallel()
	const most = 20_000
	store, err := memory.New(memory.Options{Source: "/shop"})
	if err != nil {
		t.Fatal(err)
	}
	tx := store.Begin()
	if _, err := store.Stage(t.Context(), tx, message("fine", "one", waybill.Key("k1"))); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	kind := func(s *counted) cli.StoreKind {
		return cli.NewStoreKind("counted", func(context.Context, *struct{}, cli.Env) (*cli.Store, error) {
			return &cli.Store{Outbox: s, Close: func(context.Context) error { return nil }}, nil
		})
	}
	var _ core.OutboxStore = &counted{}
	for args, want := range map[string]string{
		"status":                                "counts list heartbeat", // the first due message, what is out
		"list":                                  "list",
		"list --limit 1000":                     "list",
		"list --tenant nobody":                  "list",
		"list --topic typo":                     "list",
		"list --topic typo --after 30000":       "list list", // the end was reached: is the topic's name wrong?
		"show nobody":                           "list counts inspect",
		"show default nobody":                   "inspect",
		"keys list":                             "keys",
		"purge --tenant nobody --dry-run":       "purge purge purge",
		"purge --tenant nobody":                 "purge",
		"cancel --key k1":                       "purge",
		"redrive --topic fine --dry-run":        "redrive redrive redrive",
		"dlq list default --store shop":         "counts counts list counts",
		"dlq replay default --all --store shop": "counts counts counts counts list",
	} {
		s := &counted{Store: store}
		var out, errs bytes.Buffer
		app := cli.App{Stores: []cli.StoreKind{kind(s)}}
		app.Run(t.Context(), append(strings.Fields(args), "--set", "stores.shop.kind=counted"), cli.IO{In: &out, Out: &out, Err: &errs})
		if got := strings.Join(s.calls, " "); got != want {
			t.Errorf("%s asks %q, want %q\n%s", args, got, want, errs.String())
		}
		for _, p := range s.pages {
			if (p.Budget > most && !strings.HasPrefix(args, "dlq")) || p.Limit > admin.MaxPageLimit {
				t.Errorf("%s: %+v", args, p)
			}
		}
	}
}
