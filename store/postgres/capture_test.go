package postgres_test

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// A neighbour who may create functions and operators in a schema of the search path cannot have a relay call them: no
// statement lets the types of its arguments choose between the server's and another one of the same name.
func TestNoFunctionOfANeighbour(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	captured := map[string]bool{}
	dsn := testenv.Postgres(t).DSN
	exec(t, openPool(t, dsn), traps(true))
	pool := openPoolWith(t, dsn, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			if text, found := strings.CutPrefix(n.Message, "captured "); found {
				mu.Lock()
				defer mu.Unlock()
				captured[text] = true
			}
		}
	})
	if n := query[int](t, pool, "SELECT count(*)::int FROM pg_proc WHERE pronamespace = 'public'::regnamespace"); n < 1000 {
		t.Fatalf("%d functions", n)
	}
	everyCall(t, pool)
	mu.Lock()
	defer mu.Unlock()
	for _, text := range slices.Sorted(maps.Keys(captured)) {
		t.Errorf("%s: call it with its schema, or cast its operands to types that it is made for", text)
	}
}

// No statement calls a function or an operator of a neighbour: each of them is prepared beside some whose results have
// a type that fits nowhere.
func TestNoStatementCallsANeighbour(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	if err := newMigrations(t, postgres.MigrationOptions{}).Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, traps(false))
	trap := query[uint32](t, pool, "SELECT 'public.trap'::regtype::oid::bigint")
	servers := map[string]bool{}
	for name := range strings.FieldsSeq(query[string](t, pool, "SELECT string_agg(DISTINCT proname, ' ') FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace")) {
		servers[name] = true
	}
	language := []string{"extract", "substring", "unnest"} // the parser knows them, and unnest of several arrays
	call := regexp.MustCompile(`(?:^|[^.\w"])([a-z_]\w*)\([^)]`)
	all := postgres.ReleaseStatements()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, m := range call.FindAllStringSubmatch(all[name], -1) {
			if servers[m[1]] && !slices.Contains(language, m[1]) {
				t.Errorf("%s calls %s without its schema: see schema.Qualified", name, m[1])
			}
		}
		err := pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
			d, err := c.Conn().PgConn().Prepare(t.Context(), "", all[name], nil)
			if err == nil && slices.ContainsFunc(d.Fields, func(f pgconn.FieldDescription) bool { return f.DataTypeOID == trap }) {
				err = errors.New("a column is the result of a neighbour's function")
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(all) < 50 {
		t.Errorf("%d statements", len(all))
	}
}

// traps makes functions and operators in public that have names of the server's. Their types are such that the server
// has none for just these. Honest ones warn, and do the same as the server's.
func traps(honest bool) string {
	return strings.Replace(trapsSQL, "honest_traps", strconv.FormatBool(honest), 1)
}

const trapsSQL = `
CREATE TYPE public.trap AS (nothing int);
DO $do$
DECLARE
    types text[] := '{text,name,bigint,integer,smallint,boolean,numeric,"double precision",timestamptz,interval,json,bytea,oid,text[],bigint[],integer[],smallint[],boolean[],timestamptz[]}';
    honest boolean := honest_traps;
    f record; a text; b text; result text; body text;
BEGIN
    PERFORM set_config('search_path', 'pg_catalog', true), set_config('check_function_bodies', 'off', true);
    FOR f IN SELECT DISTINCT oprname AS name FROM pg_operator
        WHERE oprkind = 'b' AND oprname IN ('=','<>','<','>','<=','>=','+','-','*','/','||','&&','@>','<@','~~','!~~','->','->>','&','|','%','<<','>>') LOOP
        FOREACH a IN ARRAY types LOOP
            FOREACH b IN ARRAY types LOOP
                CONTINUE WHEN EXISTS (SELECT FROM pg_operator o WHERE o.oprname = f.name AND o.oprleft = a::regtype AND o.oprright = b::regtype);
                BEGIN
                    EXECUTE format('SELECT pg_typeof(NULL::%s OPERATOR(pg_catalog.%s) NULL::%s)::text', a, f.name, b) INTO result;
                EXCEPTION WHEN OTHERS THEN CONTINUE;
                END;
                IF NOT honest THEN result := 'public.trap'; END IF;
                body := format('BEGIN RAISE WARNING USING MESSAGE = %L; RETURN $1 OPERATOR(pg_catalog.%s) $2; END', 'captured ' || a || ' ' || f.name || ' ' || b, f.name);
                EXECUTE format('CREATE FUNCTION public.%I(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L', 'op_' || md5(f.name::text), a, b, result, body);
                EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.%I)', f.name, a, b, 'op_' || md5(f.name::text));
            END LOOP;
        END LOOP;
    END LOOP;
    FOR f IN SELECT DISTINCT proname AS name FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND pronargs BETWEEN 1 AND 2
        AND prorettype <> 'internal'::regtype AND NOT proretset AND NOT 'internal'::regtype = ANY (proargtypes::oid[]) LOOP
        FOREACH a IN ARRAY types LOOP
            CONTINUE WHEN EXISTS (SELECT FROM pg_proc p WHERE p.proname = f.name AND p.pronamespace = 'pg_catalog'::regnamespace AND p.proargtypes::text = a::regtype::oid::text);
            BEGIN
                EXECUTE format('SELECT pg_typeof(pg_catalog.%I(NULL::%s))::text', f.name, a) INTO result;
                IF NOT honest THEN result := 'public.trap'; END IF;
                body := format('BEGIN RAISE WARNING USING MESSAGE = %L; RETURN pg_catalog.%I($1); END', 'captured ' || f.name || '(' || a || ')', f.name);
                EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', f.name, a, result, body);
            EXCEPTION WHEN OTHERS THEN NULL;
            END;
        END LOOP;
    END LOOP;
    FOREACH a IN ARRAY types LOOP
        CONTINUE WHEN a NOT LIKE '%[]';
        EXECUTE format('CREATE FUNCTION public.unnest(%s) RETURNS SETOF %s LANGUAGE plpgsql AS %L', a, CASE WHEN honest THEN rtrim(a, '[]') ELSE 'public.trap' END,
            format('BEGIN RAISE WARNING USING MESSAGE = %L; RETURN QUERY SELECT * FROM pg_catalog.unnest($1); END', 'captured unnest(' || a || ')'));
    END LOOP;
END $do$`
