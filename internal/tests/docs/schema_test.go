package docs_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters"
)

const (
	schemaFile   = root + "/docs/waybill.schema.json"
	describeFile = root + "/cli/descriptions.json"
)

func shippedApp() cli.App {
	return cli.App{Stores: adapters.Stores(), Transports: adapters.Transports()}
}

// comments finds the doc comments of fields in the sources, and keeps them.
type comments struct {
	t     *testing.T
	read  map[string]map[string]string // by struct and field
	found map[string]string
}

func (c *comments) describe(owner, name string) string {
	if first := owner[strings.LastIndex(owner, ".")+1]; first >= 'a' {
		return "" // it has tags
	}
	if c.read[owner] == nil {
		c.read[owner] = map[string]string{}
		at := strings.LastIndex(owner, ".")
		pkg := strings.TrimPrefix(strings.TrimPrefix(owner[:at], "github.com/waybill-go/waybill"), "/")
		for _, f := range fields(c.t, pkg, owner[at+1:]) {
			// one comment can be about several fields
			if regexp.MustCompile(`\b` + f.name + `\b`).MatchString(f.doc) {
				c.read[owner][f.name] = strings.ReplaceAll(f.doc, `\|`, "|")
			}
		}
	}
	text := c.read[owner][name]
	if text != "" {
		c.found[owner+"."+name] = text
	}
	return text
}

// TestSchema checks docs/waybill.schema.json and the descriptions in the command against the settings and their doc
// comments, and that config schema prints the same. Rewrite them with make generate.
//
// OP-02
func TestSchema(t *testing.T) {
	t.Parallel()
	c := &comments{t, map[string]map[string]string{}, map[string]string{}}
	schema, err := shippedApp().Schema(c.describe)
	if err != nil {
		t.Fatal(err)
	}
	var descriptions bytes.Buffer
	e := json.NewEncoder(&descriptions)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(c.found); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string][]byte{schemaFile: schema, describeFile: descriptions.Bytes()} {
		if *update {
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if read(t, path) != string(text) {
			t.Errorf("%s does not say what the code says: run make generate", path)
		}
	}
	var out, problems bytes.Buffer
	if code := shippedApp().Run(t.Context(), []string{"config", "schema"}, cli.IO{Out: &out, Err: &problems}); code != cli.ExitOK || !*update && out.String() != string(schema) {
		t.Errorf("config schema: %d %s", code, problems.String())
	}
	if n := len(c.found); n < 100 {
		t.Errorf("only %d settings are described", n)
	}
}

// valid returns the verdicts of the command and of the schema on YAML.
func valid(t *testing.T, schema *jsonschema.Schema, text string) (byCommand string, bySchema error) {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	j, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(j))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "waybill.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, problems bytes.Buffer
	if shippedApp().Run(t.Context(), []string{"config", "--config", file}, cli.IO{Out: &out, Err: &problems}) != cli.ExitOK {
		byCommand = problems.String()
	}
	return byCommand, schema.Validate(instance)
}

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// OP-02: the examples of docs/configuration.md and deploy/ are valid by the schema and load; mistakes are found by
// both.
func TestExampleConfigurations(t *testing.T) {
	t.Parallel()
	text, err := shippedApp().Schema(nil)
	if err != nil {
		t.Fatal(err)
	}
	resource, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	compiler := jsonschema.NewCompiler()
	if err == nil {
		err = compiler.AddResource("waybill.json", resource)
	}
	if err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("waybill.json")
	if err != nil {
		t.Fatal(err)
	}
	secrets := regexp.MustCompile(`\{file: [^}]*\}`)
	texts := map[string]string{"compose": shipped(t, "docker", "waybill.yaml")}
	for _, m := range yamlBlock.FindAllStringSubmatch(read(t, root+"/docs/configuration.md"), -1) {
		texts["configuration.md"] = m[1]
	}
	if len(texts) != 2 {
		t.Fatal("docs/configuration.md has no example")
	}
	for name, text := range texts {
		text = secrets.ReplaceAllString(text, "x://u:p@h:1/d")
		if byCommand, bySchema := valid(t, schema, text); bySchema != nil || byCommand != "" {
			t.Errorf("%s: %v\n%s", name, bySchema, byCommand)
		}
	}
	good := secrets.ReplaceAllString(texts["configuration.md"], "x://u:p@h:1/d")
	for _, wrong := range []string{
		good + "colour: red\n",
		good + "telemetri: {}\n",
		strings.Replace(good, "kind: postgres", "kind: oracle", 1),
		strings.Replace(good, "kind: postgres", "kind: postgres\n    sorce: /x", 1),
		strings.Replace(good, "kind: rabbitmq", "kind: redis", 1),
		strings.Replace(good, "lease: 10s", "lease: ten", 1),
		strings.Replace(good, "order: per_key", "order: random", 1),
		strings.Replace(good, "batch_size: 500", "batch_size: many", 1),
		strings.Replace(good, "lanes: true", "lanes: 3", 1),
	} {
		if wrong == good {
			t.Error("nothing was replaced")
		}
		if byCommand, bySchema := valid(t, schema, wrong); bySchema == nil || byCommand == "" {
			t.Errorf("by the schema: %v; by the command: %q:\n%s", bySchema, byCommand, wrong)
		}
	}
}
