package adapters

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// RabbitMQ are the settings of the kind rabbitmq, beside rabbitmq.Options.
type RabbitMQ struct {
	// URL is the address, with user and password.
	URL cli.Secret
	TLS cli.TLS
	// ManagementURL is the address of the management API, see rabbitmq.Options; it can hold a password.
	ManagementURL cli.Secret
	rabbitmq.Options
}

func openRabbitMQ(ctx context.Context, s *RabbitMQ, env cli.Env) (*cli.Transport, error) {
	const example = "amqp://user:password@host:5672/vhost" //nolint:gosec // an example, no credentials
	text, err := secret(s.URL, "URL", example)
	if err != nil {
		return nil, err
	}
	opts := s.Options
	if opts.Connection.TLS, err = s.TLS.Config(); err != nil {
		return nil, invalid("%s", err)
	}
	if !s.ManagementURL.IsZero() {
		if opts.ManagementURL, err = secret(s.ManagementURL, "ManagementURL", "http://user:password@host:15672"); err != nil {
			return nil, err
		}
	}
	opts.Lazy, opts.Logger = true, env.Logger
	bus, err := rabbitmq.Dial(ctx, text, opts)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	uri, err := amqp.ParseURI(text)
	if err != nil {
		return nil, invalid("URL: is no address; it must look like %s", example)
	}
	manage := &rabbitTopology{bus: bus, opts: opts.TopologyOptions(), vhost: uri.Vhost}
	if opts.ManagementURL != "" {
		manage.broker, err = topology.NewBroker(topology.BrokerOptions{
			URL: opts.ManagementURL, User: uri.Username, Password: uri.Password, VHost: uri.Vhost, TLS: managementTLS(opts),
		})
		if err != nil {
			return nil, err
		}
	}
	return &cli.Transport{
		Publisher: bus, Topology: manage, Close: bus.Close,
		Sink: rabbitSink(text, opts.Connection.TLS, manage.opts), Drop: rabbitDrop(text, opts.Connection.TLS, manage.opts),
	}, nil
}

// managementTLS is the TLS of the management API, if it is encrypted.
func managementTLS(opts rabbitmq.Options) *tls.Config {
	if strings.HasPrefix(opts.ManagementURL, "https:") {
		return opts.Connection.TLS
	}
	return nil
}
