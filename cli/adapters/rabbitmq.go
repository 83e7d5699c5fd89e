package adapters

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/url"
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
	text, err := s.URL.Required("URL", example)
	if err != nil {
		return nil, err
	}
	opts := s.Options
	if opts.Connection.TLS, err = s.TLS.Config(); err != nil {
		return nil, invalid("%s", err)
	}
	var address string
	address, opts.Connection.Credentials = rotating(s.URL, text, "url")
	if !s.ManagementURL.IsZero() {
		management, err := s.ManagementURL.Required("ManagementURL", "http://user:password@host:15672")
		if err != nil {
			return nil, err
		}
		opts.ManagementURL, opts.ManagementCredentials = rotating(s.ManagementURL, management, "management_url")
	}
	opts.Lazy, opts.Logger, opts.Passive = true, env.Logger, opts.Passive || env.Passive
	bus, err := rabbitmq.Dial(ctx, address, opts)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	uri, err := amqp.ParseURI(text)
	if err != nil {
		return nil, invalid("URL: is no address; it must look like %s", example)
	}
	manage := &rabbitTopology{bus: bus, opts: opts.TopologyOptions(), vhost: uri.Vhost}
	if opts.ManagementURL != "" {
		ask := opts.Connection.Credentials
		if opts.ManagementCredentials != nil {
			ask = opts.ManagementCredentials
		}
		broker := topology.BrokerOptions{
			URL: opts.ManagementURL, User: uri.Username, Password: uri.Password, VHost: uri.Vhost, TLS: managementTLS(opts),
		}
		if ask != nil {
			broker.Credentials = func(ctx context.Context) (user, password string, err error) {
				c, err := ask(ctx)
				return c.User, c.Password, err
			}
		}
		manage.broker, err = topology.NewBroker(broker)
		if err != nil {
			return nil, err
		}
	}
	return &cli.Transport{
		Publisher: bus, Topology: manage, Close: bus.Close,
		Sink: rabbitSink(text, opts.Connection.TLS, manage.opts), Drop: rabbitDrop(text, opts.Connection.TLS, manage.opts),
	}, nil
}

// rotating takes user and password out of a URL, and returns a function that reads them again for each connection, so
// that a rotated password works at the next one. A URL that names no user stays as it is. An unreadable URL stays, too:
// its user reports the fault.
func rotating(s cli.Secret, text, key string) (address string, credentials func(context.Context) (rabbitmq.Credentials, error)) {
	u, err := url.Parse(text)
	if err != nil || u.User == nil || u.Query().Has("auth_mechanism") {
		return text, nil
	}
	u.User = nil
	return u.String(), func(context.Context) (rabbitmq.Credentials, error) {
		text, err := s.Value()
		if err != nil {
			return rabbitmq.Credentials{}, fmt.Errorf("%s: %w", key, err)
		}
		fresh, err := url.Parse(text)
		if err != nil || fresh.User == nil {
			return rabbitmq.Credentials{}, fmt.Errorf("%s: is no address with a user any more", key)
		}
		password, _ := fresh.User.Password()
		return rabbitmq.Credentials{User: fresh.User.Username(), Password: password}, nil
	}
}

// managementTLS is the TLS of the management API, if it is encrypted.
func managementTLS(opts rabbitmq.Options) *tls.Config {
	if strings.HasPrefix(opts.ManagementURL, "https:") {
		return opts.Connection.TLS
	}
	return nil
}
