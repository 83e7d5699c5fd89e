package adapters

import (
	"context"
	"crypto/tls"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// sinkMessages is how many messages the sink of a bench keeps.
const sinkMessages = 1000

// rabbitSink makes an exclusive queue for a topic, which drops its oldest messages. It goes with its connection.
func rabbitSink(url string, tls *tls.Config, opts topology.Options) func(context.Context, string) (func(context.Context) error, error) {
	return func(_ context.Context, topic string) (func(context.Context) error, error) {
		conn, err := connect(url, tls)
		if err != nil {
			return nil, sinkError(err)
		}
		ch, err := conn.Channel()
		if err == nil {
			var q amqp.Queue
			q, err = ch.QueueDeclare("", false, true, true, false, amqp.Table{"x-max-length": sinkMessages})
			if err == nil {
				err = ch.QueueBind(q.Name, topic, opts.Names().Exchange(), false, nil)
			}
		}
		if err != nil {
			_ = conn.Close()
			return nil, sinkError(err)
		}
		return func(context.Context) error { return conn.Close() }, nil
	}
}

// rabbitDrop deletes the queues of a subscription. Its exchanges stay.
func rabbitDrop(url string, tls *tls.Config, opts topology.Options) func(context.Context, core.Subscription) error {
	return func(_ context.Context, sub core.Subscription) error {
		conn, err := connect(url, tls)
		if err != nil {
			return sinkError(err)
		}
		defer conn.Close() //nolint:errcheck // done with it
		if opts.SharedDelays {
			sub.RetryDelays = nil // other subscriptions use them, too
		}
		ch, err := conn.Channel()
		for _, q := range topology.Of(opts, sub).Queues {
			if err == nil {
				_, err = ch.QueueDelete(q.Name, false, false, false)
			}
		}
		if err != nil {
			return sinkError(err)
		}
		return nil
	}
}

func connect(url string, tls *tls.Config) (*amqp.Connection, error) {
	return amqp.DialConfig(url, amqp.Config{TLSClientConfig: tls, Dial: amqp.DefaultDial(10 * time.Second), Heartbeat: 10 * time.Second})
}

// sinkError does not hold the URL.
func sinkError(err error) error {
	if e, ok := errors.AsType[*amqp.Error](err); ok {
		err = e
	} else {
		err = errors.New("cannot connect")
	}
	return &waybill.Error{Op: "waybill: the queue of bench", Class: waybill.ClassOutage, Err: err}
}
