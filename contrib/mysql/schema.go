package waybillmysql

import (
	"context"
	_ "embed" // schema.sql
	"regexp"
	"strconv"
	"strings"
)

//go:embed schema.sql
var schemaSQL string

// schemaVersion is the version that schema.sql creates.
const schemaVersion = 1

// Schema returns the statements that create the tables, for tools that migrate. Each can run again.
func Schema() string { return schemaSQL }

// Migrate creates the tables, under a lock of the server. Many processes can call it at once, and again at any time.
func (s *Store) Migrate(ctx context.Context) error {
	conn, err := s.own.Conn(ctx)
	if err != nil {
		return classify("migrate", err)
	}
	defer func() { _ = discard(conn, nil) }() // which gives the lock back
	w := &work{s: s, q: conn}
	var got int
	if _, err := w.one(ctx, []any{&got}, `SELECT COALESCE(GET_LOCK(CONCAT('waybill:', LEFT(SHA2(DATABASE(), 256), 16)), 60), 0)`); err != nil {
		return classify("migrate", err)
	}
	if got != 1 {
		return outage(misconfigured("another process has migrated for 60 seconds: wait for it, or end it"))
	}
	for text := range strings.SplitSeq(schemaSQL, ";\n") {
		if strings.TrimSpace(text) == "" {
			continue
		}
		if _, err := w.exec(ctx, text); err != nil {
			return classify("migrate", err)
		}
	}
	return nil
}

// rowReserve is what the statement of a message has beside its body, names and headers, with some to spare.
const rowReserve = 64 << 10

// Check finds a server that cannot keep the promises, tables that are missing or have another shape, and a login that
// may not read them. All errors match waybill.ErrMisconfigured, but those of class outage.
func (s *Store) Check(ctx context.Context) error {
	v, err := s.serverVersion(ctx)
	if err != nil {
		return classify("check", err)
	}
	if !recent(v) {
		return misconfigured("the server's version is %q; MySQL 8.0.13 or MariaDB 10.6 is needed, for SKIP LOCKED and defaults that are expressions", v)
	}
	w := &work{s: s, q: s.own}
	var step, flush, sync, all, version int64
	if _, err := w.one(ctx, []any{&step, &flush, &sync, &all}, `SELECT @@auto_increment_increment, @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@innodb_rollback_on_timeout`); err != nil {
		return classify("check", err)
	}
	var log, commits, completion, format string
	if _, err := w.one(ctx, []any{&log, &commits, &completion, &format}, `SELECT @@log_bin, @@autocommit, @@completion_type, @@binlog_format`); err != nil {
		return classify("check", err)
	}
	app, limit, mode, careful, texts, literals, packet := &work{s: s, q: s.db}, "", "", 0, "", "", 0
	if _, err := app.one(ctx, []any{&limit, &mode, &careful, &texts, &literals, &packet},
		`SELECT CAST(@@sql_select_limit AS CHAR), @@sql_mode, @@sql_safe_updates, @@character_set_client, @@character_set_connection, @@max_allowed_packet`); err != nil {
		return classify("check", err)
	}
	most := s.opts.Limits.WithDefaults().MaxMessageBytes
	galera, err := w.one(ctx, []any{new(string), new(string)}, `SHOW VARIABLES WHERE Variable_name = 'wsrep_on' AND Value NOT IN ('OFF', '0')`)
	if err != nil {
		return classify("check", err)
	}
	if galera {
		return misconfigured("the server is a node of a Galera cluster, where numbers do not rise in time and locks are a node's own")
	}
	switch {
	case step != 1:
		return misconfigured("auto_increment_increment is %d: with several primaries numbers do not rise in time; use one", step)
	case all != 0:
		return misconfigured("innodb_rollback_on_timeout is ON, so that a failed statement ends its transaction; set it to OFF")
	case commits != "1" || completion != "NO_CHAIN":
		return misconfigured("autocommit is %s and completion_type is %s, by the server, its init_connect or the data source name, so that transactions stay open: "+
			"set them to 1 and NO_CHAIN, or use Open, which does it for its connections", commits, completion)
	case limit != noSelectLimit:
		return misconfigured("sql_select_limit is %s, with which lists end early in silence: set it to %s, or use Open, which does it for its connections", limit, noSelectLimit)
	case careful != 0:
		return misconfigured("sql_safe_updates is ON in the application's connections, which cannot replace or cancel messages then: set it to 0 in the data source name")
	case texts != "utf8mb4" || literals != "utf8mb4" && literals != "binary":
		return misconfigured("character_set_client is %s and character_set_connection is %s, with which keys and headers are stored as other texts: "+
			"set both to utf8mb4 (charset=utf8mb4 in the data source name), or use Open, which does it for its connections", texts, literals)
	case packet < most+rowReserve:
		return misconfigured("max_allowed_packet is %d: the server ends the connection at a larger statement, and a message may have %d bytes beside %d of its row: "+
			"raise it, or lower Options.Limits.MaxMessageBytes", packet, most, rowReserve)
	case oddMode.MatchString(mode):
		return misconfigured("sql_mode has %s, with which statements mean something else: set another one, in the data source name, too", oddMode.FindString(mode))
	case log != "0" && format == "STATEMENT":
		return misconfigured("binlog_format is STATEMENT, with which MySQL refuses writes under READ COMMITTED and replicas of MariaDB can differ; set it to ROW or MIXED")
	case s.opts.AllowUnsafeSettings:
	case flush != 1 && flush != 3: // which MariaDB has besides
		return misconfigured("innodb_flush_log_at_trx_commit is %d: a crash of the server's machine loses committed messages and effects; "+
			"set it to 1, or Options.AllowUnsafeSettings", flush)
	case log != "0" && sync != 1:
		return misconfigured("sync_binlog is %d: after a crash of its machine the server takes back commits that the binary log lacks; "+
			"set it to 1, or Options.AllowUnsafeSettings", sync)
	}
	var table, engine string
	odd, err := w.one(ctx, []any{&table, &engine},
		`SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND LEFT(TABLE_NAME, 8) = 'waybill_' AND ENGINE <> 'InnoDB' LIMIT 1`)
	switch {
	case err != nil:
		return classify("check", err)
	case odd:
		return misconfigured("table %s is of the engine %s, which has no transactions: ALTER TABLE %s ENGINE = InnoDB, and take enforce_storage_engine out of the server's settings",
			table, engine, table)
	}
	for table, names := range needed() {
		if _, err := w.exec(ctx, `SELECT `+names+` FROM `+table+` LIMIT 0`); err != nil {
			return classify("check", err)
		}
	}
	if _, err := w.one(ctx, []any{&version}, `SELECT value FROM waybill_meta WHERE name = 'version'`); err != nil {
		return classify("check", err)
	}
	if version != schemaVersion {
		return misconfigured("the schema has version %d, this program needs %d: run Migrate, or the program that fits", version, schemaVersion)
	}
	return nil
}

var (
	// oddMode finds the modes in which an empty text is NULL, or an UPDATE assigns all columns at once.
	oddMode       = regexp.MustCompile(`\b(EMPTY_STRING_IS_NULL|ORACLE|SIMULTANEOUS_ASSIGNMENT)\b`)
	tablePattern  = regexp.MustCompile(`(?s)CREATE TABLE IF NOT EXISTS (\w+) \((.*?)\n\) ENGINE`)
	columnPattern = regexp.MustCompile(`(?m)^\t([a-z_]+) +[A-Z]`)
)

// needed returns the columns of each table of schema.sql.
func needed() map[string]string {
	out := map[string]string{}
	for _, t := range tablePattern.FindAllStringSubmatch(schemaSQL, -1) {
		var names []string
		for _, c := range columnPattern.FindAllStringSubmatch(t[2], -1) {
			names = append(names, c[1])
		}
		out[t[1]] = strings.Join(names, ", ")
	}
	return out
}

func isMariaDB(version string) bool { return strings.Contains(version, "MariaDB") }

// recent reports whether the server knows SKIP LOCKED and keeps its numbers over a restart.
func recent(version string) bool {
	least := 8_000_013
	if isMariaDB(version) {
		least, version = 10_006_000, strings.TrimPrefix(version, "5.5.5-")
	}
	have, parts := 0, strings.FieldsFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	for i := range 3 {
		n := 0
		if i < len(parts) {
			n, _ = strconv.Atoi(parts[i]) // digits only
		}
		have = have*1000 + n
	}
	return have >= least
}
