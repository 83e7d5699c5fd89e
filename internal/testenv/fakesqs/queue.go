package fakesqs

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
)

// Attribute is an attribute of a message.
type Attribute struct {
	DataType    string
	StringValue *string `json:",omitempty"`
	BinaryValue []byte  `json:",omitempty"`
}

// Message is a message as it lies in a queue.
type Message struct {
	ID, Body, Group, Dedup string
	Attributes             map[string]Attribute
	Receives               int
	// Hidden is the visibility timeout that the latest receive or change of it asked for.
	Hidden time.Duration

	sent     time.Time
	visible  time.Time // it is hidden until then
	inFlight bool      // since it was received, not since it was sent with a delay
	since    time.Time // when it was received
	receipt  string
}

type queue struct {
	name       string
	attributes map[string]string
	messages   []*Message
	seen       map[string]sighting // deduplication id, with its group → when
}

type sighting struct {
	at time.Time
	id string
}

// described returns the attributes, with the numbers of messages.
func (q *queue) described(now time.Time) map[string]string {
	visible, out, later := 0, 0, 0
	for _, m := range q.messages {
		switch {
		case !now.Before(m.visible):
			visible++
		case m.inFlight:
			out++
		default:
			later++
		}
	}
	all := maps.Clone(q.attributes)
	all["ApproximateNumberOfMessages"] = strconv.Itoa(visible)
	all["ApproximateNumberOfMessagesNotVisible"] = strconv.Itoa(out)
	all["ApproximateNumberOfMessagesDelayed"] = strconv.Itoa(later)
	return all
}

func (q *queue) fifo() bool { return strings.HasSuffix(q.name, ".fifo") }

// Described returns the attributes of a queue, which must exist, with its numbers of messages.
func (s *Server) Described(queue string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queues[queue].described(s.now())
}

// Messages returns the messages of a queue, oldest first, without changing them.
func (s *Server) Messages(queue string) []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Message
	if q := s.queues[queue]; q != nil {
		for _, m := range q.messages {
			out = append(out, *m)
		}
	}
	return out
}

// dedupWindow is how long a deduplication id is remembered.
const dedupWindow = 5 * time.Minute

// add puts a message into q, unless its deduplication id was seen.
func (s *Server) add(q *queue, m *Message, delay time.Duration) (id string) {
	now := s.now()
	s.serial++
	m.ID = fmt.Sprintf("%08d-fake", s.serial)
	if q.fifo() && m.Dedup != "" {
		key := m.Group + "\x00" + m.Dedup
		if old, ok := q.seen[key]; ok && now.Sub(old.at) < dedupWindow {
			return old.id
		}
		q.seen[key] = sighting{now, m.ID}
	}
	m.sent, m.visible = now, now.Add(delay)
	q.messages = append(q.messages, m)
	s.wake()
	return m.ID
}

// take makes up to limit messages invisible for d, and moves those that were received too often. next is when the next
// one becomes visible.
func (s *Server) take(q *queue, limit int, d time.Duration) (got []*Message, next time.Time) {
	now := s.now()
	locked := map[string]bool{}
	for _, m := range q.messages {
		if now.Before(m.visible) {
			if next.IsZero() || m.visible.Before(next) {
				next = m.visible
			}
			locked[m.Group] = true
		} else if m.inFlight {
			m.inFlight = false
		}
	}
	target, most := s.redrive(q)
	left := q.messages[:0]
	for _, m := range q.messages {
		switch {
		case len(got) == limit || now.Before(m.visible) || q.fifo() && locked[m.Group]:
			left = append(left, m)
		case target != nil && m.Receives >= most:
			m.visible, m.Receives = now, 0
			target.messages = append(target.messages, m)
		default:
			m.Receives++
			s.serial++
			m.receipt = fmt.Sprintf("%s/%d", m.ID, s.serial)
			m.visible, m.since, m.inFlight, m.Hidden = now.Add(d), now, true, d
			got = append(got, m)
			left = append(left, m)
		}
	}
	clear(q.messages[len(left):])
	q.messages = left
	return got, next
}

func (s *Server) redrive(q *queue) (target *queue, most int) {
	var p struct {
		Target string          `json:"deadLetterTargetArn"`
		Most   json.RawMessage `json:"maxReceiveCount"`
	}
	if json.Unmarshal([]byte(q.attributes["RedrivePolicy"]), &p) != nil {
		return nil, 0
	}
	most, _ = strconv.Atoi(strings.Trim(string(p.Most), `"`))
	return s.queues[p.Target[strings.LastIndexByte(p.Target, ':')+1:]], most
}

// find returns the message of a receipt handle; nil if it is deleted.
func (q *queue) find(receipt string) (*Message, *Error) {
	id, _, ok := strings.Cut(receipt, "/")
	if !ok || !strings.HasSuffix(id, "-fake") {
		return nil, fail("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
	}
	for _, m := range q.messages {
		if m.ID == id {
			return m, nil
		}
	}
	return nil, nil
}

// remove deletes a message. In a standard queue an old handle is a success that deletes nothing.
func (s *Server) remove(q *queue, receipt string) *Error {
	m, e := q.find(receipt)
	if e != nil || m == nil {
		return e
	}
	if m.receipt != receipt || q.fifo() && !s.now().Before(m.visible) {
		if q.fifo() {
			return fail("InvalidParameterValue", "Value %s for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.", receipt)
		}
		return nil
	}
	for i := range q.messages {
		if q.messages[i] == m {
			q.messages = append(q.messages[:i], q.messages[i+1:]...)
			break
		}
	}
	s.wake() // its group is free
	return nil
}

const maxVisibility = 12 * time.Hour

// hide sets the visibility timeout of a message.
func (s *Server) hide(q *queue, receipt string, d time.Duration) *Error {
	m, e := q.find(receipt)
	if e != nil {
		return e
	}
	now := s.now()
	switch {
	case m == nil || m.receipt != receipt || !m.inFlight || !now.Before(m.visible):
		if q.fifo() {
			return fail("InvalidParameterValue", "Value %s for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.", receipt)
		}
		return fail("MessageNotInflight", "The message referred to is not in flight.")
	case now.Add(d).Sub(m.since) > maxVisibility:
		return fail("InvalidParameterValue", "Value %d for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds].", int(d.Seconds()))
	}
	m.visible, m.Hidden = now.Add(d), d
	if d == 0 {
		m.inFlight = false
	}
	s.wake()
	return nil
}
