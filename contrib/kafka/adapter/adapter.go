// Package adapter has the kind kafka of transports, for the waybill command and for programs like it. The command in
// cmd/waybill has it beside Postgres and SQLite.
//
// # Guarantees
//
//   - Opening waits for two seconds at most: brokers that are down are an outage later, as any other.
//   - A password that names a file is read again for each new connection, so that a rotated one works.
//
// # Concurrency
//
// Transport is safe for concurrent use.
//
// # Ownership
//
// The kind belongs to the caller.
//
// # Limits
//
// waybill bench cannot publish to Kafka: the log would keep its messages.
package adapter

import (
	"context"
	"crypto/tls"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/core"
)

// Kafka are the settings of the kind kafka, beside kafka.Options.
type Kafka struct {
	// Brokers are some of the brokers, as host:port with commas between them.
	Brokers string
	// Encrypt connects by TLS, also without settings in TLS: then with the system's authorities.
	Encrypt bool
	TLS     cli.TLS
	// User and Password are for SASL; empty = none.
	User     string
	Password cli.Secret
	// Mechanism of SASL: scram-sha-512, scram-sha-256 or plain, which needs TLS; default scram-sha-512.
	Mechanism string
	kafka.Options
}

// Transport returns the kind kafka.
func Transport() cli.TransportKind { return cli.NewTransportKind("kafka", open) }

func open(ctx context.Context, s *Kafka, env cli.Env) (*cli.Transport, error) {
	if s.Brokers == "" {
		return nil, invalid("Brokers: is missing; name some as host:9092,host:9092")
	}
	conf, err := s.TLS.Config()
	if err != nil {
		return nil, invalid(err.Error())
	}
	if conf == nil && s.Encrypt {
		conf = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	opts := s.Options
	if conf != nil {
		opts.Client = append(opts.Client, kgo.DialTLSConfig(conf))
	}
	if s.User != "" {
		mechanism, err := s.sasl(conf != nil)
		if err != nil {
			return nil, err
		}
		opts.Client = append(opts.Client, kgo.SASL(mechanism))
	}
	opts.Lazy, opts.Passive = true, opts.Passive || env.Passive
	bus, err := kafka.Dial(ctx, s.Brokers, opts)
	if err != nil {
		return nil, err
	}
	return &cli.Transport{Publisher: bus, Topology: &topology{bus, s.Options}, Drop: drop(bus), Close: bus.Close}, nil
}

func invalid(text string) error { return waybill.Invalid("waybill: settings", text) }

func (s *Kafka) sasl(encrypted bool) (sasl.Mechanism, error) {
	if _, err := s.Password.Required("Password", "the password of the user"); err != nil {
		return nil, err
	}
	user := func(context.Context) (scram.Auth, error) { // a password that was rotated
		password, err := s.Password.Required("Password", "the password of the user")
		return scram.Auth{User: s.User, Pass: password}, err
	}
	switch strings.ToLower(s.Mechanism) {
	case "", "scram-sha-512":
		return scram.Sha512(user), nil
	case "scram-sha-256":
		return scram.Sha256(user), nil
	case "plain":
		if !encrypted {
			return nil, invalid("Mechanism: plain shows the password to the network; set Encrypt or TLS, or choose scram-sha-512")
		}
		return plain.Plain(func(ctx context.Context) (plain.Auth, error) {
			a, err := user(ctx)
			return plain.Auth{User: a.User, Pass: a.Pass}, err
		}), nil
	}
	return nil, invalid("Mechanism: is none of scram-sha-512, scram-sha-256 and plain; choose one")
}

// drop deletes a queue with all that is in it.
func drop(bus *kafka.Transport) func(context.Context, core.Subscription) error {
	return func(ctx context.Context, sub core.Subscription) error {
		if _, err := bus.PurgeParked(ctx, admin.ParkedRequest{Queue: sub.Queue, All: true}); err != nil {
			return err
		}
		return bus.DeleteQueue(ctx, sub.Queue)
	}
}

// topology is that of a bus.
type topology struct {
	bus  *kafka.Transport
	opts kafka.Options
}

func (t *topology) Print(subs []core.Subscription) (string, error) {
	all, err := kafka.NewTopology(t.opts, kafka.Users{}, subs...)
	return all.Text(), err
}

func (t *topology) Formats() []string { return []string{"commands", "json", "terraform"} }

func (t *topology) Export(subs []core.Subscription, format string, users cli.BrokerUsers) (string, error) {
	all, err := kafka.NewTopology(t.opts, kafka.Users(users), subs...)
	switch {
	case err != nil:
		return "", err
	case format == "terraform":
		return all.Terraform()
	case format == "json":
		return all.JSON(), nil
	}
	return all.Commands(), nil
}

func (t *topology) Declare(ctx context.Context, subs []core.Subscription) error {
	return t.bus.Declare(ctx, subs...)
}

func (t *topology) Verify(ctx context.Context, subs []core.Subscription) ([]admin.Difference, error) {
	return t.bus.Compare(ctx, subs...)
}

func (t *topology) Unused(ctx context.Context, subs []core.Subscription) ([]string, error) {
	return t.bus.Unused(ctx, subs...)
}

func (t *topology) Delete(ctx context.Context, _ []core.Subscription, queue string) error {
	return t.bus.DeleteQueue(ctx, queue)
}
