package docs_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters"
)

// TestCLIPage checks docs/cli.md against the commands. Rewrite it with go test ./internal/tests/docs -update.
//
// OP-01
func TestCLIPage(t *testing.T) {
	t.Parallel()
	root := cli.App{Stores: adapters.Stores(), Transports: adapters.Transports()}.Command()
	root.InitDefaultCompletionCmd("completion")
	var b strings.Builder
	b.WriteString("# The waybill command\n\nGenerated from the commands by `make generate`; do not edit.\n\n" + root.Long + "\n\n" +
		"```sh\ngo install github.com/waybill-go/waybill/cmd/waybill@latest\n```\n\n## Flags of every command\n\n")
	flags(&b, root.PersistentFlags())
	for _, cmd := range root.Commands() {
		describeCommand(t, &b, cmd, 2)
	}
	page := filepath.Join("..", "..", "..", "docs", "cli.md")
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, page) != b.String() {
		t.Errorf("%s does not say what the commands say: run make generate", page)
	}
}

// describeCommand writes a command and those below it.
func describeCommand(t *testing.T, b *strings.Builder, cmd *cobra.Command, level int) {
	t.Helper()
	fmt.Fprintf(b, "\n%s %s\n\n", strings.Repeat("#", level), cmd.CommandPath())
	text := cmd.Long
	if text == "" {
		text = strings.ToUpper(cmd.Short[:1]) + cmd.Short[1:] + "."
	}
	if cmd.Name() == "completion" {
		b.WriteString("Print a script that completes commands and flags in a shell: `waybill completion bash`, `zsh`, `fish` or `powershell`.\n")
		return
	}
	b.WriteString(text + "\n")
	if cmd.Short == "" {
		t.Errorf("%s has no short description", cmd.CommandPath())
	}
	if !cmd.HasSubCommands() {
		fmt.Fprintf(b, "\n```\n%s\n```\n", cmd.UseLine())
	}
	if cmd.HasLocalFlags() {
		b.WriteString("\n")
		flags(b, cmd.LocalFlags())
	}
	for _, sub := range cmd.Commands() {
		describeCommand(t, b, sub, level+1)
	}
}

// flags writes flags as a table.
func flags(b *strings.Builder, set *pflag.FlagSet) {
	b.WriteString("| flag | default | meaning |\n|---|---|---|\n")
	set.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		def := f.DefValue
		switch def {
		case "", "[]", "false", "0s":
			def = ""
		default:
			def = "`" + def + "`"
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, def, strings.ReplaceAll(f.Usage, "|", `\|`))
	})
}

// named matches a text that tells the reader to use a command.
var named = regexp.MustCompile("(?:[Rr]un|[Ss]ee|[Uu]se) `?waybill ([a-z]+)(?: ([a-z]+))?")

// TestNamedCommandsExist: a text that names a command of waybill names one that is there, in pages and in code.
//
// OP-01
func TestNamedCommandsExist(t *testing.T) {
	t.Parallel()
	root := cli.App{}.Command()
	found := 0
	err := filepath.WalkDir(filepath.Join("..", "..", ".."), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return fs.SkipDir
		}
		if ext := filepath.Ext(path); d.IsDir() || ext != ".go" && ext != ".md" && ext != ".sql" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		for _, m := range named.FindAllStringSubmatch(read(t, path), -1) {
			found++
			cmd, rest, err := root.Find(m[1:])
			if m[1] == "help" || m[1] == "completion" || err == nil && cmd != root && (len(rest) == 0 || rest[0] == "" || !cmd.HasSubCommands()) {
				continue
			}
			t.Errorf("%s: there is no command %q", path, strings.TrimSpace(strings.Join(m[1:], " ")))
		}
		return nil
	})
	if err != nil || found < 5 {
		t.Errorf("%d commands are named: %v", found, err)
	}
}
