package rabbitmq

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// reportEnd logs why the broker ended the consumer. The link reports the end of the whole connection.
func (r *receiver) reportEnd(s *session, c *conn) {
	var err error
	select {
	case <-s.cancelled:
		err = errCancelled
	case e := <-s.closed:
		if e == nil || c.IsClosed() {
			return
		}
		err = e
		if e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "timed out") {
			err = fmt.Errorf("%w: %w", errHeldLong, e)
		}
	default:
		return // this program ended it
	}
	r.log.Event(r.life, slog.LevelWarn, "rabbitmq.consumer_lost", "the broker ended the consumer; opening it again",
		slog.String("queue", r.queue), slog.Any("error", err))
}

// warnHeld says that deliveries are held for so long that the broker will take them back.
func (r *receiver) warnHeld(s *session) {
	limit := r.t.opts.ConsumerTimeout
	if limit < 0 {
		return
	}
	n, oldest := s.acks.heldFor(limit / 2)
	if n == 0 {
		return
	}
	r.log.Event(r.life, slog.LevelWarn, "rabbitmq.held_long", "messages are held for more than half of the broker's consumer_timeout: after it "+
		"the broker delivers them again", slog.String("queue", r.queue), slog.Int("messages", n),
		slog.Duration("oldest", time.Since(oldest).Round(time.Millisecond)), slog.Duration("consumer_timeout", limit))
}
