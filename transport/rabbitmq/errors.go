package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/transport/rabbitmq/internal/tlserr"
)

// errLost is the cause of an outage when the connection ended before the broker answered.
var errLost = errors.New("the connection was lost before the broker answered; the result is unknown")

// errReopening is the cause of an outage while the broker has not answered yet.
var errReopening = errors.New("the connection to the broker, or its channel, was lost, and the broker has not answered since")

// errCancelled and errHeldLong say why the broker ended a consumer.
var (
	errCancelled = errors.New("basic.cancel: its queue was deleted or lost its leader, or a handler held a message longer than the broker's consumer_timeout")
	errHeldLong  = errors.New("a handler held a message longer than the broker's consumer_timeout: make handlers faster, or raise it")
)

func outage(op string, err error) *waybill.Error {
	return &waybill.Error{Op: "waybill/rabbitmq: " + op, Class: waybill.ClassOutage, Err: err}
}

func permanent(op string, reason waybill.Reason, err error) *waybill.Error {
	return &waybill.Error{Op: "waybill/rabbitmq: " + op, Class: waybill.ClassPermanent, Reason: reason, Err: err}
}

// misconfigured is an error about the broker or the options, not about a message. An engine that has worked before
// takes it for an outage; on first contact it ends Run.
func misconfigured(op, format string, args ...any) *waybill.Error {
	return outage(op, fmt.Errorf("%w: "+format, append([]any{waybill.ErrMisconfigured}, args...)...))
}

// amqpError returns the broker's or the driver's error in err's chain, or nil.
func amqpError(err error) *amqp.Error {
	e, _ := errors.AsType[*amqp.Error](err)
	return e
}

// closedByMessage reports whether the broker closed a channel or a connection because of one of the messages in flight.
// A shutdown (320), a lack of resources (506) and an internal error (541) say nothing about a message.
func closedByMessage(e *amqp.Error) bool {
	if e == nil || !e.Server || limitError("", e) != nil {
		return false
	}
	switch e.Code {
	case amqp.ContentTooLarge, amqp.NoConsumers, amqp.AccessRefused, amqp.NotFound, amqp.PreconditionFailed, amqp.FrameError,
		amqp.SyntaxError, amqp.CommandInvalid, amqp.UnexpectedFrame, amqp.NotAllowed, amqp.NotImplemented:
		return true
	}
	return false
}

// messageError returns the error of a message that, sent alone, made the broker close the channel or the connection
// with e.
func messageError(e *amqp.Error, exchange, key string) *waybill.Error {
	const op = "publish"
	reason := strings.ToLower(e.Reason)
	switch e.Code {
	case amqp.NotFound:
		return misconfigured(op, "exchange %q does not exist: declare it, or permit the user to configure it (%w)", exchange, e)
	case amqp.AccessRefused:
		if strings.Contains(reason, "to topic") || strings.Contains(reason, "topic '") {
			return permanent(op, waybill.ReasonForbidden, fmt.Errorf("the user may not publish topic %q to exchange %q: "+
				"extend its topic permissions (%w)", clip(key), exchange, e))
		}
		return misconfigured(op, "the user may not write to exchange %q: extend its write permission (%w)", exchange, e)
	case amqp.ContentTooLarge:
		return tooLarge(key, e)
	case amqp.PreconditionFailed:
		if strings.Contains(reason, "larger than") || strings.Contains(reason, "max size") {
			return tooLarge(key, e)
		}
	}
	return &waybill.Error{Op: "waybill/rabbitmq: " + op, Class: waybill.ClassRejected, Reason: waybill.ReasonRejected, Err: e}
}

func tooLarge(topic string, e *amqp.Error) *waybill.Error {
	return permanent("publish", waybill.ReasonTooLarge, fmt.Errorf("topic %q: %w: raise the broker's max_message_size, "+
		"or lower Options.MaxBodyBytes, and store the content elsewhere", clip(topic), e))
}

// limitError returns the error of a limit of the virtual host, the user or the node that is reached, or nil. Others may
// free what it counts, so that it is no misconfiguration.
func limitError(op string, e *amqp.Error) *waybill.Error {
	if !strings.Contains(e.Reason, "limit") || !strings.Contains(e.Reason, "reached") {
		return nil
	}
	return outage(op, fmt.Errorf("a limit on connections, channels or queues is reached: raise it (rabbitmqctl set_vhost_limits, set_user_limits), "+
		"or close and delete what nobody uses (%w)", e))
}

// channelError is the error of a channel that cannot be opened.
func channelError(err error) *waybill.Error {
	const op = "open channel"
	e := amqpError(err)
	if e == nil {
		return outage(op, err)
	}
	if full := limitError(op, e); full != nil {
		return full
	}
	if e.Code == amqp.ErrChannelMax.Code {
		return outage(op, fmt.Errorf("the connection has as many channels as the broker allows: set its channel_max to the default, 2047 (%w)", err))
	}
	return outage(op, err)
}

// dialError classifies a failed attempt to connect.
func dialError(err error) *waybill.Error {
	const op = "connect"
	if ce, ok := errors.AsType[*waybill.Error](err); ok {
		return ce
	}
	if e := amqpError(err); e != nil {
		if full := limitError(op, e); full != nil {
			return full
		}
		switch e.Code {
		case amqp.AccessRefused:
			return misconfigured(op, "the broker refused the user or its password: check both, "+
				"and that the user may connect from here (%w)", e)
		case amqp.NotAllowed, amqp.NotFound:
			return misconfigured(op, "the virtual host does not exist, or the user has no permission on it: "+
				"create it, or permit the user (%w)", e)
		}
		return outage(op, e)
	}
	if tlserr.Expired(err) {
		return misconfigured(op, "TLS: %w: renew the broker's certificate, or correct the clock of this machine", err)
	}
	if tlserr.Is(err) {
		return misconfigured(op, "TLS: %w: check the authorities, the server name and the client certificate (tls in the settings of the command, "+
			"Options.Connection.TLS in a program)", err)
	}
	return outage(op, fmt.Errorf("%w: check host and port, and that the broker runs; the URL must look like %s", err, exampleURL))
}

// declareError classifies the failure of a declare or a bind.
func declareError(object string, err error) *waybill.Error {
	const op = "declare"
	e := amqpError(err)
	if e == nil || !e.Server {
		return outage(op, fmt.Errorf("%s: %w", object, err))
	}
	if full := limitError(op, e); full != nil {
		return full
	}
	switch e.Code {
	case amqp.PreconditionFailed, amqp.NotAllowed:
		return misconfigured(op, "%s exists with other properties: change the options to match, "+
			"or delete it when it is empty and start again (%w)", object, e)
	case amqp.AccessRefused:
		return misconfigured(op, "%s does not exist or may not be changed by this user: create it, "+
			"or permit the user to configure it, or set Options.Passive if it is there (%w)", object, e)
	case amqp.NotFound:
		return misconfigured(op, "%s cannot be made: an object that it refers to does not exist (%w)", object, e)
	case amqp.ResourceLocked:
		return misconfigured(op, "%s is exclusive to another connection: delete it or choose another name (%w)", object, e)
	}
	return outage(op, fmt.Errorf("%s: %w", object, e))
}

// await runs fn, which blocks without a context, until it returns or ctx ends. In the second case late, if not nil,
// runs after fn returned.
func await(ctx context.Context, fn func() error, late func()) error {
	done, gone := make(chan error), make(chan struct{})
	go func() {
		err := fn()
		select {
		case done <- err:
		case <-gone:
			if late != nil {
				late()
			}
		}
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		close(gone)
		return context.Cause(ctx)
	}
}

// errBehind is the error of a message behind a failed one of its key, with Options.PipelineKeys.
var errBehind = outage("publish", waybill.ErrPredecessorFailed)

// errNacked is the cause of an outage of one topic: a queue refused a message, since it is full or has no leader.
var errNacked = errors.New("a queue refused the message (basic.nack): it is full, or its leader is not available")
