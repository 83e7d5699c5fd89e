package cli

import (
	"bytes"
	_ "embed" // descriptions.json
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/cli/config"
)

func (c *command) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "show the settings of all sources together, without secrets", Args: cobra.NoArgs,
		Long: `config shows the settings that file, environment and flags give together. Secrets are hidden.

A setting has one name everywhere: stores.shop.source in the file is the variable WAYBILL_STORES__SHOP__SOURCE, and
--set stores.shop.source=... as a flag. A flag wins over the environment, the environment over the file. Every user of
the machine can read flags: a URL with a password belongs in the file, or in one that it names.

config schema prints a JSON Schema, with which editors complete and check the file.`,
		RunE: func(*cobra.Command, []string) error {
			conf, err := c.load()
			if err != nil {
				return err
			}
			text, err := conf.print()
			say(c.io.Out, "%s", text)
			return err
		},
	}
	cmd.AddCommand(&cobra.Command{
		Use: "schema", Short: "print a JSON Schema of the settings, for editors", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			text, err := c.app.Schema(nil)
			say(c.io.Out, "%s", text)
			return err
		},
	})
	return cmd
}

// descriptions are the doc comments of the settings of this module, by struct and field. make generate writes them.
//
//go:embed descriptions.json
var descriptions []byte

// Schema returns a JSON Schema of the settings. describe returns the text for a field that has no tag doc; owner is the
// struct's import path and name. nil stands for the doc comments of this module.
func (a App) Schema(describe func(owner, field string) string) ([]byte, error) {
	if describe == nil {
		var known map[string]string
		if err := json.Unmarshal(descriptions, &known); err != nil {
			return nil, err
		}
		describe = func(owner, field string) string { return known[owner+"."+field] }
	}
	kinds := map[string][]config.Kind{}
	for _, k := range a.Stores {
		kinds["stores"] = append(kinds["stores"], config.Kind{Name: k.name, Settings: k.settings()})
	}
	for _, k := range a.Transports {
		kinds["transports"] = append(kinds["transports"], config.Kind{Name: k.name, Settings: k.settings()})
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(config.Schema(settings{}, kinds, describe))
	return b.Bytes(), err
}

// print returns the settings as YAML, without secrets.
func (l *loaded) print() (string, error) {
	kinds := func(of map[string]config.Section, decoded map[string]any) []config.Part {
		var parts []config.Part
		for _, name := range sortedKeys(decoded) {
			parts = append(parts, config.Part{Key: name, Value: []config.Part{
				{Key: "kind", Value: of[name].Text("kind")}, {Key: "", Value: config.Inline{Value: decoded[name]}},
			}})
		}
		return parts
	}
	return config.Print(
		config.Part{Key: "log", Value: l.Log}, config.Part{Key: "http", Value: l.HTTP}, config.Part{Key: "audit", Value: l.Audit}, config.Part{Key: "dashboard", Value: l.Dashboard},
		config.Part{Key: "telemetry", Value: l.Telemetry},
		config.Part{Key: "stores", Value: kinds(l.Stores, l.stores)}, config.Part{Key: "transports", Value: kinds(l.Transports, l.transports)},
		config.Part{Key: config.PolicyKey, Value: l.RetryPolicies},
		config.Part{Key: "relays", Value: l.Relays}, config.Part{Key: "subscriptions", Value: l.Subscriptions},
	)
}
