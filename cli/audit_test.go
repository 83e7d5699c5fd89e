package cli_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/internal/testenv"
)

// Each command that acts leaves two lines in the database of the outbox, with who, what and the result. If it cannot
// write the first one it does nothing. What only looks leaves none.
// OP-01
func TestAuditRecord(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	settings := []string{"stores.shop.kind=postgres", "stores.shop.url=" + pg.DSN, "stores.shop.retention.cancelled=1h"}
	run := func(args string) answer { t.Helper(); return command(t, settings, strings.Fields(args)...) }
	run("migrate up").is(t, 0)
	pool := stageTwo(t, pg.DSN)
	for _, looks := range []string{"status", "list", "show a", "redrive --all --dry-run", "purge --tenant x --waiting --dry-run", "cancel a --dry-run", "keys list"} {
		run(looks)
	}
	run("redrive").is(t, 2)
	if n := len(decode[[]struct{}](t, run("audit log --json"))); n != 2 {
		t.Errorf("%d lines before anything but migrate acted", n)
	}
	run("cancel b").is(t, 0, "cancelled")
	run("redrive --reason cancelled").is(t, 0, "1 of 1 record put back")
	run("cancel --tenant x --yes").is(t, 0, "1 of 1 record cancelled")
	run("keys skip k none --yes").is(t, 3)
	run("inbox purge --older 1h --yes").is(t, 0)
	run("dlq purge default --all --yes --store shop").is(t, 0)
	run("migrate up").is(t, 0)
	run("migrate down --to 2 --yes").is(t, 0)
	type line struct{ Number, Role, Act, Phase, User, Via, From, Action, Target, Filter, Result any }
	lines := decode[[]line](t, run("audit log --json"))
	slices.Reverse(lines)
	var got []string
	for i, l := range lines {
		for name, v := range map[string]any{"role": l.Role, "act": l.Act, "user": l.User, "from": l.From} {
			if s, _ := v.(string); s == "" {
				t.Errorf("line %d has no %s", i, name)
			}
		}
		if i%2 == 1 && l.Act != lines[i-1].Act || l.Via != "command" {
			t.Errorf("line %d: act %v via %v", i, l.Act, l.Via)
		}
		text := make([]string, 0, 5)
		for _, v := range []any{l.Phase, l.Action, l.Target, l.Filter, l.Result} {
			s, _ := v.(string)
			text = append(text, s)
		}
		got = append(got, strings.Join(text, "|"))
	}
	want := []string{
		"begin|migrate up|store shop||", "end|migrate up|store shop||",
		"begin|cancel|store shop|args=b|", "end|cancel|store shop|args=b|[cancelled]",
		"begin|redrive|store shop|reason=%5Bcancelled%5D|", "end|redrive|store shop|reason=%5Bcancelled%5D|1 of 1 put back",
		"begin|cancel|store shop|tenant=%5Bx%5D|", "end|cancel|store shop|tenant=%5Bx%5D|1 of 1 cancelled",
		"begin|keys skip|store shop|args=k&args=none|", "end|keys skip|store shop|args=k&args=none|failed",
		"begin|inbox purge|store shop|older=1h0m0s|", "end|inbox purge|store shop|older=1h0m0s|0 deleted",
		"begin|dlq purge|queue default|all=true&store=shop|", "end|dlq purge|queue default|all=true&store=shop|0 deleted, 0 failed",
		"begin|migrate up|store shop||", "end|migrate up|store shop||",
		"begin|migrate down|store shop|to=2|", "end|migrate down|store shop|to=2|",
	}
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("line %d: %s, want %s", i, got[i], want[i])
		}
	}
	run("audit log --limit 1").is(t, 0, "migrate down", "end").not(t, "begin")

	if _, err := pool.Exec(t.Context(), "DROP TABLE waybill.waybill_outbox_audit"); err != nil {
		t.Fatal(err)
	}
	run("cancel b").is(t, 1, "nothing was done, since the audit record cannot be written")
	run("purge --all --waiting --yes").is(t, 1, "nothing was done")
	run("show b").is(t, 0, "pending")
}
