package waybillmysql_test

// Services that share an outbox need not trust each other: a login with StagerGrants stops neither the route nor the
// keys of others. Each attack is refused by the server, or does no harm.

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
)

// The numbers of the server's errors.
const (
	tableDenied  = 1142
	columnDenied = 1143
	failsCheck   = 4025 // of MariaDB
	failsCheckMy = 3819 // of MySQL
	outOfRange   = 1264
	notItsPart   = 1369
	noTable      = 1146
	noColumn     = 1054
)

// attack is a statement of a login that may only stage. KEY is the key of another service.
type attack struct {
	name, sql string
	code      uint16 // with which the server refuses it; 0 = it is taken, and does no harm
}

// put is an INSERT with these columns beside those that every row needs.
func put(columns, values string) string {
	sql := `INSERT INTO waybill_outbox (route, id, topic, k, attrs, body, slot`
	slot := "3"
	if columns == "slot" {
		columns, values, slot = "", "", values
	}
	if columns != "" {
		columns, values = ", "+columns, ", "+values
	}
	return sql + columns + `) VALUES ('default', 'ID', 't.x', 'KEY', '', 'x', ` + slot + values + `)`
}

var attacks = []attack{
	{"slot above all", put("slot", "256"), outOfRange},
	{"slot of nobody", put("slot", "200"), failsCheck},
	{"slot of another key", put("slot", "7"), 0},
	{"a retry in a hundred years", put("state, due_at", "4, 4000000000000000"), columnDenied},
	{"abandoned, and blocks", put("state, reason, flags", "5, 'rejected', 1"), columnDenied},
	{"version at its maximum", put("version", "9223372036854775807"), columnDenied},
	{"attempts at their maximum", put("attempts", "2147483647"), columnDenied},
	{"held by a ghost", put("hold", "4711"), columnDenied},
	{"the last number", put("seq", "9223372036854775807"), columnDenied},
	{"a stamp at the end of time", put("hlc", "9223372036854775807"), 0},
	{"a negative stamp", put("hlc", "-1"), 0},
	{"never due", put("due_at", "9223372036854775807"), 0},
	{"expired already", put("ends_at", "-9223372036854775808"), 0},
	{"ready in another age", put("ready_since", "-9223372036854775808"), 0},
	{"all flags", put("flags", "255"), 0},
	{"a dedupe key of its own", put("dedupe_key", "'KEY'"), 0},
	{"attributes that are none", strings.Replace(put("flags", "0"), "'', 'x'", "'9999999999:x', 'x'", 1), 0},
	{"reads bodies", `SELECT body FROM waybill_outbox`, columnDenied},
	{"reads keys", `SELECT k FROM waybill_outbox`, columnDenied},
	{"changes", `UPDATE waybill_outbox SET due_at = 1`, tableDenied},
	{"deletes", `DELETE FROM waybill_outbox`, tableDenied},
	{"sets aside", `INSERT INTO waybill_outbox_aside VALUES (1, 'default', 'KEY', 1, 5, 0, 0, 0, 1)`, tableDenied},
	{"tells owners", `INSERT INTO waybill_outbox_notices (route, kind, slot, seq, k, id, reason) VALUES ('default', 3, 0, 0, '', '', '')`, tableDenied},
	{"takes partitions", `UPDATE waybill_outbox_partitions SET owner = 4711`, tableDenied},
	{"raises the mark", `UPDATE waybill_meta SET value = 9223372036854775807`, tableDenied},
	{"marks in the inbox", `INSERT INTO waybill_inbox VALUES ('c', '/payments', '1', 0, 0)`, tableDenied},
}

// came is a publisher that remembers what came.
type came struct {
	mu  sync.Mutex
	ids []string
}

func (c *came) Traits() core.PublisherTraits {
	return core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true, DetectsUnroutable: true}
}

func (c *came) Publish(_ context.Context, batch []waybill.Envelope) core.Results {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range batch {
		c.ids = append(c.ids, batch[i].ID)
	}
	return make(core.Results, len(batch))
}

// missing returns those of ids that did not come.
func (c *came) missing(ids []string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(c.ids, id) })
}

func TestHostileStager(t *testing.T) {
	t.Parallel()
	s := open(t, waybillmysql.Options{})
	evil, good := login(t, s, "e", waybillmysql.StagerGrants), login(t, s, "g", waybillmysql.StagerGrants)
	bus := &came{}
	var sent []string
	round := func(n int) {
		t.Helper()
		for i, a := range attacks {
			sql := strings.NewReplacer("KEY", fmt.Sprintf("k%d", i), "'ID'", fmt.Sprintf("'evil-%d-%d'", n, i)).Replace(a.sql)
			_, err := evil.DB().Exec(sql)
			code := number(err)
			if code == failsCheckMy {
				code = failsCheck
			}
			if code != a.code || err != nil && code == 0 {
				t.Errorf("%s: the server says %v, want number %d", a.name, err, a.code)
			}
		}
		var msgs []waybill.Message
		for i := range attacks {
			id := fmt.Sprintf("good-%d-%d", n, i)
			sent = append(sent, id)
			msgs = append(msgs, waybill.RawMessage("t.x", "", nil, waybill.ID(id), waybill.Key(fmt.Sprintf("k%d", i))))
		}
		for range 2 { // the second time they are duplicates
			if err := stage(t.Context(), good, msgs); err != nil {
				t.Fatal(err)
			}
		}
	}
	round(0)
	r, err := relay.New(s, bus, relay.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = r.Run(ctx) })
	defer run.Wait()
	defer stop()
	for n := range 2 {
		if n > 0 {
			round(n)
		}
		patience.Moving(t, "all messages come", func() (int, bool) { n := len(bus.missing(sent)); return n, n == 0 })
	}
}

// A service with the views of BoundStager stages on its routes and of its sources, and reaches nothing of others: it
// can neither take an id or a key of theirs, nor write in their name, nor see, change or delete their rows.
// SE-01.
func TestBoundStager(t *testing.T) {
	t.Parallel()
	s := open(t, waybillmysql.Options{})
	good := login(t, s, "g", waybillmysql.StagerGrants)
	var outbox string
	if err := s.DB().QueryRow(`SELECT DATABASE()`).Scan(&outbox); err != nil {
		t.Fatal(err)
	}
	own := outbox + "_evil"
	if _, err := s.DB().Exec("CREATE DATABASE " + own); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = s.DB().Exec("DROP DATABASE " + own) })
	for range 2 { // it can run again
		for text := range strings.SplitSeq(waybillmysql.BoundStager(outbox, own, []string{"evil", "it's"}, []string{"/evil"}), ";\n") {
			text = strings.ReplaceAll(text, "'service'", "'e_"+outbox+"'")
			if strings.Contains(text, "GRANT") {
				if _, err := s.DB().Exec("CREATE USER IF NOT EXISTS 'e_" + outbox + "'@'%'"); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := s.DB().Exec(text); err != nil && strings.TrimSpace(text) != "" {
				t.Fatal(text, err)
			}
		}
	}
	t.Cleanup(func() { _, _ = s.DB().Exec("DROP USER 'e_" + outbox + "'@'%'") })
	cfg, err := mysql.ParseDSN(dsnOf(t, own))
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Passwd = "e_"+outbox, ""
	evil := openAt(t, cfg.FormatDSN(), waybillmysql.Options{Source: "/evil"})
	row := func(route, source, columns, values string) string {
		return `INSERT INTO waybill_outbox (route, source, id, topic, k, attrs, body, slot` + columns + `) VALUES ('` + route + `', '` + source +
			`', 'good-1', 't.x', 'k', '', 'x', 3` + values + `)`
	}
	bus := &came{}
	r, err := relay.New(s, bus, relay.Options{
		Logger: slog.New(slog.DiscardHandler), Routes: []relay.Route{{Name: "good", BlockAfterAbandon: true}, {Name: "evil", BlockAfterAbandon: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []attack{
		{"its id, never due", row("good", "/evil", ", due_at", ", 9223372036854775807"), notItsPart},
		{"on a lane of it", row("good/high", "/evil", "", ""), notItsPart},
		{"on a part of it", row("good#3", "/evil", "", ""), notItsPart},
		{"in its name", row("evil", "/test", "", ""), notItsPart},
		{"on a route that begins as its own", row("evil2", "/evil", "", ""), notItsPart},
		{"in the table itself", strings.Replace(row("evil", "/evil", "", ""), "waybill_outbox", outbox+".waybill_outbox", 1), tableDenied},
		{"a retry in a hundred years", row("evil", "/evil", ", state", ", 4"), columnDenied},
		{"a number of its own", row("evil", "/evil", ", seq", ", 9223372036854775807"), columnDenied},
		{"held by a ghost", row("evil", "/evil", ", hold", ", 4711"), columnDenied},
		{"reads the table", "SELECT id FROM " + outbox + ".waybill_outbox", tableDenied},
		{"reads bodies", "SELECT body FROM waybill_outbox", columnDenied},
		{"changes", "UPDATE waybill_outbox SET due_at = 1", tableDenied},
		{"deletes", "DELETE FROM waybill_outbox", tableDenied},
		{"tells owners", "INSERT INTO " + outbox + ".waybill_outbox_notices (route, kind, slot, seq, k, id, reason) VALUES ('good', 3, 0, 0, '', '', '')", tableDenied},
		{"looks for what it has no view of", "SELECT 1 FROM waybill_outbox_partitions", tableDenied},
		{"its own route", row("evil", "/evil", "", ""), 0},
		{"a lane of its own", row("evil/high", "/evil", "", ""), 0},
		{"a part of its own, never due", row("evil#3", "/evil", ", due_at", ", 9223372036854775807"), 0},
		{"undecodable, on its own key", strings.Replace(row("evil", "/evil", "", ""), "'good-1', 't.x', 'k', ''", "'bad', 't.x', 'k', '99:x'", 1), 0},
	} {
		_, err := evil.DB().Exec(a.sql)
		code := number(err)
		switch {
		// The database or the view does not have it.
		case code == noTable && a.code == tableDenied, code == noColumn && a.code == columnDenied:
		case code != a.code || err != nil && code == 0:
			t.Errorf("%s: the server says %v, want number %d", a.name, err, a.code)
		}
	}
	on := func(route, id string) waybill.Message {
		return waybill.RawMessage("t.x", "", nil, waybill.ID(id), waybill.Key("k"), waybill.Routes(route))
	}
	if err := stage(t.Context(), good, []waybill.Message{on("good", "good-1"), on("good", "good-2")}); err != nil {
		t.Fatal(err)
	}
	var seen int
	if err := evil.DB().QueryRow(`SELECT COUNT(id) FROM waybill_outbox WHERE route LIKE 'good%'`).Scan(&seen); err != nil || seen != 0 {
		t.Errorf("it sees %d rows of another service: %v", seen, err)
	}
	own1 := waybill.RawMessage("t.x", "", nil, waybill.ID("own-1"), waybill.Routes("evil"))
	many := []waybill.Message{own1, waybill.RawMessage("t.x", "", nil, waybill.Routes("evil")), waybill.RawMessage("t.x", "", nil, waybill.ID("own-2"), waybill.Routes("evil"))}
	for range 2 { // the second time some are duplicates
		if err := stage(t.Context(), evil, many); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = r.Run(ctx) })
	defer run.Wait()
	defer stop()
	sent := []string{"good-1", "good-2", "own-1", "own-2"}
	patience.Moving(t, "all messages come", func() (int, bool) { n := len(bus.missing(sent)); return n, n == 0 })
}

// A service with a database of its own, and all privileges that a service needs there, neither reads nor writes
// anything of another database: no message, no mark and no line of the audit record.
// SE-01.
func TestDatabasesOfTheirOwnKeepApart(t *testing.T) {
	t.Parallel()
	pay, mail := open(t, waybillmysql.Options{}), open(t, waybillmysql.Options{})
	evil := login(t, mail, "s", waybillmysql.ServiceGrants)
	var theirs string
	if err := pay.DB().QueryRow(`SELECT DATABASE()`).Scan(&theirs); err != nil {
		t.Fatal(err)
	}
	rows, err := pay.DB().Query(`SHOW TABLES`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var tables []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		tables = append(tables, theirs+"."+name)
	}
	if err := rows.Err(); err != nil || len(tables) < 10 {
		t.Fatal(tables, err)
	}
	for _, name := range tables {
		for _, sql := range []string{"SELECT 1 FROM " + name, "INSERT INTO " + name + " VALUES ()", "DELETE FROM " + name, "DROP TABLE " + name} {
			if _, err := evil.DB().Exec(sql); number(err) != tableDenied {
				t.Errorf("%s: the server says %v, want number %d", sql, err, tableDenied)
			}
		}
	}
	if err := stage(t.Context(), evil, []waybill.Message{waybill.RawMessage("t.x", "", nil)}); err != nil {
		t.Errorf("it does not stage its own: %v", err)
	}
}
