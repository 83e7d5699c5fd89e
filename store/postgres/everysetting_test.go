package postgres_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

// refusedSettings are the settings that a program must not start with: Check, or a migration, says so.
var refusedSettings = map[string]string{
	"default_transaction_read_only=on": "read only",
	"synchronous_commit=off":           "synchronous_commit is off",
}

// DB-29: a role or a database may have each setting that is no text, at each value of an enumeration and at both ends
// of a range: every call works, or the first one says which setting is in the way.
func TestEverySetting(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "260 settings, each with a database of its own: two minutes")
	rows, err := openPool(t, testenv.Postgres(t).DSN).Query(t.Context(), `
		SELECT name, v FROM pg_settings s CROSS JOIN LATERAL unnest(
			CASE vartype WHEN 'bool' THEN '{on,off}' WHEN 'enum' THEN enumvals ELSE ARRAY[min_val, max_val] END) v
		WHERE context IN ('user', 'superuser') AND vartype <> 'string' AND v <> s.setting
		  AND name NOT LIKE 'transaction\_%' AND name NOT IN ('max_stack_depth', 'seed')
		ORDER BY name, v`)
	if err != nil {
		t.Fatal(err)
	}
	type setting struct{ Name, Value string }
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[setting])
	if err != nil || len(all) < 200 {
		t.Fatalf("%d settings: %v", len(all), err)
	}
	for _, s := range all {
		t.Run(s.Name+"="+s.Value, func(t *testing.T) {
			t.Parallel()
			withSetting(t, s.Name, s.Value)
		})
	}
}

// textValues are values of the settings that are text. Nothing of a store depends on those without one.
var textValues = map[string][]string{
	"search_path":                      {"", "nowhere", `pg_catalog, "$user"`, "public, pg_catalog", "pg_temp, public"},
	"DateStyle":                        {"SQL, DMY", "German, YMD", "Postgres, MDY"},
	"TimeZone":                         {"Asia/Kathmandu", "Antarctica/Troll", "<x>+13:30"},
	"timezone_abbreviations":           {"Australia"},
	"client_encoding":                  {"LATIN1", "SQL_ASCII", "EUC_JP", "WIN1252"},
	"lc_messages":                      {"C", "POSIX"},
	"lc_monetary":                      {"POSIX"},
	"lc_numeric":                       {"POSIX"},
	"lc_time":                          {"POSIX"},
	"temp_tablespaces":                 {"nowhere", "pg_default"},
	"default_tablespace":               {"nowhere", "pg_default"},
	"default_table_access_method":      {"nowhere"},
	"default_text_search_config":       {"simple"},
	"local_preload_libraries":          {"nowhere"},
	"session_preload_libraries":        {"nowhere"},
	"dynamic_library_path":             {"/nowhere"},
	"role":                             {"none", "pg_monitor"},
	"session_authorization":            {"default"},
	"application_name":                 {"'"},
	"backtrace_functions":              {"exec_simple_query"},
	"wal_consistency_checking":         {"all"},
	"plpgsql.extra_errors":             {"all"},
	"plpgsql.extra_warnings":           {"all"},
	"createrole_self_grant":            {"set, inherit"},
	"restrict_nonsystem_relation_kind": {"view, foreign-table"},
	"extension_destdir":                nil,
}

// refusedTexts maps each setting that keeps a program from its start to a part of the first error.
var refusedTexts = map[string]string{
	"client_encoding=LATIN1":            "client_encoding is LATIN1",
	"client_encoding=EUC_JP":            "client_encoding is EUC_JP",
	"client_encoding=WIN1252":           "client_encoding is WIN1252",
	"local_preload_libraries=nowhere":   "could not access file",
	"session_preload_libraries=nowhere": "could not access file",
}

// DB-29: text that is sent in UTF-8 and taken for another encoding would be stored as other text.
func TestClientEncoding(t *testing.T) {
	t.Parallel()
	wantRefused(t, poolWith(t, "client_encoding", "LATIN1"), "ALTER ROLE \"postgres\" SET client_encoding = 'UTF8'")
}

// DB-29: a role or a database may have each setting that is text.
func TestEveryTextSetting(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "40 texts, each with a database of its own")
	rows, err := openPool(t, testenv.Postgres(t).DSN).Query(t.Context(), `
		SELECT name FROM pg_settings WHERE context IN ('user', 'superuser') AND vartype = 'string' ORDER BY name`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) < 15 {
		t.Fatal(names, err)
	}
	for _, name := range append(names, "plpgsql.extra_errors", "plpgsql.extra_warnings") {
		if _, known := textValues[name]; !known {
			t.Errorf("textValues has no values of %s", name)
		}
		for _, value := range textValues[name] {
			t.Run(name+"="+value, func(t *testing.T) {
				t.Parallel()
				if refusal := refusedTexts[name+"="+value]; refusal != "" {
					wantRefused(t, poolWith(t, name, value), refusal)
					return
				}
				withSetting(t, name, value)
			})
		}
	}
}

// DB-29: a server that quotes each identifier that it tells has the tables and the indexes that it has.
func TestQuotedIdentifiers(t *testing.T) {
	t.Parallel()
	withSetting(t, "quote_all_identifiers", "on")
}

// withSetting makes every call in a database that has the setting by default. Keys and headers come as they were.
func withSetting(t *testing.T, name, value string) {
	t.Helper()
	pool := poolWith(t, name, value)
	if refusal := refusedSettings[name+"="+value]; refusal != "" {
		wantRefused(t, pool, refusal)
		return
	}
	everyCall(t, pool)
	const odd = "a'b\"c\\d%_ ü€😀 "
	o := outboxOn(t, pool, postgres.Options{})
	at := time.Date(2031, 2, 3, 4, 5, 6, 7_000_000, time.UTC)
	s := stage(t, pool, o, message(waybill.Key(odd), waybill.Header("h", odd), waybill.DeliverAt(at)))
	rec, err := o.Inspect(t.Context(), waybill.DefaultRoute, s[0].ID)
	if err != nil || rec.Envelope.Key != odd || rec.Envelope.Headers["h"] != odd || (rec.DueIn-time.Until(at)).Abs() > time.Hour {
		t.Errorf("%+v, %v", rec, err)
	}
}

// poolWith returns a pool of a database that has the setting by default.
func poolWith(t *testing.T, name, value string) *pgxpool.Pool {
	t.Helper()
	dsn := testenv.Postgres(t).DSN
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	database := pgx.Identifier{u.Path[1:]}.Sanitize()
	text := "'" + strings.ReplaceAll(value, "'", "''") + "'"
	if strings.Contains(value, ", ") || name == "search_path" && value != "" { // a list
		text = value
		if name != "search_path" && name != "createrole_self_grant" {
			text = "'" + value + "'"
		}
	}
	exec(t, openPool(t, dsn), fmt.Sprintf("ALTER DATABASE %s SET %s = %s", database, name, text))
	return openPoolWith(t, dsn, func(cfg *pgxpool.Config) { cfg.MaxConns = 4 })
}

func wantRefused(t *testing.T, pool *pgxpool.Pool, refusal string) {
	t.Helper()
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	if err = o.Migrate(t.Context()); err == nil {
		err = o.Check(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), refusal) {
		t.Errorf("%v, want an error with %q", err, refusal)
	}
}
