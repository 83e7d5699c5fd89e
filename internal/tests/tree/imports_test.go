package tree_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/waybill-go/waybill"

// rule lists the imports that the matching packages may have besides the standard library. own packages are checked
// through everything that they import in turn; external ones where they are imported, since a driver has dependencies
// of its own. Entries are paths, subpackages included.
type rule struct {
	match    string   // path below the module; a last element ... matches everything below
	own      []string // paths below the module; "*" is every package of ours outside internal/
	external []string // "*" is everything
}

var (
	otelAPI  = []string{"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/attribute", "go.opentelemetry.io/otel/baggage", "go.opentelemetry.io/otel/codes", "go.opentelemetry.io/otel/log", "go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/propagation", "go.opentelemetry.io/otel/semconv", "go.opentelemetry.io/otel/trace"}
	testLibs = []string{"github.com/google/go-cmp", "pgregory.net/rapid", "go.uber.org/goleak"}
	helpers  = []string{"internal/chance", "internal/check", "internal/enum", "internal/errtext", "internal/obs", "internal/sleep"}
	leaf     = append([]string{".", "admin", "admin/audit", "admin/importer", "core", "core/outboxes", "core/parked", "core/repeats", "core/rules", "hlc", "internal/content"}, helpers...)
	handing  = append([]string{"dispatch"}, leaf...)
)

// rules are those of docs/README.md, "The packages"; the first that matches counts.
var rules = []rule{
	{"hlc", nil, nil},
	{"internal/chance", nil, nil},
	{"internal/check", nil, nil},
	{"internal/enum", nil, nil},
	{"internal/errtext", nil, nil},
	{"internal/obs", nil, otelAPI},
	{"internal/patience", nil, nil},
	{"internal/sleep", nil, nil},
	{"internal/tier", nil, nil},
	{"internal/statespace", nil, nil}, // tests only
	{".", append([]string{"hlc"}, helpers...), slices.Concat(otelAPI, []string{"github.com/google/uuid"})},
	{"internal/content", append([]string{".", "hlc"}, helpers...), slices.Concat(otelAPI, []string{"github.com/google/uuid"})},
	{"core", append([]string{".", "hlc"}, helpers...), slices.Concat(otelAPI, []string{"github.com/google/uuid"})},
	{"admin", append([]string{".", "core", "hlc"}, helpers...), nil},
	{"admin/audit", append([]string{".", "core", "hlc"}, helpers...), nil},
	{"admin/importer", append([]string{".", "core", "hlc"}, helpers...), nil},
	{"core/parked", append([]string{".", "admin", "core", "hlc", "internal/content"}, helpers...), nil},
	{"core/outboxes", append([]string{".", "core", "hlc"}, helpers...), slices.Concat(otelAPI, []string{"github.com/google/uuid"})},
	{"core/repeats", append([]string{".", "hlc"}, helpers...), slices.Concat(otelAPI, []string{"github.com/google/uuid"})},
	{"core/rules", append([]string{".", "admin", "core", "hlc", "internal/content"}, helpers...), nil},
	// the suites
	// one harness looks at stored records for both suites of an outbox
	{"core/storetest", append([]string{"core/outboxtest", "core/internal/suitetest", "internal/patience"}, leaf...), slices.Concat(otelAPI, testLibs, []string{"github.com/google/uuid"})},
	{"core/...", append([]string{"core/internal/suitetest", "internal/patience"}, leaf...), slices.Concat(otelAPI, testLibs, []string{"github.com/google/uuid"})},
	{"dispatch/...", leaf, nil},
	{"internal/upkeep", leaf, otelAPI},
	{"relay/...", append([]string{"internal/upkeep"}, handing...), otelAPI},
	{"inbox/...", leaf, otelAPI},
	{"consumer/...", leaf, otelAPI},
	{"asyncapi", leaf, nil},
	{"recurring", append([]string{"inbox"}, leaf...), append([]string{"github.com/netresearch/go-cron"}, otelAPI...)},
	{"transform", leaf, nil},
	{"codec/proto", leaf, []string{"google.golang.org/protobuf"}},
	{"internal/sqltext", []string{".", "core", "hlc", "internal/chance", "internal/check", "internal/enum", "internal/errtext", "internal/obs", "internal/sleep"}, nil},
	{"store/postgres/...", append([]string{"internal/sqltext"}, leaf...), []string{"github.com/jackc/pgx/v5"}},
	{"store/sqlite/...", append([]string{"internal/sqltext"}, leaf...), []string{"modernc.org/sqlite"}},
	{"store/mongo/...", leaf, []string{"go.mongodb.org/mongo-driver/v2"}},
	{"store/memory/...", leaf, nil},
	{"transport/rabbitmq/internal/tlserr", nil, nil},
	// for tools: no AMQP client
	{"transport/rabbitmq/topology", append([]string{"transport/rabbitmq/internal/tlserr"}, leaf...), nil},
	{"transport/rabbitmq/...", leaf, []string{"github.com/rabbitmq/amqp091-go"}},
	{"transport/redisstreams/...", leaf, []string{"github.com/google/uuid", "github.com/redis/go-redis/v9"}},
	// apart, for programs without SNS
	{"transport/sqs/snsclient", append([]string{"transport/sqs"}, leaf...), []string{"github.com/aws/aws-sdk-go-v2/service/sns", "github.com/aws/aws-sdk-go-v2/service/sqs"}},
	{"transport/sqs/...", leaf, []string{"github.com/aws/aws-sdk-go-v2/aws/middleware", "github.com/aws/aws-sdk-go-v2/service/sqs", "github.com/aws/smithy-go"}},
	{"transport/memory/...", leaf, nil},
	{"transport/table/...", append([]string{"internal/upkeep"}, handing...), otelAPI},
	{"waybilltest/sqltest", append([]string{"internal/content", "internal/sqltext", "internal/upkeep", "store/sqlite", "store/memory", "waybilltest", "*"}, helpers...), slices.Concat(otelAPI, testLibs, []string{"github.com/google/uuid", "modernc.org/sqlite"})},
	{"waybilltest/...", append([]string{"internal/content", "*", "internal/sqltext", "internal/upkeep"}, helpers...), slices.Concat(otelAPI, testLibs, []string{"github.com/google/uuid"})},
	{"internal/testenv/...", []string{"internal/testenv", "internal/tier"}, []string{"*"}},
	{"internal/tests/faults", nil, nil},  // tests only
	{"internal/tests/outages", nil, nil}, // tests only
	{"internal/tests/matrix", nil, nil},  // tests only
	{"internal/tests/tree", nil, nil},
	{"internal/tests/costs", nil, nil},    // tests only
	{"internal/tests/mistakes", nil, nil}, // tests only
	{"internal/mutants", []string{"internal/patience"}, nil},
	{"internal/sharedtest", append([]string{"internal/patience"}, leaf...), testLibs},
	{"internal/rounds", nil, nil},
	{"internal/ratetest", append([]string{"*", "internal/patience", "internal/rounds", "internal/sharedtest", "internal/content", "internal/sqltext", "internal/upkeep"}, helpers...), []string{"*"}},
	{"internal/killtest", append([]string{"*", "internal/sharedtest", "internal/sqltext", "internal/upkeep"}, "internal/patience", "internal/chance", "internal/check", "internal/enum", "internal/errtext", "internal/obs", "internal/sleep", "internal/content"), testLibs},
	{"internal/historytest", append([]string{"*", "internal/checker", "internal/patience", "internal/sleep", "internal/upkeep", "internal/content", "internal/sqltext"}, helpers...), []string{"*"}},
	{"internal/nightly", nil, nil},
	{"internal/checker", leaf, nil},
	{"internal/tests/docs", append([]string{"*", "internal/sqltext", "internal/upkeep"}, helpers...), nil},
	{"cli/config", leaf, []string{"github.com/goccy/go-yaml"}},
	{"cli/adapters/...", []string{"*", "internal"}, []string{"*"}},
	{"cli/...", []string{"*", "internal"}, []string{"*"}},
	{"health/...", leaf, nil},
	{"dashboard/...", leaf, []string{"go.opentelemetry.io/otel/sdk/metric", "golang.org/x/crypto/bcrypt"}},
	{"internal/tests/dashboard", nil, nil}, // tests only
	{"internal/demo", []string{"*", "internal/content", "internal/sqltext", "internal/upkeep", "internal/chance", "internal/check", "internal/enum", "internal/errtext", "internal/obs", "internal/sleep"}, []string{"*"}},
	{"cmd/...", []string{"*", "cmd", "internal"}, []string{"*"}},
	{"examples/...", []string{"*", "examples", "internal"}, []string{"*"}},
}

type pkg struct {
	ImportPath    string
	Standard      bool
	Imports, Deps []string
}

// load returns the packages of this module and everything they need, without tests, by import path. With -e: what
// does not compile is the compiler's business.
func load(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps", "-json=ImportPath,Standard,Imports,Deps", "./...")
	cmd.Dir = root(t)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	all := map[string]pkg{}
	for dec := json.NewDecoder(&out); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
	}
}

func TestImportRules(t *testing.T) {
	t.Parallel()
	all := load(t)
	checked := 0
	for name, p := range all {
		rel, ours := below(name)
		if !ours {
			continue
		}
		checked++
		i := slices.IndexFunc(rules, func(r rule) bool { return r.matches(rel) })
		if i < 0 {
			t.Errorf("%s: no rule says what it may import: add one here and in docs/README.md", rel)
			continue
		}
		for _, problem := range rules[i].check(rel, p, all) {
			t.Errorf("%s %s", rel, problem)
		}
	}
	if checked == 0 {
		t.Fatal("go list found no package of ours")
	}
}

func (r rule) matches(rel string) bool {
	base, tree := strings.CutSuffix(r.match, "/...")
	return rel == base || tree && strings.HasPrefix(rel, base+"/")
}

func (r rule) check(rel string, p pkg, all map[string]pkg) (problems []string) {
	for _, dep := range p.Deps {
		own, ours := below(dep)
		if ours && !r.mayOwn(rel, own) {
			problems = append(problems, "must not depend on "+own)
		}
		if dep == "testing" && !forTests(rel) {
			problems = append(problems, "depends on testing, which only packages named ...test may")
		}
	}
	for _, imported := range p.Imports {
		if _, ours := below(imported); ours || all[imported].Standard || imported == "C" {
			continue
		}
		if !slices.ContainsFunc(r.external, func(allowed string) bool { return allowed == "*" || within(imported, allowed) }) ||
			imported != "go.opentelemetry.io/otel" && slices.Contains(r.external, "go.opentelemetry.io/otel") && within(imported, "go.opentelemetry.io/otel") && !api(imported) {
			problems = append(problems, "must not import "+imported)
		}
	}
	return problems
}

// api says whether an OpenTelemetry package is part of the API: "go.opentelemetry.io/otel" would also cover the SDK
// below it.
func api(imported string) bool {
	return slices.ContainsFunc(otelAPI[1:], func(allowed string) bool { return within(imported, allowed) })
}

func (r rule) mayOwn(rel, own string) bool {
	base, tree := strings.CutSuffix(r.match, "/...")
	if tree && within(own, base) && !strings.HasPrefix(r.match, "core/") {
		return true // its own subpackages
	}
	return slices.ContainsFunc(r.own, func(allowed string) bool {
		return allowed == own || allowed == "*" && !within(own, "internal") && !within(own, "cmd") || within(own, allowed) && !within(own, "core")
	})
}

// forTests says whether a package is there for tests only: its name, or that of a folder above it, ends in test.
func forTests(rel string) bool {
	return slices.ContainsFunc(strings.Split(rel, "/"), func(part string) bool { return strings.HasSuffix(part, "test") })
}

func below(importPath string) (rel string, ours bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

func within(importPath, tree string) bool {
	return importPath == tree || strings.HasPrefix(importPath, tree+"/")
}

// The rules must be able to fail.
func TestImportRulesCatchViolations(t *testing.T) {
	t.Parallel()
	std := map[string]pkg{"fmt": {Standard: true}, "testing": {Standard: true}}
	for _, tc := range []struct {
		rel     string
		imports []string
		bad     bool
	}{
		{"hlc", []string{"fmt"}, false},
		{"hlc", []string{"github.com/google/uuid"}, true},
		{"core", []string{"fmt", module + "/hlc", "github.com/google/uuid", "go.opentelemetry.io/otel", "go.opentelemetry.io/otel/trace"}, false},
		{"core", []string{"go.opentelemetry.io/otel/sdk/trace"}, true},
		{"core", []string{module + "/core/storetest"}, true},
		{"core", []string{"testing"}, true},
		{"core", []string{module}, false},
		{"core", []string{module + "/admin"}, true},
		{".", []string{module + "/hlc"}, false},
		{".", []string{module + "/core"}, true},
		{"admin", []string{module, module + "/core"}, false},
		{"admin", []string{module + "/relay"}, true},
		{"core/storetest", []string{"testing", module + "/core", "pgregory.net/rapid"}, false},
		{"core/storetest", []string{module + "/store/memory"}, true},
		{"relay", []string{module + "/core", "go.opentelemetry.io/otel/metric"}, false},
		{"relay", []string{"golang.org/x/sync/errgroup"}, true},
		{"relay", []string{module + "/core/storetest"}, true},
		{"inbox", []string{module + "/consumer"}, true},
		{"store/postgres", []string{module + "/core", module + "/store/postgres/migrations", "github.com/jackc/pgx/v5/pgxpool"}, false},
		{"store/postgres", []string{module + "/relay"}, true},
		{"store/postgres", []string{module + "/store/memory"}, true},
		{"store/mongo", []string{module + "/core", "go.mongodb.org/mongo-driver/v2/mongo"}, false},
		{"store/mongo", []string{"github.com/google/uuid"}, true},
		{"transport/rabbitmq", []string{module + "/internal/testenv"}, true},
		{"transport/rabbitmq", []string{module + "/transport/rabbitmq/topology", "github.com/rabbitmq/amqp091-go"}, false},
		{"transport/rabbitmq/topology", []string{module + "/core", module + "/admin"}, false},
		{"transport/rabbitmq/topology", []string{module + "/transport/rabbitmq"}, true},
		{"transport/rabbitmq/topology", []string{"github.com/rabbitmq/amqp091-go"}, true},
		{"transport/redisstreams", []string{module + "/internal/testenv"}, true},
		{"transport/redisstreams", []string{module + "/admin", "github.com/redis/go-redis/v9"}, false},
		{"waybilltest", []string{"testing", module + "/relay", module + "/store/memory"}, false},
		{"waybilltest", []string{module + "/internal/testenv"}, true},
		{"internal/testenv", []string{"testing"}, true},
		{"examples/shop", []string{module + "/relay", module + "/store/postgres", module + "/internal/testenv"}, false},
	} {
		i := slices.IndexFunc(rules, func(r rule) bool { return r.matches(tc.rel) })
		problems := rules[i].check(tc.rel, pkg{Imports: tc.imports, Deps: tc.imports}, std)
		if (len(problems) > 0) != tc.bad {
			t.Errorf("%s importing %q: %q", tc.rel, tc.imports, problems)
		}
	}
}

// contrib modules are written as an outsider would write them. Their paths begin with ours, so the compiler would let
// them use internal packages. Their tests may: they need the test servers.
func TestContribUsesNothingInternal(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(filepath.Join(root(t), "contrib"), func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // no contrib yet
			}
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imported := range f.Imports {
			if strings.HasPrefix(imported.Path.Value, `"`+module+"/internal") {
				t.Errorf("%s imports %s", file, imported.Path.Value)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// root returns the folder of the module.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return dir
}
