package schema_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

// TestMigrationNames: every embedded file has a name that says its version and part, and its way back; versions rise by
// one.
func TestMigrationNames(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("migrations")
	if err != nil || len(entries)%2 != 0 {
		t.Fatalf("%d files: %v", len(entries), err)
	}
	name := regexp.MustCompile(`^(\d{4})_(base|outbox|inbox)_\w+\.(up|down)\.sql$`)
	for i, e := range entries {
		m := name.FindStringSubmatch(e.Name())
		if m == nil {
			t.Fatalf("%s: another name", e.Name())
		}
		if want := []string{"down", "up"}[i%2]; m[3] != want {
			t.Errorf("%s: want %s", e.Name(), want)
		}
		if version := strings.TrimLeft(m[1], "0"); version != string(rune('1'+i/2)) {
			t.Errorf("%s: not the next version", e.Name())
		}
	}
	newest := map[schema.Part]int{schema.PartBase: 1, schema.PartOutbox: 2, schema.PartInbox: 4}
	for part, want := range newest {
		if got := schema.Newest(part); got != want {
			t.Errorf("newest of %s: %d, want %d", part, got, want)
		}
	}
}

func TestNamesInTheirPlaces(t *testing.T) {
	t.Parallel()
	n := schema.NewNames("s", "o", "i").With("{seven}", "7")
	for text, want := range map[string]string{
		"":                              "",
		"SELECT 1":                      "SELECT 1",
		"{outbox}":                      `"s"."o"`,
		"{meta} {outbox_text} {inbox}":  `"s"."waybill_meta" '"s"."o"' "s"."i"`,
		"'{}' {seven}{unknown} {{meta}": `'{}' 7{unknown} {"s"."waybill_meta"`,
		"a { b":                         "a { b",
		"{last}":                        `(SELECT CASE WHEN se.is_called THEN se.last_value ELSE 0 END FROM "s"."o_seq" se)`,
	} {
		if got := n.SQL(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
