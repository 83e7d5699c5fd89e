package cli_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/tier"
)

// OP-01: redrive puts records back, with another body, only those that need no force, or in a dry run none.
func TestRedrive(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.stage(message("no", "a", waybill.Key("k")), message("no", "b", waybill.Key("k")), message("no", "c"), message("later", "d"))
	s.relayed()
	s.run("redrive", "--all", "--dry-run").is(t, 4, "2 of 4 records would be put back", "2 refused: later messages of their key can have been sent", "error: 2 records refused")
	s.run("list", "--state", "pending").is(t, 0, "no record matches")
	s.run("redrive", "--all").is(t, 4, "nobody can be asked", "--yes")
	s.run("redrive", "--id", "a", "--force").is(t, 4, "nobody can be asked")
	s.run("redrive", "--id", "nobody").is(t, 3, "no failed or abandoned record has id nobody")
	s.run("redrive", "--topic", "nothing").is(t, 0, "0 of 0 records put back")
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, []byte("repaired"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run("redrive", "--id", "c", "--body-file", file).is(t, 2, "name one of each")
	s.run("redrive", "--id", "c", "--route", "default", "--body-file", file+"x").is(t, 2, "--body-file")
	s.run("redrive", "--id", "c", "--route", "default", "--body-file", file, "--progress").is(t, 0, "1 of 1 record put back", "put back 1")
	s.run("show", "c").is(t, 0, "pending", "repaired")
	got := decode[struct{ Matched, Changed int }](t, s.run("redrive", "--reason", "rejected", "--force", "--yes", "--json", "--rate", "1000").is(t, 0))
	if got.Matched != 2 || got.Changed != 2 {
		t.Errorf("%+v", got)
	}
	s.run("redrive", "--state", "pending", "--all", "--yes").is(t, 2, "pending records cannot be redriven")
}

// OP-01: cancel cancels a record by id or by dedupe key, and records that wait for a time by flags.
func TestCancel(t *testing.T) {
	t.Parallel()
	s := records(t)
	s.stage(
		message("fine", "d1", waybill.DedupeKey("once"), waybill.Delay(time.Hour)), message("fine", "w1", waybill.Cancellable()),
		message("fine", "two", waybill.Routes("default", "other"), waybill.Cancellable()),
	)
	s.run("cancel", "s1", "--dry-run").is(t, 0, "would be tried")
	s.run("cancel", "s1", "w1").is(t, 0, "s1", "w1", "cancelled")
	s.run("cancel", "s1").is(t, 3, "not found")
	s.run("cancel", "nobody").is(t, 3)
	s.run("cancel", "--topic", "fine", "--dedupe-key", "once", "--json").is(t, 0, `"status": "cancelled"`)
	s.run("cancel", "two", "--route", "other").is(t, 0, "other", "cancelled")
	s.run("cancel", "p1").is(t, 4, "in flight", "1 message not cancelled") // a relay can have it out
	s.run("list", "--reason", "cancelled").is(t, 0, "s1", "w1", "d1", "two")

	s.stage(message("fine", "x1", waybill.Delay(time.Hour), waybill.Tenant("gone")), message("fine", "x2", waybill.Tenant("gone")))
	s.run("cancel", "--tenant", "gone", "--dry-run").is(t, 4, "1 of 2 records would be cancelled", "left alone: 1 record: due")
	s.run("cancel", "--tenant", "gone").is(t, 4, "cancel 1 record, which are never sent then", "nobody can be asked")
	s.run("show", "x1").is(t, 0)
	s.run("cancel", "--tenant", "gone", "--yes").is(t, 4, "1 of 2 records cancelled")
	s.run("show", "x1").is(t, 3)
	s.run("show", "x2").is(t, 0)
}

// OP-18: a due record is ended by the command itself if no relay runs; purge --due deletes the record.
func TestDue(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.stage(
		message("fine", "due", waybill.Tenant("gone")), message("fine", "later", waybill.Tenant("gone"), waybill.Delay(time.Hour)),
		message("fine", "one"), message("fine", "kept", waybill.Tenant("other")),
	)
	s.run("cancel", "--tenant", "gone", "--due", "--dry-run").is(t, 0, "2 records matched: 0 ended")
	s.run("cancel", "--tenant", "gone", "--due").is(t, 4, "nobody can be asked")
	s.run("cancel", "--tenant", "gone", "--due", "--yes").is(t, 0, "2 records matched: 2 ended")
	s.run("list", "--reason", "skipped").is(t, 0, "due", "later")
	s.run("cancel", "one", "--due", "--yes", "--json").is(t, 0, `"ended": 1`)
	s.run("purge", "--tenant", "other", "--due", "--state", "pending", "--yes").is(t, 2, "leave --state and --reason out")
	s.run("purge", "--tenant", "other", "--due", "--yes").is(t, 0, "1 ended, 1 deleted")
	s.run("show", "kept").is(t, 3)
}

// OP-18: a relay that was killed is removed, so that the command ends what it owned.
func TestDueOfAKilledRelay(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.stage(message("fine", "a", waybill.Tenant("gone")), message("fine", "b", waybill.Key("k")), message("fine", "c"))
	s.killedRelay(time.Second)
	s.run("cancel", "--tenant", "gone", "--due", "--dry-run").is(t, 0, "1 record matched: 0 ended")
	s.run("cancel", "--tenant", "gone", "--due", "--yes").is(t, 0, "1 record matched: 1 ended")
	s.killedRelay(time.Second)
	s.run("keys", "set-aside", "k", "b").is(t, 0, "set-aside: message b")
	s.killedRelay(time.Second)
	s.run("purge", "--all", "--due", "--yes").is(t, 0, "3 records matched: 1 ended, 3 deleted")
}

// OP-18: the same if its lease lasts for longer than a decision is waited for. Nothing of the decision is left, so that
// the message can be put back.
func TestHeadOfAKilledRelay(t *testing.T) {
	tier.Nightly(t, "waits for a lease of 10.5 s")
	t.Parallel()
	s := newShop(t)
	s.stage(message("fine", "a", waybill.Key("k")), message("fine", "b", waybill.Key("k")))
	s.killedRelay(10*time.Second + 500*time.Millisecond)
	s.run("keys", "set-aside", "k", "a").is(t, 0, "set-aside: message a")
	s.run("list", "--reason", "set_aside").is(t, 0, "a")
	s.run("redrive", "--id", "a", "--force", "--yes").is(t, 0, "1 of 1 record put back")
	s.relayed()
	s.run("list", "--reason", "set_aside").is(t, 0, "no record matches")
}

// killedRelay has a relay take all records, and vanish.
func (s *shop) killedRelay(lease time.Duration) {
	s.tb.Helper()
	self := core.Member{Session: core.Session(time.Now().UnixNano()), Lease: lease, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}}
	r, err := s.store.Heartbeat(s.tb.Context(), core.HeartbeatRequest{Self: self, Join: true})
	if err != nil || len(r.Partitions) != 1 || r.Partitions[0].Owner != 0 {
		s.tb.Fatal(r, err)
	}
	self.Heartbeats++
	if _, err := s.store.Heartbeat(s.tb.Context(), core.HeartbeatRequest{Self: self, Transfers: []core.Transfer{{Partition: r.Partitions[0].Partition, To: self.Session}}}); err != nil {
		s.tb.Fatal(err)
	}
}

// OP-01: purge deletes ended records, and with --waiting records that wait for a time.
func TestPurge(t *testing.T) {
	t.Parallel()
	s := records(t)
	s.run("purge", "--tenant", "acme", "--dry-run").is(t, 4, "1 of 2 records would be deleted", "left alone: 1 record: not ended (see --waiting)")
	s.run("purge", "--tenant", "acme").is(t, 4, "delete 1 record for good", "nobody can be asked")
	s.run("show", "a1").is(t, 0)
	s.run("purge", "--reason", "rejected", "--yes", "--progress").is(t, 0, "1 of 1 record deleted", "deleted 1")
	s.run("purge", "--reason", "rejected").is(t, 0, "0 of 0 records deleted") // nothing to ask about
	s.run("purge", "--id", "nobody", "--yes").is(t, 3, "no record has id nobody")
	got := decode[struct{ Matched, Deleted, Stay int }](t, s.run("purge", "--all", "--waiting", "--yes", "--json").is(t, 4))
	if got.Matched != 4 || got.Deleted != 2 || got.Stay != 2 { // f1, s1 go; p1, o1 are due
		t.Errorf("%+v", got)
	}
}

// OP-01: keys lists blocked keys, and decides about the head.
func TestKeys(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.run("keys", "list").is(t, 0, "no key is blocked")
	s.stage(message("later", "a", waybill.Key("k1")), message("later", "b", waybill.Key("k2")), message("later", "c", waybill.Key("k3")), message("no", "d", waybill.Key("k4")))
	s.relayed()
	s.run("keys", "list").is(t, 0, "k1", "retry", "try later", "in ")
	s.run("keys", "list", "--limit", "1").is(t, 0, "there are more; go on with --after k1")
	s.run("keys", "list", "--after", "k2", "--json").is(t, 0, `"key": "k3"`)
	s.run("keys", "list", "--block-after-abandon", "--after", "k3").is(t, 0, "k4", "abandoned")
	s.run("keys", "skip", "k1", "a").is(t, 4, "give up message a of key k1", "nobody can be asked")
	s.run("keys", "skip", "k1", "b", "--yes").is(t, 3, "is not the head")
	s.run("keys", "skip", "k1", "a", "--yes").is(t, 0, "skip: message a of key k1")
	s.run("keys", "set-aside", "k2", "b").is(t, 0)
	s.run("keys", "requeue", "k3", "c", "--json").is(t, 0, `"action": "requeue"`)
	s.run("list", "--id", "a", "--id", "b", "--id", "c").is(t, 0, "abandoned: skipped", "abandoned: set_aside", "pending")
	s.run("keys", "list", "--route", "nobody").is(t, 0, "no key is blocked")
}

// OP-01, OR-05, OP-19: behind a head whose topic has no queue messages wait: keys list, show and status say behind
// which, and why.
func TestWhyItWaits(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.answers["nowhere"] = &waybill.Error{Class: waybill.ClassRejected, Err: fmt.Errorf("topic: %w", waybill.ErrUnroutable)}
	s.stage(message("fine", "alone"))
	s.run("show", "alone").is(t, 0, "waits:", "no relay serves route default")
	s.relayed()
	s.leaves = true
	s.stage(message("nowhere", "trial"))
	s.relayed()
	s.transact(func(ctx context.Context, tx *sql.Tx) error { // it tries again in an hour, however slow this test is
		_, err := tx.ExecContext(ctx, `UPDATE waybill_outbox SET due_at = due_at + 3600000000 WHERE id = 'trial'`)
		return err
	})
	s.stage(message("nowhere", "head", waybill.Key("c-0")), message("fine", "b1", waybill.Key("c-0")), message("fine", "b2", waybill.Key("c-0")))
	s.run("keys", "list").is(t, 0, "BEHIND", "c-0  topic", "head")
	type wait struct {
		Cause, Text, Other string
		Because            *wait
	}
	keys := decode[struct {
		Keys []struct {
			Key, Cause string
			Behind     int
		}
	}](t, s.run("keys", "list", "--json").is(t, 0)).Keys
	if len(keys) != 1 || keys[0].Key != "c-0" || keys[0].Cause != "topic" || keys[0].Behind != 2 {
		t.Errorf("%+v", keys)
	}
	s.run("show", "trial").is(t, 0, "waits:", "no queue is bound for its topic nowhere: its next attempt")
	s.run("show", "head").is(t, 0, "waits:", "no queue is bound for its topic nowhere: message trial tries for all of them (1 attempt, the latest at")
	s.run("show", "b1").is(t, 0, "waits:", "message head of topic nowhere is before it in its key; about that one: no queue is bound for its topic nowhere")
	got := decode[struct{ Records []struct{ Waits wait } }](t, s.run("show", "b1", "--json").is(t, 0)).Records[0].Waits
	if got.Cause != "key" || got.Other != "head" || got.Because == nil || got.Because.Cause != "topic" || got.Because.Other != "trial" || got.Text == "" {
		t.Errorf("%+v", got)
	}
	s.run("keys", "skip", "c-0", "head", "--yes").is(t, 0)
	s.run("keys", "list").is(t, 0, "no key is blocked")
	s.run("show", "head").is(t, 0, "abandoned: skipped").not(t, "waits:")
	s.relayed()
	s.run("show", "b2").is(t, 3, `there is no message "b2"`)
}

// OP-01: keys list takes block_after_abandon from the configuration.
func TestKeysOfTheConfiguration(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.stage(message("no", "d", waybill.Key("k4")))
	s.relayed()
	file := filepath.Join(t.TempDir(), "waybill.yaml")
	text := "transports: {mq: {kind: rabbitmq, url: \"amqp://u:p@127.0.0.1:1/\"}}\nrelays: {r: {routes: [{name: default, block_after_abandon: true}]}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run("keys", "list", "--config", file).is(t, 0, "k4", "abandoned")
	s.stage(message("fine", "e"))
	s.run("redrive", "--id", "d", "--route", "default", "--dry-run").is(t, 4, "out of order")
	s.run("redrive", "--id", "d", "--route", "default", "--config", file).is(t, 0, "1 of 1")
}

// OP-01: inbox purge deletes the old marks of a consumer.
func TestInboxPurge(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for i := range 3 {
		s.transact(func(ctx context.Context, tx *sql.Tx) error {
			_, err := s.store.Mark(ctx, tx, core.InboxKey{Consumer: fmt.Sprint("c", i%2), Source: "/x", ID: strconv.Itoa(i)})
			return err
		})
	}
	s.run("inbox", "purge", "--older", "1h", "--yes").is(t, 0, "0 marks deleted")
	s.run("inbox", "purge", "--older", "1us").is(t, 4, "delete the marks of every consumer that are older than 1µs", "nobody can be asked")
	s.run("inbox", "purge", "--older", "1us", "--consumer", "c0", "--yes", "--progress").is(t, 0, "2 marks deleted", "deleted 2")
	s.run("inbox", "purge", "--older", "1us", "--yes", "--json").is(t, 0, `"deleted": 1`)
}

// OP-01: migrate makes the tables, shows versions and differences, prints SQL, and goes back. A command that runs
// before it gets an error that names it.
func TestMigrate(t *testing.T) {
	t.Parallel()
	settings := []string{"stores.shop.kind=sqlite", "stores.shop.path=" + filepath.Join(t.TempDir(), "new.db")}
	run := func(args string) answer { t.Helper(); return command(t, settings, strings.Fields(args)...) }
	for _, args := range []string{
		"list", "status", "show x", "show default x", "redrive --all --yes", "cancel x --route default", "cancel --tenant x", "purge --all", "keys list",
		"keys set-aside k x", "inbox purge --older 1h --yes", "bench", "dlq list q --store shop",
	} {
		a := run(args).is(t, 1, "run waybill migrate up")
		if strings.Count("\n"+a.err, "\nerror:") != 1 {
			t.Errorf("%s: %s", args, a.err)
		}
	}
	run("migrate status").is(t, 5, "all   0", "run waybill migrate up")
	run("migrate print").is(t, 0, "CREATE TABLE")
	run("migrate grants --relay r").is(t, 2, "this store has no roles")
	run("migrate up").is(t, 0, "up to date")
	run("migrate up --json").is(t, 0, `"part": "all"`)
	run("migrate status").is(t, 0)
	run("list").is(t, 0)
	db, err := sql.Open("sqlite", strings.TrimPrefix(settings[1], "stores.shop.path="))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "ALTER TABLE waybill_outbox RENAME COLUMN topic TO topics"); err != nil {
		t.Fatal(err)
	}
	run("migrate status").is(t, 5, "OBJECT", "waybill_outbox.topic", "missing", "the schema has")
	run("migrate down --to 0").is(t, 4, "delete all tables of Waybill, with every message and mark in them", "nobody can be asked")
	run("migrate down --to 0 --yes").is(t, 0, "all   0")
	run("migrate status").is(t, 5)
}
