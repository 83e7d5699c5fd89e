package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

// needed names the columns of every table, in the order of the newest migration. The owner can add others.
var needed = []struct {
	table   string
	columns []string
}{
	{"outbox", []string{
		"seq", "route", "id", "topic", "key", "slot", "version", "state", "due_at", "settled_at", "expires_at", "ready_since",
		"hold", "held_since", "maybe_sent",
		"cancellable", "attempts", "deliveries", "crashes", "blocks", "hlc", "reason", "error", "error_at", "dedupe_key", "attrs", "body",
	}},
	{"outbox_members", []string{
		"session", "heartbeats", "lease", "presence", "capacity", "free_capacity", "suspected", "joined_at", "renewed_at", "name", "routes",
	}},
	{"outbox_partitions", []string{"route", "from_slot", "to_slot", "owner", "term", "read_after", "uncertain_up_to"}},
	{"outbox_routes", []string{"route", "read_after", "uncertain_up_to", "term"}},
	{"outbox_notices", []string{"number", "route", "kind", "slots", "slot", "seq", "key", "id", "reason"}},
	{"outbox_audit", []string{
		"number", "at", "act", "phase", "who", "via", "origin", "action", "target", "filter", "ids", "before", "after", "result",
	}},
	{"inbox", []string{"consumer", "source", "id", "handled_at", "content_hash"}},
	{"limits", []string{"name", "state"}},
	{"meta", []string{"name", "value", "owner"}},
}

var neededIndexes = []string{
	"outbox_id", "outbox_ready", "outbox_key", "outbox_free", "outbox_dedupe", "outbox_timer", "outbox_retry", "outbox_hold",
	"outbox_waiting", "outbox_waiting_key", "outbox_blocking", "outbox_blocking_key", "outbox_abandoned", "outbox_gone",
	"outbox_settled", "outbox_expires", "outbox_partitions_owner", "outbox_notices_route", "inbox_handled",
}

// Check reports missing tables, tables of an old version or of another shape, settings with which transactions are not
// atomic or not durable, and a driver that wraps SQLite's and hides its commit hook, which the inbox needs.
// With AutoMigrate it migrates first.
func (s *Store) Check(ctx context.Context) error {
	if s.closed.Load() {
		return s.classify("check", sql.ErrConnDone)
	}
	if s.opts.AutoMigrate {
		if err := s.Migrate(ctx); err != nil {
			return err
		}
	}
	if err := s.check(ctx); err != nil {
		return s.classify("check", err)
	}
	return nil
}

func (s *Store) check(ctx context.Context) error {
	cure := "run Migrate on this file, or set Options.AutoMigrate"
	have, err := s.migrations.applied(ctx, s.db)
	if err != nil {
		return err
	}
	if have == 0 {
		table := s.opts.Prefix + "outbox"
		if lacks, err := s.missing(ctx, "SELECT name FROM sqlite_schema WHERE name = ?", table, []string{table}); err != nil {
			return err
		} else if len(lacks) == 0 {
			return misconfigured("check", fmt.Errorf("table %s exists, but no version of Waybill's schema is noted: "+
				"it is another table; choose another Options.Prefix", table))
		}
		return misconfigured("check", fmt.Errorf("table %soutbox does not exist: %s", s.opts.Prefix, cure))
	}
	if have < s.migrations.Newest() {
		return misconfigured("check", fmt.Errorf("the schema of %soutbox has version %d, this program needs %d: %s",
			s.opts.Prefix, have, s.migrations.Newest(), cure))
	}
	if err := s.fits(ctx, s.db); err != nil {
		return err
	}
	for _, t := range needed {
		missing, err := s.missing(ctx, "SELECT name FROM pragma_table_info(?)", s.opts.Prefix+t.table, t.columns)
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			return misconfigured("check", fmt.Errorf("table %s%s lacks the columns %s: "+
				"it is not Waybill's or was changed; restore it, or choose another Options.Prefix",
				s.opts.Prefix, t.table, strings.Join(missing, ", ")))
		}
	}
	indexes := make([]string, len(neededIndexes))
	for i, name := range neededIndexes {
		indexes[i] = s.opts.Prefix + name
	}
	const indexText = "SELECT name FROM sqlite_schema WHERE type = 'index' AND substr(name, 1, length(?1)) = ?1"
	missing, err := s.missing(ctx, indexText, s.opts.Prefix, indexes)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return misconfigured("check", fmt.Errorf("table %soutbox lacks the indexes %s: "+
			"create them again as Migrations.SQL does", s.opts.Prefix, strings.Join(missing, ", ")))
	}
	if err := s.checkSettings(ctx); err != nil {
		return err
	}
	return s.checkDriver(ctx)
}

// checkSettings refuses a database without rollback, with another file attached, or that a power cut takes back.
func (s *Store) checkSettings(ctx context.Context) error {
	var journal string
	if err := s.db.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&journal); err != nil {
		return err
	}
	if journal == "off" || journal == "memory" {
		return misconfigured("check", fmt.Errorf("journal_mode is %q, which loses transactions: "+
			"open the database with _pragma=journal_mode(WAL)", journal))
	}
	if err := refuseAttached(ctx, s.db); err != nil {
		return err
	}
	var sync int
	if err := s.db.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&sync); err != nil {
		return err
	}
	if sync < 2 {
		return misconfigured("check", fmt.Errorf("synchronous is %s: a power cut can take back what was committed, and then a message whose delivery was settled "+
			"has no effect: open the database with _pragma=synchronous(FULL)", [2]string{"OFF", "NORMAL"}[sync]))
	}
	return nil
}

func (s *Store) missing(ctx context.Context, query, table string, want []string) ([]string, error) {
	rows, err := s.db.QueryContext(ctx, query, table)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	have := map[string]bool{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		have[name] = true
	}
	var out []string
	for _, name := range want {
		if !have[name] {
			out = append(out, name)
		}
	}
	return out, rows.Err()
}
