package sqs

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/waybill-go/waybill"
)

// The parts of queue names, which have at most 80 characters.
const (
	maxQueueName = 80
	maxPrefix    = 30
	maxGroup     = 128
	hashDigits   = 12
	parkedSuffix = "-dlq"
	fifoSuffix   = ".fifo"
)

// QueueName returns the name that the queue of a subscription has in SQS. A name of letters, digits, - and _ that is
// short enough stays as it is. In another one each other character is a -, and a hash of the name follows, so that no
// two names meet.
func (o Options) QueueName(queue string) string { return o.Prefix + o.stem(queue) + o.suffix() }

// ParkedName returns the name of the queue's dead-letter queue in SQS.
func (o Options) ParkedName(queue string) string {
	return o.Prefix + o.stem(queue) + parkedSuffix + o.suffix()
}

func (o Options) suffix() string {
	if o.FIFO {
		return fifoSuffix
	}
	return ""
}

func (o Options) stem(queue string) string {
	room := maxQueueName - len(o.Prefix) - len(parkedSuffix) - len(fifoSuffix)
	if plain(queue) && len(queue) <= room {
		return queue
	}
	var b strings.Builder
	for _, c := range queue {
		if b.Len() >= room-hashDigits-1 {
			break
		}
		if c > 0x7f || !plain(string(c)) {
			c = '-'
		}
		b.WriteRune(c)
	}
	return b.String() + "-" + digest(queue)[:hashDigits]
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// plain reports whether s has only characters that names of queues can have.
func plain(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return true
}

// checkQueue returns the fault of the name of a subscription's queue, or "".
func checkQueue(queue string) string {
	switch {
	case queue == "":
		return "the name of a queue is empty"
	case len(queue) > waybill.MaxNameBytes:
		return fmt.Sprintf("the name of a queue has %d bytes, more than %d", len(queue), waybill.MaxNameBytes)
	case strings.HasSuffix(queue, parkedSuffix):
		return fmt.Sprintf("queue %q: the end %s is for dead-letter queues; choose another name", queue, parkedSuffix)
	}
	return ""
}

// group returns the message group of a key. No two keys share one, and none is that of a message without a key, which
// has a group of its own.
func group(key, unique string) string {
	if key == "" {
		return "m-" + unique
	}
	if len(key)+2 <= maxGroup && !strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "k-" + key
	}
	return "h-" + digest(key)
}
