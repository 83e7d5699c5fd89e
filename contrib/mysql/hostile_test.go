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
	{"tells owners", `INSERT INTO waybill_outbox_control (route, kind, slot, seq, k, id, reason) VALUES ('default', 3, 0, 0, '', '', '')`, tableDenied},
	{"takes units", `UPDATE waybill_outbox_units SET owner = 4711`, tableDenied},
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
