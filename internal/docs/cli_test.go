package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters"
)

// TestCLIPage checks docs/cli.md against the commands. Rewrite it with go test ./internal/docs -update.
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
	page := filepath.Join("..", "..", "docs", "cli.md")
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
