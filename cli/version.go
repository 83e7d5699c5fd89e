package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (c *command) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "show the version and the adapters of this program", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			out := struct {
				Version    string   `json:"version"`
				Go         string   `json:"go"`
				Stores     []string `json:"stores"`
				Transports []string `json:"transports"`
			}{c.app.version(), runtime.Version(), names(c.app.Stores, func(k StoreKind) string { return k.name }), names(c.app.Transports, func(k TransportKind) string { return k.name })}
			if c.json {
				return c.writeJSON(out)
			}
			say(c.io.Out, "waybill %s, %s\nstores: %v\ntransports: %v\n", out.Version, out.Go, out.Stores, out.Transports)
			return nil
		},
	}
}

func (a *App) version() string {
	if a.Version != "" {
		return a.Version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
