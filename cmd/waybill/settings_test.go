package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

func rewrite(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		tb.Fatal(err)
	}
}

const bad = `stores:
  shop:
    kind: postgres
    url: {file: /nowhere/secret}
  other:
    kind: oracle
transports:
  bus:
    kind: rabbitmq
    url: amqp://guest:hunter2@h/
    exchnge: x
relays:
  shop:
    store: shop
    wndow: 3
    lease: 0.5ms
    routes:
    - name: a
      transport: missing
    - name: a
  twin:
    store: shop
    routes:
    - name: a
http:
  listen: nowhere
telemetry:
  otlp:
    endpoint: ftp://u:hunter2@h
    sample: 2
log:
  level: loud
`

// OP-02: all mistakes are told at once, each with its line, its key and the cure, and without a password; nothing is
// opened. relay, config and validate tell the same.
func TestEveryMistakeAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conf := write(t, bad)
	want := []string{
		"waybill.yaml:11: transports.bus.exchnge: is unknown: did you mean exchange?",
		`waybill.yaml:15: relays.shop.wndow: is unknown: did you mean window?`,
		"waybill.yaml:16: relays.shop.lease: 500µs is not between 1ms and 24h0m0s",
		"waybill.yaml:19: relays.shop.routes[0].transport: there is no transport \"missing\": choose of bus",
		`waybill.yaml:20: relays.shop.routes[1].name: "a" is listed twice; a route leads to one publisher`,
		`waybill.yaml:24: relays.twin.routes[0].name: route "a" of store "shop" is served by relay "shop" already: a route leads to one place`,
		`waybill.yaml:26: http.listen: "nowhere" is no address with a port, such as 127.0.0.1:9464 or :9464`,
		"waybill.yaml:29: telemetry.otlp.endpoint: must begin with http://, https://, grpc:// or grpcs://, and name a host",
		"waybill.yaml:30: telemetry.otlp.sample: 2 is not between 0 and 1",
		`waybill.yaml:32: log.level: "loud" is unknown: choose debug, info, warn or error`,
		"waybill.yaml:4: stores.shop.url: cannot read the file: open /nowhere/secret: no such file or directory",
		`waybill.yaml:6: stores.other.kind: "oracle" is unknown: this program has postgres, sqlite, mongo`,
	}
	for command, code := range map[string]int{"relay": cli.ExitUsage, "config": cli.ExitUsage} {
		r := start(t, b.app(), command, "--config", conf)
		r.end(t, code)
		var got []string
		for line := range strings.Lines(r.log.String()) {
			if strings.HasPrefix(line, "  ") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", command, diff)
		}
		if strings.Contains(r.log.String(), "hunter2") {
			t.Error("tells a password")
		}
	}
	if b.opened.Load() != 0 {
		t.Error("something was opened")
	}
	r := start(t, b.app(), "validate", "--config", conf)
	r.end(t, cli.ExitFindings)
	says(t, r.log.String(), want...)
}

// OP-02: --print-config shows what file, variables and flags give together, and no password.
func TestPrintConfig(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conf := write(t, "stores:\n  s:\n    kind: postgres\n    url: postgres://u:hunter2@h/d\n"+
		"transports:\n  bus:\n    kind: rabbitmq\n    url: amqp://guest:hunter2@h/\nrelays:\n  a: {window: 3}\ntelemetry:\n  otlp:\n    headers: key=hunter2\n")
	r := start(t, b.app(), "relay", "--config", conf, "--print-config", "--set", "relays.a.lease=5s")
	r.end(t, cli.ExitOK)
	says(t, r.out.String(), "window: 3", "lease: 5s", "kind: postgres")
	if strings.Contains(r.out.String()+r.log.String(), "hunter2") {
		t.Errorf("tells a password:\n%s", r.out.String())
	}
}

// OP-02: validate finds all faults at the servers at once: a password, missing tables, drift, an unreachable broker, a
// pool that is too small, an order that the transport cannot keep. It is silent about what is well.
func TestValidate(t *testing.T) {
	t.Parallel()
	db, mq := testenv.Postgres(t), testenv.RabbitMQ(t)
	conf := write(t, "stores:\n  good: {kind: postgres, url: '"+db.DSN+"'}\n"+
		"transports:\n  bus: {kind: rabbitmq, url: '"+mq.URL+"'}\nrelays:\n  a: {store: good, transport: bus}\n")
	command := func(code int, more ...string) string {
		t.Helper()
		r := start(t, newBench(t).app(), append([]string{"validate", "--config", conf, "--timeout", "20s"}, more...)...)
		r.end(t, code)
		if strings.Contains(r.log.String(), "hunter2") {
			t.Errorf("tells a password:\n%s", r.log.String())
		}
		return r.out.String() + r.log.String()
	}
	says(t, command(cli.ExitFindings), `waybill.yaml:2: stores.good`, "missing", `exchange "waybill" does not exist`, "run waybill topology declare")
	// validate makes nothing
	pool := migrated(t, db.DSN) // the audit record, too
	start(t, newBench(t).app(), "topology", "declare", "--config", conf).end(t, cli.ExitOK)
	says(t, command(cli.ExitOK), "no problem: 1 relays, 1 stores, 1 transports, 0 subscriptions\n")
	says(t, command(cli.ExitOK, "--json"), `"problems": []`)
	if _, err := pool.Exec(t.Context(), "ALTER TABLE waybill.waybill_outbox ALTER COLUMN attempts DROP NOT NULL"); err != nil {
		t.Fatal(err)
	}
	wrong := strings.Replace(db.DSN, "://"+userOf(db.DSN), "://"+strings.Split(userOf(db.DSN), ":")[0]+":hunter2", 1)
	text := command(cli.ExitFindings, "--set", "stores.bad.kind=postgres", "--set", "stores.bad.url="+wrong,
		"--set", "transports.off.kind=rabbitmq", "--set", "transports.off.url=amqp://guest:hunter2@127.0.0.1:1/",
		"--set", "stores.small.kind=postgres", "--set", "stores.small.url="+withPool(db.DSN),
		"--set", "relays.b.store=small", "--set", "relays.b.transport=bus",
		"--set", "relays.c.store=bad", "--set", "relays.c.transport=off")
	says(t, text,
		"waybill.yaml:2: stores.good: schema: ", "--set stores.bad.url: stores.bad.url: ", "password authentication failed",
		"--set transports.off.url: transports.off.url: ", "refused",
		"stores.small: its pool has 1 connections, but a relay uses up to ")
}

// OP-02: validate is silent about a role that has what a relay needs, or an operator. It asks for no right that only
// a consumer needs, and the topics without a binding are looked for with such a role, too.
func TestValidateAsARole(t *testing.T) {
	t.Parallel()
	db, mq := testenv.Postgres(t), testenv.RabbitMQ(t)
	pool := migrated(t, db.DSN)
	m, err := postgres.NewMigrations(postgres.MigrationOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "INSERT INTO waybill.waybill_outbox (topic, body, id) VALUES ('lost.made', '', 'a')"); err != nil {
		t.Fatal(err)
	}
	for i, roles := range []postgres.Roles{{Relay: "relay"}, {Operator: "operator"}} {
		// roles belong to the whole server
		name := strings.Replace(db.Database, "waybill_test", max(roles.Relay, roles.Operator), 1)
		if roles.Relay != "" {
			roles.Relay = name
		} else {
			roles.Operator = name
		}
		quoted := pgx.Identifier{name}.Sanitize()
		if _, err := pool.Exec(t.Context(), "CREATE ROLE "+quoted+" LOGIN PASSWORD 'secret'"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for _, s := range []string{"DROP OWNED BY ", "DROP ROLE "} {
				if _, err := pool.Exec(context.WithoutCancel(t.Context()), s+quoted); err != nil {
					t.Error(err)
				}
			}
		})
		dsn := strings.Replace(db.DSN, userOf(db.DSN), name+":secret", 1)
		conf := write(t, "stores:\n  shop: {kind: postgres, url: '"+dsn+"'}\n"+
			"transports:\n  bus: {kind: rabbitmq, url: '"+mq.URL+"', management_url: '"+mq.ManagementURL+"'}\nrelays:\n  a: {store: shop, transport: bus}\n")
		run := func(code int, args ...string) string {
			t.Helper()
			r := start(t, newBench(t).app(), append(args, "--config", conf, "--timeout", "20s")...)
			r.end(t, code)
			return r.out.String() + r.log.String()
		}
		if i == 0 {
			// this role may write the audit record
			run(cli.ExitOK, "topology", "declare", "--set", "stores.shop.url="+db.DSN)
		}
		says(t, run(cli.ExitFindings, "validate"), `GRANT USAGE ON SCHEMA "waybill" TO "`+name)
		says(t, run(cli.ExitFailed, "migrate", "up", "--set", "stores.shop.schema=other"), "as the owner of the tables")
		if _, err := pool.Exec(t.Context(), m.Grants(roles)); err != nil {
			t.Fatal(err)
		}
		text := run(cli.ExitFindings, "validate")
		says(t, text, `topic "lost.made": messages of it wait on route default`)
		if strings.Contains(text, "GRANT") {
			t.Errorf("asks %s for more:\n%s", name, text)
		}
	}
}
