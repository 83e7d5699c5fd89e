package rabbitmq_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// TR-03: a channel on which the broker answers nothing any more, such as one that met a queue without a majority, is
// replaced. Its connection is not.
func TestSilentChannelIsReplaced(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	subscribe(t, dial(t, mq.URL, rabbitmq.Options{}), core.Subscription{Queue: "q", Bindings: []string{"a"}})
	line := newSilencer(t, mq.URL)
	bus := dial(t, line.url, rabbitmq.Options{PublishConnections: 1, PublishTimeout: time.Second})
	published := func(id string) {
		t.Helper()
		patience.Until(t, id+" is published", func() bool {
			return bus.Publish(t.Context(), []waybill.Envelope{envelope(id, "a")}).FirstErr() == nil
		})
	}
	published("first")
	line.silence()
	if err := bus.Publish(t.Context(), envelopes(1, "a")).FirstErr(); waybill.ClassOf(err) != waybill.ClassOutage {
		t.Fatal(err)
	}
	for i := range 3 {
		published(fmt.Sprint("later", i))
	}
	if n := line.connections(); n != 1 {
		t.Errorf("%d connections were opened", n)
	}
}

// silencer is a proxy that can drop what the broker says on single channels. It counts the broker's answers.
type silencer struct {
	url      string
	upstream string

	mu     sync.Mutex
	opened map[uint16]bool // channels
	silent map[uint16]bool
	said   int        // the answers of the broker
	conns  []net.Conn // to the broker and from the client
}

func newSilencer(tb testing.TB, raw string) *silencer {
	tb.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		tb.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &silencer{upstream: u.Host, opened: map[uint16]bool{}, silent: map[uint16]bool{}}
	u.Host = l.Addr().String()
	s.url = u.String()
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { s.serve(client) })
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		s.mu.Lock()
		for _, c := range s.conns {
			_ = c.Close()
		}
		s.mu.Unlock()
		all.Wait()
	})
	return s
}

// serve serves one connection until a side closes it.
func (s *silencer) serve(client net.Conn) {
	broker, err := net.Dial("tcp", s.upstream)
	if err != nil {
		_ = client.Close()
		return
	}
	s.mu.Lock()
	s.conns = append(s.conns, client, broker)
	s.mu.Unlock()
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(broker, client)
		_ = broker.Close()
	})
	for s.pass(client, broker) == nil {
	}
	_ = client.Close()
	_ = broker.Close()
	up.Wait()
}

// pass passes one frame to the client, unless its channel is silent.
func (s *silencer) pass(client io.Writer, broker io.Reader) error {
	var head [7]byte // type, channel and size
	if _, err := io.ReadFull(broker, head[:]); err != nil {
		return err
	}
	channel, size := binary.BigEndian.Uint16(head[1:]), binary.BigEndian.Uint32(head[3:])
	rest := make([]byte, size+1)
	if _, err := io.ReadFull(broker, rest); err != nil {
		return err
	}
	s.mu.Lock()
	if head[0] == 1 { // a method
		switch binary.BigEndian.Uint32(rest) {
		case 20<<16 | 11: // channel.open-ok
			s.opened[channel], s.silent[channel] = true, false
			s.said++
		case 60<<16 | 60, 60<<16 | 80: // basic.deliver, basic.ack: no answers
		default:
			s.said++
		}
	}
	silent := s.silent[channel]
	s.mu.Unlock()
	if silent {
		return nil
	}
	_, err := client.Write(append(head[:], rest...))
	return err
}

// silence drops what comes on the channels that were opened so far.
func (s *silencer) silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.opened {
		s.silent[c] = true
	}
}

// answered returns how many questions the broker has answered so far.
func (s *silencer) answered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said
}

func (s *silencer) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) / 2
}
