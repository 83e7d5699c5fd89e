package cli_test

import (
	"context"
	"database/sql"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

type record struct {
	Seq     int64
	Route   string
	State   string
	Reason  string
	Message struct {
		ID, Topic, Key, Tenant, Body string
		BodyBase64                   string `json:"body_base64"`
		Headers                      map[string]string
	}
}

type listing struct {
	Records []record
	Next    int64
}

func (l listing) ids() string {
	var out []string
	for _, r := range l.Records {
		out = append(out, r.Message.ID)
	}
	return strings.Join(out, " ")
}

// records stages one record of every kind: pending, scheduled, failed, abandoned, on another route.
func records(tb testing.TB) *shop {
	tb.Helper()
	s := newShop(tb)
	s.stage(
		message("no", "a1", waybill.Key("k1"), waybill.Tenant("acme")), message("later", "f1", waybill.Key("k2")),
		message("fine", "s1", waybill.Delay(time.Hour), waybill.Tenant("acme")),
	)
	s.relayed()
	s.stage(message("fine", "p1"), message("fine", "o1", waybill.Routes("other")))
	return s
}

// OP-01: status counts by route, state and reason.
func TestStatus(t *testing.T) {
	t.Parallel()
	s := records(t)
	s.run("status").is(t, 0, "ROUTE", "default  abandoned  rejected", "other    pending", "4 waiting")
	got := decode[struct {
		Waiting int
		Counts  []struct {
			Route, State, Reason string
			Records              int
		}
	}](t, s.run("status", "--json", "--route", "default").is(t, 0))
	if got.Waiting != 3 || len(got.Counts) != 3 {
		t.Errorf("%+v", got)
	}
	due := decode[struct {
		Due    int
		Counts []struct {
			Route, State string
			Records, Due int
		}
		Waits []struct {
			Route, ID string
			Age       float64 `json:"age_seconds"`
			Waits     struct{ Cause, Text string }
		}
	}](t, s.run("status", "--json").is(t, 0))
	for _, c := range due.Counts { // of the two pending ones one is scheduled
		if want := c.Records - 1; c.Route == "default" && c.State == "pending" && (c.Records != 2 || c.Due != want) {
			t.Errorf("%+v", c)
		}
	}
	if due.Due != 2 || len(due.Waits) != 2 || due.Waits[0].ID != "p1" || due.Waits[1].ID != "o1" || due.Waits[1].Route != "other" || due.Waits[1].Waits.Cause != "no_relay" {
		t.Errorf("%+v", due)
	}
	s.run("status").is(t, 0, "DUE", "4 waiting, 2 due", "route other: message o1 has been due for", "waits: no relay serves route other")
	s.run("status", "--route", "nobody").is(t, 0, "0 waiting").not(t, "waits:")
	a := s.run("status", "--wait-empty", "--wait-timeout", "10ms", "--progress").is(t, 5, "still waiting after 10ms: 4 records", "gone 0 of 4 (0 %)")
	if strings.Contains(a.out, "gone") {
		t.Error("progress on standard output:", a.out)
	}
	s.run("status", "--wait-empty", "--route", "nobody").is(t, 0, "0 waiting")
}

// status says what each member had out at its latest heartbeat, by route, the oldest first, and writes nothing.
func TestStatusOfMessagesOut(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.stage(message("fine", "a"))
	s.run("status").is(t, 0).not(t, " out, ")
	join := func(session core.Session, name string, routes ...core.ServedRoute) {
		t.Helper()
		m := core.Member{Session: session, Name: name, Lease: time.Minute, Heartbeats: 1, Routes: routes}
		if _, err := s.store.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Join: true}); err != nil {
			t.Fatal(err)
		}
	}
	join(1, "relay east", core.ServedRoute{Route: "default", InitialPartitions: 1, HandedOut: 3, OldestHandedOut: 90 * time.Second})
	join(2, "relay west\x1b[2J", core.ServedRoute{Route: "default", InitialPartitions: 1}, core.ServedRoute{Route: "mails", InitialPartitions: 1, HandedOut: 1, OldestHandedOut: 2 * time.Hour})
	out := s.run("status").is(t, 0, "route mails: relay west", "has 1 record out, the oldest for 2h", "route default: relay east has 3 records out, the oldest for 1m30s").out
	if strings.Index(out, "route mails: relay") > strings.Index(out, "route default: relay east") || strings.Contains(out, "\x1b") {
		t.Errorf("the oldest is not first, or a name reaches the terminal as it is: %q", out)
	}
	s.run("status", "--route", "mails").is(t, 0, "route mails: relay west").not(t, "relay east")
	got := decode[struct {
		Out []struct {
			Route, Member string
			Records       int
			Oldest        float64 `json:"oldest_seconds"`
		}
	}](t, s.run("status", "--json").is(t, 0))
	if len(got.Out) != 2 || got.Out[0].Route != "mails" || got.Out[1].Member != "relay east" || got.Out[1].Records != 3 || got.Out[1].Oldest != 90 {
		t.Errorf("%+v", got.Out)
	}
}

// OP-01: list selects by every flag.
func TestList(t *testing.T) {
	t.Parallel()
	s := records(t)
	for flags, want := range map[string]string{
		"":                                "a1 f1 s1 p1 o1",
		"--state pending":                 "s1 p1 o1",
		"--state failed --state pending":  "f1 s1 p1 o1",
		"--reason rejected":               "a1",
		"--route other":                   "o1",
		"--topic fine --tenant acme":      "s1",
		"--key k2":                        "f1",
		"--id p1 --id a1":                 "a1 p1",
		"--older 1h":                      "",
		"--since 1h":                      "a1 f1 s1 p1 o1",
		"--until 1h":                      "",
		"--since 2020-01-01 --until 0s":   "a1 f1 s1 p1 o1",
		"--until 2020-01-01T00:00:00Z":    "",
		"--limit 2":                       "a1 f1",
		"--limit 2 --after 2":             "s1 p1",
		"--state pending --scan 3 --json": "s1",
	} {
		args := append([]string{"list", "--json"}, strings.Fields(flags)...)
		if got := decode[listing](t, s.run(args...).is(t, 0)); got.ids() != want {
			t.Errorf("%s: %s, want %s", flags, got.ids(), want)
		}
	}
	s.run("list", "--limit", "2").is(t, 0, "SEQ", "abandoned: rejected", "failed, due in ", "searched to 2; go on with --after 2", "the broker says no")
	s.run("list", "--key", "nobody").is(t, 0, "no record matches").not(t, "topic")
	for flags, told := range map[string]bool{
		"--topic fien": true, "--topic fine --topic fien --state abandoned": true, "--topic fien --after 3": true,
		"--topic fine --state abandoned": false, "--topic fine --topic fien": false, "--topic fien --scan 2": false, "--topic fien --state abandoned --scan 2": false,
		"--topic fien --json": false,
	} {
		a := s.run(append([]string{"list"}, strings.Fields(flags)...)...).is(t, 0)
		if got := a.err == "the store has no message of topic fien: all are published, or its name is wrong\n"; got != told || !told && a.err != "" {
			t.Errorf("list %s says %q", flags, a.err)
		}
	}
	s.run("list", "--state", "published", "--scan", "2").is(t, 0, "searched to 2; go on with --after 2")
}

// OP-01: mistakes in arguments are told all at once, with the choices, before anything is asked.
func TestBadArguments(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.run("list", "--state", "sent", "--reason", "bad", "--since", "yesterday", "--older", "-1s").is(t, 2, "4 problems",
		`--state: "sent" is unknown: choose of pending, processing, published, failed, abandoned`, `--reason: "bad" is unknown: choose of rejected, attempts,`,
		`--since: "yesterday" is no time: write 2006-01-02`, "--older: -1s is negative")
	s.run("list", "--id", "a\xff", "--topic", "b\xff").is(t, 2, "2 problems", `--id: "a\xff" is not valid UTF-8`, "--topic: ")
	s.run("list", "--limit", "1000000").is(t, 2, "--limit: 1000000 is not between 1 and 1000")
	s.run("list", "--scan", "0", "--after", "-1").is(t, 2, "--scan: 0 is not", "--after: -1 is negative")
	s.run("list", "--since", "1h", "--until", "2h").is(t, 2, "is not after --since")
	s.run("list", "--older", "1h", "--until", "2h").is(t, 2, "--until is given too")
	s.run("keys", "list", "--limit", "5000").is(t, 2, "--limit: 5000 is not between 1 and 1000")
	s.run("show").is(t, 2, "accepts between 1 and 2 arg(s)", "usage: waybill show")
	s.run("show", "x", "--body-bytes", "-1").is(t, 2, "--body-bytes")
	s.run("nothing").is(t, 2, `waybill has no command "nothing": choose of audit, bench, cancel,`)
	s.run("dlq", "nothing").is(t, 2, `dlq has no command "nothing": choose of edit, list, purge, replay, show`)
	s.run("list", "--nothing").is(t, 2, "unknown flag: --nothing")
	s.run("list", "--store", "other").is(t, 2, `there is no store "other": choose of shop`)
	for _, args := range []string{"redrive", "purge", "cancel", "inbox purge", "migrate down", "cancel --state failed", "cancel --dedupe-key x", "cancel x --key y"} {
		s.run(strings.Fields(args)...).is(t, 2)
	}
}

// OP-01: show finds a message on its routes, shows its body, and writes it to a new file.
func TestShow(t *testing.T) {
	t.Parallel()
	s := records(t)
	s.stage(waybill.RawMessage("fine", "application/octet-stream", []byte{0, 1, 0xfe, 'x'}, waybill.ID("bin"), waybill.Routes("default", "other")))
	s.run("show", "a1").is(t, 0, "route:", "default", "abandoned: rejected", "error:", "the broker says no", "tenant:", "acme", "body: 10 bytes\nbody of a1")
	s.run("show", "other", "o1").is(t, 0, "body of o1")
	a := s.run("show", "bin").is(t, 0, "route:         default", "route:         other", "00 01 fe 78")
	noEscapes(t, a.out)
	s.run("show", "default", "o1").is(t, 3, `there is no message "o1"`)
	s.run("show", "nobody").is(t, 3, `there is no message "nobody"`)
	s.run("show", "a1", "--body-bytes", "4").is(t, 0, "body\n... and 6 more bytes: see --body-bytes and --body-to")
	got := decode[listing](t, s.run("show", "--json", "other", "bin").is(t, 0)).Records[0]
	if want := base64.StdEncoding.EncodeToString([]byte{0, 1, 0xfe, 'x'}); got.Message.BodyBase64 != want || got.Message.Body != "" {
		t.Errorf("%+v", got)
	}
	file := filepath.Join(t.TempDir(), "body")
	s.run("show", "bin", "--body-to", file).is(t, 2, "on routes default, other: name one")
	s.run("show", "other", "bin", "--body-to", file).is(t, 0)
	if body, err := os.ReadFile(file); err != nil || string(body) != "\x00\x01\xfex" {
		t.Errorf("%q, %v", body, err)
	}
	s.run("show", "a1", "--body-to", file).is(t, 1, "file exists")
}

// OP-01: nothing that a message holds can move the cursor of a terminal: in tables, in show, in JSON, in errors.
func TestNoTerminalEscapes(t *testing.T) {
	t.Parallel()
	const evil = "a\x1b[2J\u009b31m\u202eb\x07\n\rc"
	s := newShop(t)
	s.stage(waybill.RawMessage("no", "text/plain", []byte("body\t\x1b[31mred"+evil), waybill.ID("evil"), waybill.Key("k"),
		waybill.Header("x", "y")))
	s.relayed()
	s.transact(func(ctx context.Context, tx *sql.Tx) error { // what staging refuses, others can write
		_, err := tx.ExecContext(ctx, `UPDATE waybill_outbox SET topic = ?, key = ?, error = ?, dedupe_key = ? WHERE id = 'evil'`, evil, evil, evil, evil)
		return err
	})
	for _, args := range []string{"list", "list --json", "show evil", "show evil --json", "status", "redrive --dry-run --all", "keys list --block-after-abandon", "dlq list default --store shop", "dlq show default --store shop"} {
		a := s.run(strings.Fields(args)...).is(t, 0)
		noEscapes(t, a.out+a.err)
		if strings.HasPrefix(args, "show") && !strings.Contains(a.out, "body") {
			t.Errorf("%s: no body", args)
		}
	}
	if got := decode[listing](t, s.run("show", "evil", "--json")); got.Records[0].Message.Topic != evil {
		t.Errorf("%q", got.Records[0].Message.Topic)
	}
	for _, args := range [][]string{{"show", evil}, {"cancel", evil}, {"list", "--state", evil}, {evil}, {"keys", "set-aside", evil, evil}, {"keys", "skip", evil, evil}, {"list", "--store", evil}} {
		a := s.run(args...)
		noEscapes(t, a.out+a.err)
		if a.code == 0 {
			t.Errorf("%q: exit code 0", args)
		}
	}
}
