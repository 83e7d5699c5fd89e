package cli

import (
	"time"

	"github.com/spf13/cobra"
)

func (c *command) relayCommand() *cobra.Command {
	var untilEmpty, printConfig, demo bool
	var most time.Duration
	cmd := &cobra.Command{
		Use: "relay", Short: "run the relays of the configuration until a signal stops them", Args: cobra.NoArgs,
		Long: `relay runs all relays of the configuration. A database or broker that is down is waited for, also at the start. A
misconfiguration ends the command with an error.

Signals: SIGTERM and SIGINT stop it in order: it waits for the answers to its publishes, up to drain_timeout. A second one stops it at
once. SIGHUP reads the settings again: log.level, paused and the keys of a route, and the users of the dashboard change at
once; for others the log names what needs a restart. Secrets in files and certificates are read again for each new
connection, keys and passwords of users when their file changes; those of MongoDB need a restart.

http.listen serves /livez, /readyz, /healthz and /metrics.

With --until-empty it ends when no record waits on the routes that it serves, those that are scheduled included. It ends
with exit code 5 if some still wait after --for.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if demo {
				return runDemo(cmd.Context(), c.logger(), c.io.Out)
			}
			conf, err := c.load()
			if err != nil {
				return err
			}
			if printConfig {
				text, err := conf.print()
				say(c.io.Out, "%s", text)
				return err
			}
			if most != 0 && !untilEmpty {
				return withCode(ExitUsage, "--for is for --until-empty")
			}
			if len(conf.Relays) == 0 {
				return withCode(ExitUsage, "the configuration has no relay: add one to relays")
			}
			d := newDaemon(c, conf)
			d.untilEmpty, d.most = untilEmpty, most
			return d.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.BoolVar(&untilEmpty, "until-empty", false, "end when nothing waits any more")
	f.BoolVar(&demo, "demo", false, "run a shop in this process, with traffic and troubles, and the dashboard over it; needs nothing")
	f.DurationVar(&most, "for", 0, "how long --until-empty may take; 0 = as long as it takes")
	f.BoolVar(&printConfig, "print-config", false, "show the settings, without secrets, and end")
	return cmd
}
