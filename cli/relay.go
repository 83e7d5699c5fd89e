package cli

import (
	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
)

func (c *command) relayCommand() *cobra.Command {
	return &cobra.Command{
		Use: "relay", Short: "run the relays of the configuration until a signal stops them", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conf, err := c.load()
			if err != nil {
				return err
			}
			if len(conf.Relays) == 0 {
				return withCode(ExitUsage, "the configuration has no relay: add one to relays")
			}
			var runners []waybill.Runner
			env := c.quiet()
			env.Logger = c.logger()
			for _, name := range sortedKeys(conf.Relays) {
				r := conf.Relays[name]
				store, err := c.openStore(cmd.Context(), r.Store, env)
				if err != nil {
					return err
				}
				opts := r.options()
				var main core.Publisher
				for i := range r.Routes {
					transport, err := c.openTransport(cmd.Context(), r.Routes[i].Transport, env)
					if err != nil {
						return err
					}
					opts.Routes[i].Publisher = transport.Publisher
				}
				if len(r.Routes) == 0 {
					transport, err := c.openTransport(cmd.Context(), r.Transport, env)
					if err != nil {
						return err
					}
					main = transport.Publisher
				}
				opts.Logger, opts.MeterProvider, opts.TracerProvider = env.Logger, env.MeterProvider, env.TracerProvider
				running, err := relay.New(store.Outbox, main, opts)
				if err != nil {
					return conf.opening("relays."+name, err)
				}
				runners = append(runners, running)
			}
			return waybill.Run(cmd.Context(), runners...)
		},
	}
}
