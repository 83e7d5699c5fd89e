package rabbitmq

import (
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// pubChannel is a channel in confirm mode. Confirms are matched by the driver's delivery tags; returns by the message's
// id as long as it is unique in flight, else by headerTag. The Go channels that the driver writes to never block it:
// there is room for a return of every message in flight.
type pubChannel struct {
	conn    *conn
	denied  *denied // of the publisher
	ch      *amqp.Channel
	sending chan struct{} // capacity 1: held while sending
	table   amqp.Table    // reused for every message; guarded by sending
	tag     uint64        // of the last message sent; guarded by sending

	limit    int           // Options.Window: messages in flight, at most
	freed    chan struct{} // capacity 1: the window has room again
	windowMu sync.Mutex    // guards inFlight
	inFlight int           // sent, or about to be sent, and not confirmed; of all calls

	users   int  // calls that use it; guarded by publisher.mu
	retired bool // it closes with the last of them; guarded by publisher.mu

	returns chan amqp.Return
	mu      sync.Mutex
	// tags of the messages in flight, by id; a message whose id is in flight already has headerTag instead
	ids      map[string]uint64
	returned map[uint64]returnInfo // returned, and not yet confirmed
	closed   chan *amqp.Error
	cause    *amqp.Error // guarded by mu
	known    bool        // cause is final; guarded by mu
}

type returnInfo struct {
	code          uint16
	text          string
	exchange, key string
}

// acquire takes up to want places in the window and returns how many it got.
func (pc *pubChannel) acquire(want int) int {
	pc.windowMu.Lock()
	defer pc.windowMu.Unlock()
	n := min(want, pc.limit-pc.inFlight)
	pc.inFlight += n
	if pc.inFlight < pc.limit { // room for another call
		pc.notify()
	}
	return n
}

func (pc *pubChannel) release(n int) {
	pc.windowMu.Lock()
	pc.inFlight -= n
	pc.windowMu.Unlock()
	pc.notify()
}

func (pc *pubChannel) notify() {
	select {
	case pc.freed <- struct{}{}:
	default:
	}
}

// register notes the id of a message that is about to be sent, so that a return finds its tag. It reports whether it
// did: not without an id, or if another message with this id is in flight.
func (pc *pubChannel) register(id string, tag uint64) bool {
	if id == "" {
		return false
	}
	pc.mu.Lock()
	defer pc.mu.Unlock()
	if _, taken := pc.ids[id]; taken {
		return false
	}
	pc.ids[id] = tag
	return true
}

// takeReturn ends the flight of f, which was confirmed, and reports whether it was returned. The driver hands over a
// return before the confirm of its message, so that the return is here once the confirm was seen.
func (pc *pubChannel) takeReturn(f *inFlight) (returnInfo, bool) {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	for len(pc.returns) > 0 {
		r, ok := <-pc.returns
		if !ok {
			break
		}
		tag := uint64(number(r.Headers[headerTag]))
		if tag == 0 {
			tag = pc.ids[r.MessageId]
		}
		pc.returned[tag] = returnInfo{r.ReplyCode, r.ReplyText, r.Exchange, r.RoutingKey}
	}
	if f.id != "" {
		delete(pc.ids, f.id)
	}
	info, ok := pc.returned[f.tag]
	if ok {
		delete(pc.returned, f.tag)
	}
	return info, ok
}

// closeCause returns why the channel closed. It may be called only once the channel is known to be closed.
func (pc *pubChannel) closeCause() *amqp.Error {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	if !pc.known {
		pc.cause = <-pc.closed // sent or closed by the driver at its shutdown
		pc.known = true
		if pc.cause == nil {
			pc.cause = amqp.ErrClosed
		}
	}
	return pc.cause
}
