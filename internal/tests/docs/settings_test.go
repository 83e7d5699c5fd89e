package docs_test

// A reader copies the name of a setting from a page, and an operator from an error text. So each name is looked up in
// the schema of the settings here.

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/waybill-go/waybill/cli"
)

var (
	number     = regexp.MustCompile(`^[0-9]+$`)
	identifier = regexp.MustCompile(`\.[A-Z]\w*[a-z]`) // of Go
)

// settings is the schema of the configuration.
type settings map[string]any

// all returns the alternatives that a part of the schema stands for.
func (s settings) all(part any) (out []map[string]any) {
	node, ok := part.(map[string]any)
	if !ok {
		return nil
	}
	out = append(out, node)
	if ref, ok := node["$ref"].(string); ok {
		defs, _ := s["$defs"].(map[string]any)
		out = append(out, s.all(defs[strings.TrimPrefix(ref, "#/$defs/")])...)
	}
	for _, word := range []string{"anyOf", "oneOf", "allOf"} {
		list, _ := node[word].([]any)
		for _, one := range list {
			out = append(out, s.all(one)...)
		}
	}
	out = append(out, s.all(node["then"])...) // the settings of a kind
	return append(out, s.all(node["items"])...)
}

// has reports whether there is a setting of that name, such as stores.NAME.url.
func (s settings) has(path string) bool {
	at := s.all(map[string]any(s))
	for word := range strings.SplitSeq(path, ".") {
		if number.MatchString(word) {
			continue // of an item
		}
		var next []map[string]any
		for _, node := range at {
			properties, _ := node["properties"].(map[string]any)
			if one, ok := properties[word]; ok {
				next = append(next, s.all(one)...)
				continue
			}
			next = append(next, s.all(node["additionalProperties"])...) // a name of the operator's
		}
		if at = next; len(at) == 0 {
			return false
		}
	}
	return true
}

// named matches the name of a setting below a word of the first level.
func (s settings) named() *regexp.Regexp {
	properties, _ := s["properties"].(map[string]any)
	var first []string
	for word := range properties {
		first = append(first, word)
	}
	slices.Sort(first)
	return regexp.MustCompile(`(?:^|[^a-zA-Z0-9_./"-])((?:` + strings.Join(first, "|") + `)(?:\.[a-zA-Z0-9_-]+)+)(?:[^a-zA-Z0-9_./(]|\.?$|\. )`)
}

// OP-02, OP-23: the settings have each full name, such as stores.NAME.url, in a page, a deployment, an error or a help
// text, and the program takes the value that is given to one.
func TestNamedSettingsExist(t *testing.T) {
	t.Parallel()
	var schema settings
	if err := json.Unmarshal([]byte(read(t, schemaFile)), &schema); err != nil {
		t.Fatal(err)
	}
	found, named := map[string]int{}, schema.named()
	check := func(path, where, text string) {
		t.Helper()
		for _, m := range named.FindAllStringSubmatchIndex(text, -1) {
			name := text[m[2]:m[3]]
			if identifier.MatchString(name) {
				continue
			}
			found[where]++
			if !schema.has(name) {
				t.Errorf("%s: there is no setting %s", path, name)
			}
			if value, ok := strings.CutPrefix(text[m[3]:], "="); ok {
				found["values"]++
				if why := notTaken(t, name, firstWord(value)); why != "" {
					t.Errorf("%s: --set %s=...: %s", path, name, why)
				}
			}
		}
	}
	for _, path := range append(pages(t), filepath.Join("..", "..", "..", "README.md")) {
		if filepath.Base(path) == "metrics.md" {
			continue // of events and metrics: TestMetricsNamesEverything
		}
		text := read(t, path)
		for _, block := range fenced.FindAllStringSubmatch(text, -1) {
			if block[1] == "sh" {
				check(path, "pages", block[2])
			}
		}
		for _, m := range inline.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			check(path, "pages", m[1])
		}
	}
	err := filepath.WalkDir(deploy, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) != ".json" {
			check(path, "deployments", read(t, path))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	walk(t, func(path string) {
		dir, _, _ := strings.Cut(strings.TrimPrefix(filepath.ToSlash(path), "../../../"), "/")
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || slices.Contains([]string{"examples", "internal"}, dir) {
			return
		}
		for _, text := range literals(t, path) {
			// else it may name an event
			if strings.ContainsAny(text, " =") {
				check(path, "texts", text)
			}
		}
	})
	if found["pages"] < 10 || found["texts"] < 20 || found["values"] < 3 {
		t.Errorf("only %v names", found)
	}
}

// literals returns the texts of a Go file.
func literals(t *testing.T, path string) (texts []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, _ := strconv.Unquote(lit.Value)
			texts = append(texts, text)
		}
		return true
	})
	return texts
}

// firstWord returns the word at the beginning of text, without the punctuation behind it.
func firstWord(text string) string {
	end := strings.IndexAny(text+" ", " \t\n")
	return strings.TrimRight(text[:end], "`'\",;)")
}

// notTaken returns the program's complaint about --set path=value; "" if it takes that. A value that is left out stands
// for an address.
func notTaken(t *testing.T, path, value string) string {
	t.Helper()
	if strings.Trim(value, ".…") == "" {
		value = "x://u:p@h:1/d"
	}
	words := strings.Split(path, ".")
	args := []string{"config", "--config", os.DevNull}
	if kind := map[string]string{"stores": "postgres", "transports": "rabbitmq"}[words[0]]; len(words) == 3 && kind != "" {
		words[1] = strings.ToLower(words[1]) // NAME
		switch words[2] {
		case "kind":
			kind = value
		case "path":
			kind = "sqlite"
		}
		where := map[string]string{"memory": "", "sqlite": "path"}
		address, embedded := where[kind]
		if !embedded {
			address = "url"
		}
		args = append(args, "--set", words[0]+"."+words[1]+".kind="+kind)
		if address != "" && words[2] != address {
			args = append(args, "--set", words[0]+"."+words[1]+"."+address+"=x://u:p@h:1/d")
		}
	}
	var problems strings.Builder
	args = append(args, "--set", strings.Join(words, ".")+"="+value)
	if code := shippedApp().Run(t.Context(), args, cli.IO{Out: new(strings.Builder), Err: &problems}); code != cli.ExitOK {
		return problems.String()
	}
	return ""
}

// otherNames are those with an underscore that are no settings of Waybill.
var otherNames = strings.Fields(`
	ce_topic ce_type data_base64 message_id correlation_id last_error maybe_sent tracking_ids
	waybill_meta waybill_outbox_audit waybill_outbox_wake
	id_conflict no_handler no_id too_large set_aside no_relay body_before body_after at_once
	frame_max channel_max client_encoding set_policy rabbitmq_consistent_hash_exchange
	hot_standby_feedback idle_in_transaction_session_timeout max_connections superuser_reserved_connections
	pool_max_conns target_session_attrs wait_timeout
	forze_event_id inbox_route retry_policy shop_relay pass_user_headers pass_basic_auth`)

var bareName = regexp.MustCompile(`(?:^|[^a-zA-Z0-9_.$"{%/-])([a-z]+(?:_[a-z0-9]+)+)(?:[^a-zA-Z0-9_.("/]|[.]?$|[.] )`)

// OP-23: a name alone, such as management_url, in a page or in a text of the command is that of a setting, or no
// setting at all.
func TestBareNamesExist(t *testing.T) {
	t.Parallel()
	var schema settings
	if err := json.Unmarshal([]byte(read(t, schemaFile)), &schema); err != nil {
		t.Fatal(err)
	}
	names := schema.names(map[string]any(schema))
	found := map[string]int{}
	check := func(path, where, text string) {
		t.Helper()
		for _, m := range bareName.FindAllStringSubmatch(text, -1) {
			switch {
			case names[m[1]] != nil:
				found[where]++
			case slices.Contains(otherNames, m[1]), strings.HasPrefix(m[1], "waybill_relay_"), strings.HasPrefix(m[1], "messaging_"):
				// TestMetricsNamesEverything has those of metrics.
			default:
				t.Errorf("%s: there is no setting %s; if it is none put it into otherNames", path, m[1])
			}
		}
	}
	for _, path := range append(pages(t), filepath.Join(root, "README.md")) {
		if dir := filepath.ToSlash(filepath.Dir(path)); dir != root && dir != root+"/docs" || slices.Contains([]string{"metrics.md", "CHANGELOG.md"}, filepath.Base(path)) {
			continue
		}
		for _, m := range inline.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, path), ""), -1) {
			if !strings.ContainsAny(m[1], " (") || strings.Contains(m[1], ": ") { // no SQL, and no Go
				check(path, "pages", m[1])
			}
			if name, value, ok := strings.Cut(m[1], ": "); ok && names[name] != nil {
				found["values"]++
				if !schema.takes(t, names[name], value) {
					t.Errorf("%s: no setting takes %s", path, m[1])
				}
			}
		}
	}
	walk(t, func(path string) {
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || !strings.HasPrefix(filepath.ToSlash(path), root+"/cli/") {
			return
		}
		for _, text := range literals(t, path) {
			if strings.Contains(text, " ") {
				check(path, "texts", text)
			}
		}
	})
	if found["pages"] < 8 || found["texts"] < 4 || found["values"] < 2 {
		t.Errorf("only %v names of settings", found)
	}
}

// names returns what a part of the schema says of each setting, by the last word of its name.
func (s settings) names(part any) map[string][]any {
	out := map[string][]any{}
	add := func(more map[string][]any) {
		for name, list := range more {
			out[name] = append(out[name], list...)
		}
	}
	switch part := part.(type) {
	case map[string]any:
		for word, one := range part {
			if properties, ok := one.(map[string]any); ok && word == "properties" {
				for name, setting := range properties {
					out[name] = append(out[name], setting)
				}
			}
			add(s.names(one))
		}
	case []any:
		for _, one := range part {
			add(s.names(one))
		}
	}
	return out
}

// takes reports whether one of those settings takes a value of YAML.
func (s settings) takes(t *testing.T, list []any, text string) bool {
	t.Helper()
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("settings.json", map[string]any{"$defs": s["$defs"], "anyOf": list}); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile("settings.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled.Validate(value) == nil
}

// OP-23: a variable of the environment that a page, a deployment or a text names has the name of a setting.
func TestNamedVariablesExist(t *testing.T) {
	t.Parallel()
	var schema settings
	if err := json.Unmarshal([]byte(read(t, schemaFile)), &schema); err != nil {
		t.Fatal(err)
	}
	variable := regexp.MustCompile(`WAYBILL_[A-Z0-9_]+`)
	// The command reads the first. Kubernetes makes the next two, of a Service named waybill. Tests read the last.
	others := []string{"WAYBILL_CONFIG", "WAYBILL_PORT", "WAYBILL_SERVICE_HOST", "WAYBILL_SEED"}
	found := 0
	walk(t, func(path string) {
		name := filepath.ToSlash(strings.TrimPrefix(path, root))
		inDeploy := strings.HasPrefix(name, "/deploy/")
		text := filepath.Ext(path) == ".go" && strings.HasPrefix(name, "/cli/") && !strings.HasSuffix(path, "_test.go")
		if !inDeploy && !text && filepath.Ext(path) != ".md" {
			return
		}
		for _, v := range variable.FindAllString(read(t, path), -1) {
			setting := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(v, "WAYBILL_"), "__", "."))
			found++
			if !strings.HasPrefix(v, "WAYBILL_TEST_") && !slices.Contains(others, v) && !schema.has(setting) {
				t.Errorf("%s: there is no setting %s for %s", path, setting, v)
			}
		}
	})
	if found < 5 {
		t.Errorf("only %d variables", found)
	}
}
