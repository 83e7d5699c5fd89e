package schema

import (
	"fmt"
	"hash/fnv"
	"maps"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Defaults of the names.
const (
	DefaultSchema = "waybill"
	DefaultOutbox = "waybill_outbox"
	DefaultInbox  = "waybill_inbox"

	metaTable = "waybill_meta"
	// maxTableName leaves room for the suffixes of index names within Postgres' 63 bytes.
	maxTableName = 48
)

// Names are the objects of one outbox or inbox, or both. Make them with NewNames.
type Names struct {
	Schema, Outbox, Inbox string
	places                map[string]string // what stands for each name in braces
}

// tables are the outbox's other tables, by their suffix.
var tables = [...]string{"members", "routes", "partitions", "notices"}

// indexes are the indexes of the outbox table, and its constraints, by their suffix.
var indexes = [...]string{
	"pkey", "times", "slot", "source", "key", "id", "found", "dedupe", "due", "retry", "hold", "waiting", "waiting_key", "blocking",
	"abandoned", "settled", "expires",
}

// NewNames returns the names for a schema, the table of an outbox and that of an inbox; an empty one is the default.
func NewNames(schema, outbox, inbox string) Names {
	def := func(v, d string) string {
		if v == "" {
			return d
		}
		return v
	}
	n := Names{Schema: def(schema, DefaultSchema), Outbox: def(outbox, DefaultOutbox), Inbox: def(inbox, DefaultInbox)}
	in := func(name string) string { return pgx.Identifier{n.Schema, name}.Sanitize() }
	bare := func(name string) string { return pgx.Identifier{name}.Sanitize() }
	text := func(name string) string { return QuoteText(in(name)) }
	last := func(sequence string) string {
		return "(SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM " + in(sequence) + " se)"
	}
	wake, sequence, notices := n.Outbox+"_wake", n.Outbox+"_seq", n.Outbox+"_notices_seq"
	n.places = map[string]string{
		"{schema}":        bare(n.Schema),
		"{meta}":          in(metaTable),
		"{outbox}":        in(n.Outbox),
		"{outbox_text}":   text(n.Outbox),
		"{members_text}":  text(n.Outbox + "_members"),
		"{sequence}":      in(sequence),
		"{sequence_text}": text(sequence),
		"{last}":          last(sequence),
		"{notices_seq}":   in(notices),
		"{last_notice}":   last(notices),
		"{audit}":         in(n.Outbox + "_audit"),
		"{wake}":          in(wake),
		"{wake_text}":     text(wake),
		"{cleaner}":       QuoteText(n.Outbox + ".cleaner"),
		"{compatible}":    QuoteText(n.Outbox + ".compatible"),
		"{epoch}":         QuoteText(n.Outbox + ".epoch"),
		"{hlc_name}":      QuoteText(n.Outbox + ".hlc"),
		"{slot_function}": in(n.Outbox + "_slot"),
		"{told_function}": in(n.Outbox + "_told"),
		"{channel}":       QuoteText(n.Channel()),
		"{inbox}":         in(n.Inbox),
		"{limits}":        in(n.Inbox + "_limits"),
		"{limits_pkey}":   in(n.Inbox + "_limits_pkey"),
		"{inbox_pkey}":    in(n.Inbox + "_pkey"),
		"{inbox_handled}": bare(n.Inbox + "_handled"),
	}
	for _, t := range tables {
		n.places["{"+t+"}"] = in(n.Outbox + "_" + t)
	}
	for _, x := range indexes {
		n.places["{outbox_"+x+"}"] = bare(n.Outbox + "_" + x)
	}
	return n
}

// With returns the same names and more places: pairs of a name in braces and its replacement.
func (n Names) With(pairs ...string) Names {
	n.places = maps.Clone(n.places)
	for i := 0; i+1 < len(pairs); i += 2 {
		n.places[pairs[i]] = pairs[i+1]
	}
	return n
}

// SQL puts the names, quoted, in the places of a statement: {outbox}, {meta} and so on. {last} and {last_notice} are
// the last numbers that were drawn for records and for notices.
func (n Names) SQL(text string) string {
	text = Qualified(text)
	var b strings.Builder
	b.Grow(len(text) + len(text)/2)
	for {
		from := strings.IndexByte(text, '{')
		if from < 0 {
			break
		}
		b.WriteString(text[:from])
		text = text[from:]
		end := strings.IndexByte(text, '}') + 1
		if place, ok := n.places[text[:end]]; ok {
			b.WriteString(place)
			text = text[end:]
		} else {
			b.WriteByte('{')
			text = text[1:]
		}
	}
	b.WriteString(text)
	return b.String()
}

// Channel is the NOTIFY channel of the outbox: a name of its own within Postgres' 63 bytes.
func (n Names) Channel() string {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "waybill\x00notify\x00%s\x00%s", n.Schema, n.Outbox)
	return fmt.Sprintf("waybill_%016x", h.Sum64())
}

// QuoteText makes a literal. Standard-conforming strings are assumed only where there is no backslash.
func QuoteText(s string) string {
	q := strings.ReplaceAll(s, "'", "''")
	if strings.Contains(q, `\`) {
		return "E'" + strings.ReplaceAll(q, `\`, `\\`) + "'"
	}
	return "'" + q + "'"
}

// CheckNames returns the faults of the name of a schema, and with that of a table, which the options call field.
func CheckNames(schema, field, table string) []string {
	var p []string
	if len(schema) > 63 {
		p = append(p, fmt.Sprintf("Schema: has %d bytes; at most 63 are allowed", len(schema)))
	}
	if strings.ContainsAny(schema, "\x00{") {
		p = append(p, "Schema: holds a NUL or {")
	}
	if len(table) > maxTableName {
		p = append(p, fmt.Sprintf("%s: has %d bytes; at most %d are allowed, since index names add to it", field, len(table), maxTableName))
	}
	if strings.ContainsAny(table, "\x00{") {
		p = append(p, field+": holds a NUL or {")
	}
	if table == metaTable {
		p = append(p, field+": "+metaTable+" is taken; choose another")
	}
	return p
}
