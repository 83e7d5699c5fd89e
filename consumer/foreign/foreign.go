// Package foreign completes messages of producers that do not use Waybill, for [waybill.Subscription].Foreign. With the
// same identity as in a moved outbox, a message that the old relay sent and Waybill sends again has one effect.
//
// # Guarantees
//
// Each function leaves a message without the headers of its system as it is, apart from the source that it names for
// messages without one.
//
// # Concurrency
//
// The functions, and the functions that they return, are safe for concurrent use.
//
// # Ownership
//
// Bodies and headers are not changed.
//
// # Limits
//
// A header that cannot be read makes the message undecodable, so that no effect happens under a wrong identity.
package foreign

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/hlc"
)

// Reader completes the envelope of a message.
type Reader = func(e *waybill.Envelope) error

// known gives a message its identity, and the type that Waybill would send: two sends of one message must not differ.
func known(e *waybill.Envelope, id, source string) {
	e.ID, e.Source, e.Type = id, cmp.Or(e.Source, source), cmp.Or(e.Type, e.Topic)
}

// TrackingIDs reads the header x-outbox-tracking-ids of kbairak/outbox, an outbox for SQLAlchemy and RabbitMQ: the last
// id of the list is the message's own, and the others are its lineage. The message-id of the broker, which is new for
// each send, is ignored. The topic of a message that the old worker retried is in the header x-original-routing-key,
// since its routing key is the name of the old queue. Source stands for the source of messages without one.
func TrackingIDs(source string) Reader {
	const header = "x-outbox-tracking-ids"
	return func(e *waybill.Envelope) error {
		text, ok := e.Headers[header]
		if !ok {
			return nil
		}
		var ids []string
		if err := json.Unmarshal([]byte(text), &ids); err != nil || len(ids) == 0 {
			return errors.New("header " + header + " is no list of ids in JSON")
		}
		e.Topic = cmp.Or(e.Headers["x-original-routing-key"], e.Topic)
		known(e, ids[len(ids)-1], source)
		e.Lineage = ids[:len(ids)-1]
		return nil
	}
}

// Forze reads the headers of forze: the event id becomes the id, the event type the topic. Key, tenant, correlation,
// causation, execution, time and HLC stamp are taken over; a key that is the event id is none. Source stands for the
// source of messages without one. The bodies of moved rows can differ from the bodies of sent messages: set
// inbox.Options.AnyBody.
func Forze(source string) Reader {
	return func(e *waybill.Envelope) error {
		id, ok := e.Headers["forze_event_id"]
		if !ok {
			return nil
		}
		e.Topic = cmp.Or(e.Type, e.Topic)
		known(e, id, source)
		for name, field := range map[string]*string{
			"forze_key": &e.Key, "forze_tenant_id": &e.Tenant, "forze_correlation_id": &e.CorrelationID,
			"forze_causation_id": &e.CausationID, "forze_execution_id": &e.RunID,
		} {
			*field = cmp.Or(*field, e.Headers[name])
		}
		if e.Key == id { // the old relay sends it as the key of a message without one
			e.Key = ""
		}
		if text := e.Headers["forze_occurred_at"]; text != "" {
			at, err := time.Parse(time.RFC3339Nano, text)
			if err != nil {
				return errors.New("header forze_occurred_at is no time of RFC 3339")
			}
			e.Time = at
		}
		if text := e.Headers["forze_hlc"]; text != "" {
			stamp, err := decimalHLC(text)
			if err != nil {
				return fmt.Errorf("header forze_hlc: %w", err)
			}
			e.HLC = stamp
		}
		return nil
	}
}

// decimalHLC reads a stamp as milliseconds, a dot, and a counter.
func decimalHLC(text string) (hlc.Timestamp, error) {
	const counterBits = 16
	ms, counter, _ := strings.Cut(text, ".")
	m, err := strconv.ParseUint(ms, 10, 63-counterBits)
	n, err2 := strconv.ParseUint(counter, 10, counterBits)
	if err = errors.Join(err, err2); err != nil {
		return 0, errors.New("is not milliseconds, a dot and a counter")
	}
	return hlc.Timestamp(m<<counterBits | n), nil
}

// Watermill reads the header _watermill_message_uuid, in which Watermill's transports send the id of a message. The
// correlation id of its middleware is taken over. Source stands for the source of messages without one.
func Watermill(source string) Reader {
	return func(e *waybill.Envelope) error {
		if id := e.Headers["_watermill_message_uuid"]; id != "" {
			known(e, id, source)
			e.CorrelationID = cmp.Or(e.CorrelationID, e.Headers["correlation_id"])
		}
		return nil
	}
}

// MessageID is for producers that set the message id of the broker, and nothing else, such as the dispatcher of
// efureev/go-outbox. Source stands for the source of messages without one.
func MessageID(source string) Reader {
	return func(e *waybill.Envelope) error {
		if e.ID != "" && e.Source == "" {
			known(e, e.ID, source)
		}
		return nil
	}
}

// IDFromHeader takes the id from the header name, for producers that put it there: Debezium's outbox event router has
// the header id, and efureev/go-outbox on Kafka has message_id. Source stands for the source of messages without one.
func IDFromHeader(name, source string) Reader {
	return func(e *waybill.Envelope) error {
		if id := e.Headers[name]; id != "" {
			known(e, id, source)
		}
		return nil
	}
}

// IDFromBody makes the id of a message without a source a hash of its topic and its body, for producers without ids:
// the same body on the same topic is one message. Source stands for their source.
func IDFromBody(source string) Reader {
	return func(e *waybill.Envelope) error {
		if e.Source != "" {
			return nil
		}
		h := sha256.New()
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(e.Topic)))) // a hash takes everything
		_, _ = h.Write([]byte(e.Topic))
		_, _ = h.Write(e.Body)
		known(e, hex.EncodeToString(h.Sum(nil)[:16]), source)
		return nil
	}
}
