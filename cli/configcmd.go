package cli

import (
	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/cli/config"
)

func (c *command) configCommand() *cobra.Command {
	return &cobra.Command{
		Use: "config", Short: "show the settings of all sources together, without secrets", Args: cobra.NoArgs,
		Long: `config shows the settings that file, environment and flags give together. Secrets are hidden.

A setting has one name everywhere: stores.shop.url in the file is the variable WAYBILL_STORES__SHOP__URL, and
--set stores.shop.url=... as a flag. A flag wins over the environment, the environment over the file.`,
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
		config.Part{Key: "log", Value: l.Log}, config.Part{Key: "http", Value: l.HTTP}, config.Part{Key: "telemetry", Value: l.Telemetry},
		config.Part{Key: "stores", Value: kinds(l.Stores, l.stores)}, config.Part{Key: "transports", Value: kinds(l.Transports, l.transports)},
		config.Part{Key: "relays", Value: l.Relays}, config.Part{Key: "subscriptions", Value: l.Subscriptions},
	)
}
