package docs_test

// An operator types the command lines of pages, deployments and error texts. So the program itself reads each of those
// lines here.

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/cli"
)

// refused returns why the command does not take the arguments, which stand in a page: "" if it does. It runs nothing.
func refused(args []string) string {
	root := cli.App{}.Command()
	root.InitDefaultCompletionCmd("completion")
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err.Error()
	}
	cmd.InitDefaultHelpFlag()
	flags := cmd.Flags()
	flags.AddFlagSet(root.PersistentFlags())
	for i, a := range rest { // --to N
		if name, ok := strings.CutPrefix(a, "--"); ok && i+1 < len(rest) && placeholder.MatchString(rest[i+1]) {
			if f := flags.Lookup(name); f != nil && f.Value.Type() != "string" && f.Value.Type() != "bool" {
				rest[i+1] = map[string]string{"duration": "1s"}[f.Value.Type()]
				if rest[i+1] == "" {
					rest[i+1] = "1"
				}
			}
		}
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err.Error()
	}
	if len(rest) == 0 && cmd != root {
		return "" // the name of a command
	}
	if err := cmd.ValidateArgs(flags.Args()); err != nil {
		return err.Error()
	}
	return ""
}

var (
	placeholder = regexp.MustCompile(`^[A-Z][A-Z_]*$`)
	assignment  = regexp.MustCompile(`^[A-Z_]+=`)
	fenced      = regexp.MustCompile("(?s)```([a-z]*)\n(.*?)```")
	inline      = regexp.MustCompile("`([^`]+)`")
	execStart   = regexp.MustCompile(`(?m)^Exec\w+=\S*/waybill (.*)$`)
	argumentSet = regexp.MustCompile(`(?m)(?:command:|args:|CMD) \[([^\]]*)\]`)
)

// arguments returns those of waybill in a line of a shell; nil if the line runs something else.
func arguments(line string) []string {
	args := words(line)
	for len(args) > 0 && (assignment.MatchString(args[0]) || args[0] == "$") {
		args = args[1:]
	}
	if len(args) > 2 && args[0] == "go" && args[1] == "run" {
		args = args[2:]
	}
	if len(args) > 0 && (args[0] == "waybill" || strings.HasSuffix(args[0], "/waybill") || strings.HasPrefix(args[0], "github.com/waybill-go/waybill/cmd/waybill")) {
		return args[1:]
	}
	return nil
}

// words splits a line as a shell does, up to where another command or a comment begins.
func words(line string) (out []string) {
	word, quote, begun := "", rune(0), false
	end := func() {
		if begun {
			out = append(out, word)
		}
		word, begun = "", false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == ' ':
			end()
		case strings.ContainsRune("|;<>&", r), r == '#' && !begun:
			end()
			return out
		default:
			word, begun = word+string(r), true
		}
	}
	end()
	return out
}

// OP-01, OP-23: the program takes each command line of README, docs and deploy.
func TestCommandLinesOfPages(t *testing.T) {
	t.Parallel()
	found, known := 0, commands()
	check := func(path string, args []string) {
		t.Helper()
		found++
		if why := refused(slices.Clone(args)); why != "" {
			t.Errorf("%s: waybill %s: %s", path, strings.Join(args, " "), why)
		}
	}
	for _, path := range append(pages(t), filepath.Join("..", "..", "..", "README.md")) {
		if filepath.Base(path) == "cli.md" {
			continue // generated
		}
		text := read(t, path)
		for _, block := range fenced.FindAllStringSubmatch(text, -1) {
			for line := range strings.Lines(strings.ReplaceAll(block[2], "\\\n", " ")) {
				args := arguments(strings.TrimSpace(line))
				if block[1] == "sh" && args != nil || len(args) > 0 && known[args[0]] {
					check(path, args)
				}
			}
		}
		for _, m := range inline.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			if args := arguments(strings.Join(strings.Fields(m[1]), " ")); len(args) > 0 && known[args[0]] {
				check(path, args)
			}
		}
	}
	err := filepath.WalkDir(deploy, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text := read(t, path)
		for _, m := range execStart.FindAllStringSubmatch(text, -1) {
			check(path, words(m[1]))
		}
		for _, m := range argumentSet.FindAllStringSubmatch(text, -1) {
			args := strings.FieldsFunc(m[1], func(r rune) bool { return strings.ContainsRune(`, "'`, r) })
			if len(args) > 0 && known[args[0]] {
				check(path, args)
			}
		}
		return nil
	})
	if err != nil || found < 60 {
		t.Errorf("%d command lines: %v", found, err)
	}
}

// commands are the names of the commands below waybill.
func commands() map[string]bool {
	known := map[string]bool{}
	for _, c := range (cli.App{}).Command().Commands() {
		known[c.Name()] = true
	}
	return known
}

// mention matches a command line in a sentence.
var mention = regexp.MustCompile(`\bwaybill ([a-z]+(?: [^ ]+)*)`)

// OP-01, OP-23: the program takes each command line in an error text, a log line or a help text.
func TestCommandLinesOfErrorTexts(t *testing.T) {
	t.Parallel()
	found := 0
	walk(t, func(path string) {
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, text := range literals(t, path) {
			for _, m := range mention.FindAllStringSubmatch(strings.Join(strings.Fields(text), " "), -1) {
				args := sentence(m[1])
				if len(args) == 0 {
					continue // prose
				}
				found++
				if why := refused(slices.Clone(args)); why != "" {
					t.Errorf("%s: waybill %s: %s", path, strings.Join(args, " "), why)
				}
			}
		}
	})
	if found < 10 {
		t.Errorf("only %d command lines", found)
	}
}

// sentence returns the words of a sentence that belong to a command line: commands, flags with their values, and
// placeholders.
func sentence(text string) (args []string) {
	cmd := cli.App{}.Command()
	for w := range strings.FieldsSeq(text) {
		bare := strings.Trim(w, "`'\",.;:()[]?!")
		sub := (*cobra.Command)(nil)
		for _, c := range cmd.Commands() {
			if c.Name() == bare {
				sub = c
			}
		}
		switch {
		case sub != nil:
			cmd = sub
		case len(args) > 0 && (strings.HasPrefix(bare, "--") || placeholder.MatchString(bare)):
		default:
			return args
		}
		if args = append(args, bare); bare != w {
			return args // the sentence goes on
		}
	}
	return args
}

// OP-02, OP-23: the program takes each configuration in README and docs. TestDeployments has those of deploy.
func TestConfigurationsOfPages(t *testing.T) {
	t.Parallel()
	found := 0
	for _, path := range append(pages(t), filepath.Join("..", "..", "..", "README.md")) {
		for i, block := range fenced.FindAllStringSubmatch(read(t, path), -1) {
			if block[1] != "yaml" && block[1] != "yml" {
				continue
			}
			if strings.Contains(block[2], "kind: kafka") {
				continue // TestCommand of contrib/kafka/adapter has it
			}
			found++
			if why := wrong(t, block[2]); why != "" {
				t.Errorf("%s: configuration %d: %s", path, i, why)
			}
		}
	}
	if found < 4 {
		t.Errorf("only %d configurations", found)
	}
}

var secretFile = regexp.MustCompile(`\{file: [^}]*\}`)

// wrong returns the program's complaint about settings, which may be a part of a file.
func wrong(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "waybill.yaml")
	if err := os.WriteFile(file, []byte(secretFile.ReplaceAllString(text, "x://u:p@h:1/d")), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"config", "--config", file}
	for name, kind := range map[string]string{"stores.shop": "postgres", "transports.bus": "rabbitmq"} {
		if part, _, _ := strings.Cut(name, "."); !strings.Contains(text, part+":") || !strings.Contains(text, "kind: "+kind) {
			args = append(args, "--set", name+".kind="+kind, "--set", name+".url=x://u:p@h:1/d")
		}
	}
	var out, problems strings.Builder
	if code := shippedApp().Run(t.Context(), args, cli.IO{Out: &out, Err: &problems}); code != cli.ExitOK {
		return fmt.Sprint(code, problems.String())
	}
	return ""
}
