package postgres_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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

// DB-29: a server that quotes each identifier that it tells has the tables and the indexes that it has.
func TestQuotedIdentifiers(t *testing.T) {
	t.Parallel()
	withSetting(t, "quote_all_identifiers", "on")
}

// withSetting makes every call in a database that has the setting by default.
func withSetting(t *testing.T, name, value string) {
	t.Helper()
	dsn := testenv.Postgres(t).DSN
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	database := pgx.Identifier{u.Path[1:]}.Sanitize()
	exec(t, openPool(t, dsn), fmt.Sprintf("ALTER DATABASE %s SET %s = '%s'", database, name, value))
	pool := openPoolWith(t, dsn, func(cfg *pgxpool.Config) { cfg.MaxConns = 4 })
	if refusal := refusedSettings[name+"="+value]; refusal != "" {
		wantRefused(t, pool, refusal)
		return
	}
	everyCall(t, pool)
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
