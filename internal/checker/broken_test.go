package checker_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// brokenStore is a store with one of its promises broken.
type brokenStore struct {
	core.OutboxStore
	claim  func(ctx context.Context, s core.OutboxStore, c *core.Claim)
	settle func(o []core.Outcome) []core.Outcome
}

func (b *brokenStore) Unwrap() any { return b.OutboxStore }

func (b *brokenStore) Claim(ctx context.Context, req core.ClaimRequest) (core.Claim, error) {
	c, err := b.OutboxStore.Claim(ctx, req)
	if err == nil && b.claim != nil {
		b.claim(ctx, b.OutboxStore, &c)
	}
	return c, err
}

func (b *brokenStore) Settle(ctx context.Context, o []core.Outcome) core.Results {
	if b.settle == nil {
		return b.OutboxStore.Settle(ctx, o)
	}
	stored := b.settle(o)
	return append(b.OutboxStore.Settle(ctx, stored), make(core.Results, len(o)-len(stored))...) // the others have the answer too that all is well
}

type brokenBus struct {
	core.Publisher
	publish func(ctx context.Context, p core.Publisher, batch []core.Envelope) core.Results
}

func (b brokenBus) Publish(ctx context.Context, batch []core.Envelope) core.Results {
	return b.publish(ctx, b.Publisher, batch)
}

type brokenInbox struct {
	store *memory.Store
	do    func(s *memory.Store, ctx context.Context, key core.InboxKey, fn func(context.Context, *memory.Tx) error) (core.InboxStatus, error)
}

func (b brokenInbox) Do(ctx context.Context, key core.InboxKey, fn func(context.Context, *memory.Tx) error) (core.InboxStatus, error) {
	return b.do(b.store, ctx, key, fn)
}

// seldom reports true once in so many calls.
func seldom(n int64) func() bool {
	var calls atomic.Int64
	return func() bool { return calls.Add(1)%n == 0 }
}

// A verifier that finds nothing proves nothing: each of these breaks is found.
func TestBroken(t *testing.T) {
	t.Parallel()
	store := func(make func() *brokenStore) breaks {
		return breaks{store: func(s core.OutboxStore) core.OutboxStore {
			b := make()
			b.OutboxStore = s
			return b
		}}
	}
	bus := func(n int64, publish func(ctx context.Context, p core.Publisher, batch []core.Envelope) core.Results) breaks {
		now := seldom(n)
		return breaks{bus: func(p core.Publisher) core.Publisher {
			return brokenBus{p, func(ctx context.Context, p core.Publisher, batch []core.Envelope) core.Results {
				if !now() {
					return p.Publish(ctx, batch)
				}
				return publish(ctx, p, batch)
			}}
		}}
	}
	box := func(do func(s *memory.Store, ctx context.Context, key core.InboxKey, fn func(context.Context, *memory.Tx) error) (core.InboxStatus, error)) breaks {
		return breaks{inbox: func(i core.Inbox[*memory.Tx]) core.Inbox[*memory.Tx] {
			return brokenInbox{i.(*memory.Store), do} //nolint:forcetypeassert // it is
		}}
	}
	for _, tc := range []struct {
		name, finds string
		broken      breaks
	}{
		{"claims come in the wrong order", "order", store(func() *brokenStore {
			return &brokenStore{claim: func(_ context.Context, _ core.OutboxStore, c *core.Claim) { slices.Reverse(c.Records) }}
		})},
		{"leases hold back nobody", "overlap|lease|fencing", store(func() *brokenStore {
			return &brokenStore{claim: func(ctx context.Context, s core.OutboxStore, c *core.Claim) {
				for i := range c.Records {
					s.Settle(ctx, []core.Outcome{core.Release(&c.Records[i], 0)})
				}
			}}
		})},
		{"a settle stores retries as published", "lost", store(func() *brokenStore {
			var mu sync.Mutex
			held := map[int64]core.Record{}
			return &brokenStore{
				claim: func(_ context.Context, _ core.OutboxStore, c *core.Claim) {
					mu.Lock()
					defer mu.Unlock()
					for _, r := range c.Records {
						held[r.Lease.Token] = r
					}
				},
				settle: func(o []core.Outcome) []core.Outcome {
					mu.Lock()
					defer mu.Unlock()
					o = slices.Clone(o)
					for i := range o {
						if r := held[o[i].Token()]; o[i].Event() == core.EventRejected {
							o[i] = core.Published(&r)
						}
					}
					return o
				},
			}
		})},
		{"settles are not stored", "stalled|overlap|fencing|lost", store(func() *brokenStore {
			return &brokenStore{settle: func(o []core.Outcome) []core.Outcome { return o[:0] }}
		})},
		{"confirmed, but not routed", "lost", bus(20, func(_ context.Context, _ core.Publisher, batch []core.Envelope) core.Results {
			return make(core.Results, len(batch))
		})},
		{"bodies get mixed up", "changed", bus(20, func(ctx context.Context, p core.Publisher, batch []core.Envelope) core.Results {
			for i := range batch {
				batch[i].Body = batch[0].Body
				batch[i].Key = "x"
			}
			return p.Publish(ctx, batch)
		})},
		{"refusals of the broker's own making", "attempts|state", bus(20, func(_ context.Context, _ core.Publisher, batch []core.Envelope) core.Results {
			return core.AllFailed(len(batch), errors.New("no"))
		})},
		{"an inbox without marks", "effects", box(func(s *memory.Store, ctx context.Context, _ core.InboxKey, fn func(context.Context, *memory.Tx) error) (core.InboxStatus, error) {
			tx := s.Begin()
			defer tx.Rollback()
			if err := fn(ctx, tx); err != nil {
				return core.InboxNone, err
			}
			return core.InboxProcessed, tx.Commit()
		})},
		{"an inbox that keeps the marks of failures", "effects", box(func(s *memory.Store, ctx context.Context, key core.InboxKey, fn func(context.Context, *memory.Tx) error) (core.InboxStatus, error) {
			st, err := s.Do(ctx, key, func(context.Context, *memory.Tx) error { return nil })
			if err != nil || st == core.InboxDuplicate {
				return st, err
			}
			tx := s.Begin()
			defer tx.Rollback()
			if err := fn(ctx, tx); err != nil {
				return core.InboxNone, err
			}
			return core.InboxProcessed, tx.Commit()
		})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(300) {
				problems, _ := history(t, seed, &tc.broken)
				if len(problems) > 0 {
					t.Logf("found in history %d: %s", seed+1, problems[0])
					if !regexp.MustCompile(`at \d+: (` + tc.finds + `)`).MatchString(strings.Join(problems, "\n")) {
						t.Errorf("not found for what it is: %s", strings.Join(problems, "\n"))
					}
					return
				}
			}
			t.Error("not found in 300 histories")
		})
	}
}

// mutations are lines of engine and store that order and delivery stand on. Each is in the source once. Of the spare ones
// other lines guard the same, so that no history of 10,000 needs them: it is only said whether one was found.
var mutations = []struct {
	name, file, old, mutated string
	spare                    bool
}{
	{"cut hands nothing back", "relay/lanes.go", "for n := it.next; n != nil; n = n.next {\n\t\tswitch", "for n := it.next; n != nil && e == nil; n = n.next {\n\t\tswitch", false},
	{"what follows a failed record in its lane is sent", "relay/lanes.go", "prev != nil && prev.broken ||", "", false},
	{"severed lanes are forgotten", "relay/lanes.go", "|| e.severed[key]", "", true},
	{"what was claimed behind is sent at once", "relay/lanes.go", "prev.next = it\n\t\t\t\tcontinue", "prev.next = it", false},
	{"claims of an old session are trusted", "relay/lanes.go", "session != e.session ||", "", true},
	{"a late publish starts anyway", "relay/lanes.go", "return handBack // too late", "// too late", true},
	{"a claim does not wait for broken records", "relay/settle.go", "e.breaks++", "_ = it", true},
	{"a claim's lost answer keeps the session", "relay/claim.go", "e.newSession() // it may have been committed", "", false},
	{"a released record is not broken", "relay/settle.go", "it.broken = o.Event() != core.EventConfirmed && !abandoned", "it.broken = o.Event() == core.EventRejected", false},
	{"a key goes on before the store knows of an abandoned one", "relay/settle.go", "it.limbo {\n\t\te.limbo[it.lane()]++\n\t}", "it.limbo {\n\t\te.limbo[it.lane()]++\n\t\te.leaveLimbo(it, true)\n\t}", false},
	{"a lost lease frees the key", "relay/settle.go", "e.leaveLimbo(it, false)\n\t\t\te.letGo(it)\n\t\tcase core.ClassOf", "e.leaveLimbo(it, true)\n\t\t\te.letGo(it)\n\t\tcase core.ClassOf", true},
	{"an outage counts as a refusal", "relay/publish.go", "case core.ClassOutage:\n\t\tif !e.stopping", "case core.ClassOutage + 100:\n\t\tif !e.stopping", false},
	{"a lost answer counts as success", "relay/publish.go", "if res[i] == nil {", "if res[i] == nil || classify(res[i]) == core.ClassOutage {", false},
	{"what was behind a lost answer counts as unsent", "relay/publish.go", "it.behind && classify(err) == core.ClassOutage", "it.behind && err == nil", false},
	{"a failed record lets its lane go on", "relay/settle.go", "e.conclude(it, core.Retry(it.rec, err, in))\n\te.cut(it)", "e.conclude(it, core.Retry(it.rec, err, in))\n\te.advance(it)", false},
	{"abandoned records block nothing", "relay/settle.go", "core.StateAbandoned && !it.route.BlockAfterAbandon && !it.lost", "core.StateAbandoned && !it.lost", false},
	{"the store opens a key whose own later record is held", "store/memory/lane.go", "k.holder == session && k.top < k.ready.at(0).seq", "k.holder == session", true},
	{"the store opens a key to every session", "store/memory/lane.go", "k.shared() && k.holder == session &&", "k.shared() &&", false},
	{"the store forgets who waits for a retry", "store/memory/lane.go", "if r.joined && r.env.Key != \"\" {\n\t\t\tk := l.key(r.env.Key)\n\t\t\tk.hold(r)", "if r.joined && r.state == core.StateProcessing && r.env.Key != \"\" {\n\t\t\tk := l.key(r.env.Key)\n\t\t\tk.hold(r)", false},
	{"the store ignores blocked keys", "store/memory/claim.go", "return w.order.BlockAfterAbandon && k.abandoned > 0", "return false", false},
	{"the store's settle ignores the token", "store/memory/store.go", "|| r.token != token", "", false},
	{"a skipped topic does not end its key's prefix", "store/memory/claim.go", "if w.skips(r) || r.suspectNow() {\n\t\t\t\t\tcontinue", "if w.skips(r) || r.suspectNow() {\n\t\t\t\t\tfollow(at.key, at.pos+1)\n\t\t\t\t\tcontinue", false},
	{"an open cancellation does not hold its key", "store/memory/withdraw.go", "k.holds += n", "_ = n", false},
	{"a cancellation forgets lost answers", "store/memory/withdraw.go", "if r.maybe || r.crashes > 0 {", "if r.crashes > 0 {", false},
	{"expired leases count no crash", "store/memory/withdraw.go", "if r.maybe || r.crashes > 0 {", "if r.maybe {", false},
}

// Every mutation of engine and store is found. It compiles each, which takes minutes: set WAYBILL_CHECKER_MUTATIONS=1, or
// part of a name.
func TestMutations(t *testing.T) {
	only := os.Getenv("WAYBILL_CHECKER_MUTATIONS")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	after := regexp.MustCompile(`history (\d+): seed`)
	kinds := regexp.MustCompile(`at \d+: (\w+):`)
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			file := filepath.Join(root, m.file)
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(src), m.old); n != 1 {
				t.Fatalf("%s holds the line %d times: %s", m.file, n, m.old)
			}
			if only == "" || only != "1" && !strings.Contains(m.name, only) {
				t.Skip("set WAYBILL_CHECKER_MUTATIONS=1")
			}
			dir := t.TempDir()
			mutated, overlay := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json")
			if err := os.WriteFile(mutated, []byte(strings.Replace(string(src), m.old, m.mutated, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(map[string]any{"Replace": map[string]string{file: mutated}})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(overlay, text, 0o600); err != nil {
				t.Fatal(err)
			}
			histories := "40000" // the rarest are found in some thousands
			if m.spare {
				histories = "10000"
			}
			cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-overlay", overlay, "-run", "^TestHistories$", ".", "-histories", histories)
			out, err := cmd.CombinedOutput()
			switch found := after.FindStringSubmatch(string(out)); {
			case err == nil && m.spare:
				t.Log("not found: other lines guard the same")
			case err == nil:
				t.Error("not found")
			case found == nil:
				t.Errorf("%v\n%.2000s", err, out)
			default:
				what := map[string]bool{}
				for _, k := range kinds.FindAllStringSubmatch(string(out), -1) {
					what[k[1]] = true
				}
				t.Logf("found in history %s: %v", found[1], what)
			}
		})
	}
}
