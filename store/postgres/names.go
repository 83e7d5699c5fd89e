package postgres

import (
	"fmt"
	"hash/fnv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// names are the objects of one outbox or inbox, or both.
type names struct {
	schema, outbox, inbox string
	places                *strings.Replacer
	done                  *sync.Map // statements, by their text with places
}

// tables are the outbox's other tables, by their suffix.
var tables = [...]string{"members", "routes", "units", "control"}

// indexes are the indexes of the outbox table, and its constraints, by their suffix.
var indexes = [...]string{
	"pkey", "times", "key", "id", "found", "dedupe", "due", "retry", "hold", "waiting", "waiting_key", "blocking", "abandoned", "settled", "expires",
}

func newNames(schema, outbox, inbox string) names {
	def := func(v, d string) string {
		if v == "" {
			return d
		}
		return v
	}
	n := names{schema: def(schema, DefaultSchema), outbox: def(outbox, DefaultOutboxTable), inbox: def(inbox, DefaultInboxTable), done: &sync.Map{}}
	in := func(name string) string { return pgx.Identifier{n.schema, name}.Sanitize() }
	bare := func(name string) string { return pgx.Identifier{name}.Sanitize() }
	wake, sequence := in(n.outbox+"_wake"), in(n.outbox+"_seq")
	places := []string{
		"{schema}", bare(n.schema), "{meta}", in(metaTable), "{outbox}", in(n.outbox), "{outbox_text}", quoteText(in(n.outbox)),
		"{members_text}", quoteText(in(n.outbox + "_members")),
		"{sequence}", sequence, "{sequence_text}", quoteText(sequence), "{wake}", wake, "{wake_text}", quoteText(wake), "{told}", in(n.outbox + "_control_seq"),
		"{cleaner}", quoteText(n.outbox + ".cleaner"), "{compatible}", quoteText(n.outbox + ".compatible"), "{epoch}", quoteText(n.outbox + ".epoch"),
		"{slot_function}", in(n.outbox + "_slot"), "{hlc_name}", quoteText(n.outbox + ".hlc"), "{channel}", quoteText(n.channel()),
		"{inbox}", in(n.inbox), "{inbox_pkey}", in(n.inbox + "_pkey"), "{inbox_handled}", bare(n.inbox + "_handled"),
	}
	for _, t := range tables {
		places = append(places, "{"+t+"}", in(n.outbox+"_"+t))
	}
	for _, x := range indexes {
		places = append(places, "{outbox_"+x+"}", bare(n.outbox+"_"+x))
	}
	n.places = strings.NewReplacer(places...)
	return n
}

// sql puts the names, quoted, in the places of a statement.
func (n names) sql(text string) string {
	if done, ok := n.done.Load(text); ok {
		return done.(string)
	}
	done := n.places.Replace(text)
	n.done.Store(text, done)
	return done
}

// channel is the NOTIFY channel of the outbox: a name of its own within Postgres' 63 bytes.
func (n names) channel() string { return fmt.Sprintf("waybill_%016x", n.hash("notify")) }

func (n names) hash(what string) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "waybill\x00%s\x00%s\x00%s", what, n.schema, n.outbox)
	return h.Sum64()
}

// quoteText makes a literal. Standard-conforming strings are assumed only where there is no backslash.
func quoteText(s string) string {
	q := strings.ReplaceAll(s, "'", "''")
	if strings.Contains(q, `\`) {
		return "E'" + strings.ReplaceAll(q, `\`, `\\`) + "'"
	}
	return "'" + q + "'"
}
