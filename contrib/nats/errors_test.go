package nats_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
)

// The class of every error that the client or the server can answer with.
func TestClasses(t *testing.T) {
	t.Parallel()
	api := func(code int, number jetstream.ErrorCode) error {
		return &jetstream.APIError{Code: code, ErrorCode: number, Description: "as the server says"}
	}
	for name, c := range map[string]struct {
		err    error
		class  waybill.Class
		reason waybill.Reason
		fix    bool // somebody must fix it
	}{
		"disconnected":       {natsgo.ErrDisconnected, waybill.ClassOutage, "", false},
		"closed":             {natsgo.ErrConnectionClosed, waybill.ClassOutage, "", false},
		"no server":          {natsgo.ErrNoServers, waybill.ClassOutage, "", false},
		"timeout":            {natsgo.ErrTimeout, waybill.ClassOutage, "", false},
		"async timeout":      {jetstream.ErrAsyncPublishTimeout, waybill.ClassOutage, "", false},
		"stalled":            {jetstream.ErrTooManyStalledMsgs, waybill.ClassOutage, "", false},
		"cancelled":          {context.Canceled, waybill.ClassOutage, "", false},
		"no responders":      {natsgo.ErrNoResponders, waybill.ClassOutage, "", false},
		"no stream":          {jetstream.ErrNoStreamResponse, waybill.ClassOutage, "", false},
		"wrong password":     {natsgo.ErrAuthorization, waybill.ClassOutage, "", true},
		"expired":            {natsgo.ErrAuthExpired, waybill.ClassOutage, "", true},
		"forbidden":          {natsgo.ErrPermissionViolation, waybill.ClassOutage, "", true},
		"unreadable URL":     {&url.Error{Op: "parse", URL: "nats://u:secret@h", Err: errors.New("bad")}, waybill.ClassOutage, "", true},
		"max_payload":        {natsgo.ErrMaxPayload, waybill.ClassPermanent, waybill.ReasonTooLarge, false},
		"bad subject":        {natsgo.ErrBadSubject, waybill.ClassPermanent, waybill.ReasonRejected, false},
		"max_msg_size":       {api(400, jetstream.JSErrCodeStreamMessageExceedsMaximum), waybill.ClassPermanent, waybill.ReasonTooLarge, false},
		"stream full":        {api(503, 10077), waybill.ClassOutage, "", false},
		"store full":         {api(500, 10047), waybill.ClassOutage, "", false},
		"no resources":       {api(503, 10023), waybill.ClassOutage, "", false},
		"no JetStream":       {api(503, jetstream.JSErrCodeJetStreamNotEnabled), waybill.ClassOutage, "", true},
		"not for account":    {api(503, jetstream.JSErrCodeJetStreamNotEnabledForAccount), waybill.ClassOutage, "", true},
		"no leader":          {api(503, 10008), waybill.ClassOutage, "", false},
		"repeat in progress": {api(409, 10158), waybill.ClassOutage, "", false},
		"expected sequence":  {api(400, jetstream.JSErrCodeStreamWrongLastSequence), waybill.ClassRejected, waybill.ReasonRejected, false},
		"classified already": {waybill.Outage(errors.New("x")), waybill.ClassOutage, "", false},
	} {
		err := nats.Classify("test", c.err)
		if err.Class != c.class || err.Reason != c.reason || errors.Is(err, waybill.ErrMisconfigured) != c.fix {
			t.Errorf("%s: class %s, reason %q: %v", name, err.Class, err.Reason, err)
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error holds a password: %v", name, err)
		}
		if !errors.Is(err, c.err) && name != "unreadable URL" {
			t.Errorf("%s: the error does not wrap the client's: %v", name, err)
		}
	}
}

// A server that is too old for the transport is no outage, which would be waited for without end.
func TestOldServers(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]bool{"2.9.10": true, "1.4.1": true, "2.10.0": false, "2.10.0-beta.1": false, "2.15.2": false, "3.0.0": false, "": false, "dev": false} {
		if nats.TooOld(v) != want {
			t.Errorf("version %q is too old: %v", v, !want)
		}
	}
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = fmt.Fprint(c, `INFO {"version":"2.9.10","headers":true,"max_payload":1048576,"jetstream":true}`+"\r\n")
		for lines := bufio.NewScanner(c); lines.Scan(); {
			if lines.Text() == "PING" {
				_, _ = fmt.Fprint(c, "PONG\r\n")
			}
		}
	}()
	_, err = nats.Dial(t.Context(), "nats://"+ln.Addr().String(), nats.Options{})
	if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), `"2.9.10"`) {
		t.Errorf("version 2.9.10: %v", err)
	}
}

// The errors of Dial name the cause and the cure, and no password.
func TestDialFails(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) { o.Username, o.Password = "user", "right" })
	without := startServer(t, func(o *server.Options) { o.JetStream = false })
	addr := strings.TrimPrefix(s.url(), "nats://user:right@")
	addr = addr[strings.LastIndexByte(addr, '/')+1:]
	for name, c := range map[string]struct {
		url  string
		opts nats.Options
		want error
	}{
		"wrong password": {"nats://user:secret@" + addr, nats.Options{}, waybill.ErrMisconfigured},
		"unreadable URL": {"nats://user:secret@\x00", nats.Options{}, waybill.ErrMisconfigured},
		"no JetStream":   {without.url(), nats.Options{Timeout: 2e9}, nil},
		"no stream":      {"nats://user:right@" + addr, nats.Options{Passive: true}, waybill.ErrMisconfigured},
		"bad options":    {"nats://user:right@" + addr, nats.Options{Bus: "a.b", Replicas: 9, HoldFor: 1, Timeout: -1}, waybill.ErrInvalid},
	} {
		bus, err := nats.Dial(t.Context(), c.url, c.opts)
		if err == nil {
			_ = bus.Close(t.Context())
			t.Fatalf("%s: no error", name)
		}
		if c.want != nil && !errors.Is(err, c.want) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "right") {
			t.Errorf("%s: %v", name, err)
		}
		if class := waybill.ClassOf(err); !errors.Is(c.want, waybill.ErrInvalid) && class != waybill.ClassOutage {
			t.Errorf("%s: class %s: %v", name, class, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := nats.Dial(ctx, s.url(), nats.Options{}); waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("under an ended context: %v", err)
	}
}

// A message that is too large for the stream, or with its headers for the server, is refused for good; a full stream is
// an outage.
func TestStreamRefuses(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	js := client(t, s)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "small", Subjects: []string{"small.t.>", "small.q.*"}, Retention: jetstream.InterestPolicy, Discard: jetstream.DiscardNew,
		MaxMsgs: 2, MaxMsgSize: 100_000,
	}); err != nil {
		t.Fatal(err)
	}
	bus := dial(t, s.url(), nats.Options{Bus: "small"})
	subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}})
	if max := bus.Traits().MaxMessageBytes; max >= 100_000 {
		t.Errorf("MaxMessageBytes is %d", max)
	}
	many := map[string]string{}
	for i := range 64 {
		many[strings.Repeat("ß", 100)+string(rune('a'+i))] = strings.Repeat("ß\n", 100)
	}
	for i, c := range []struct {
		m      waybill.Envelope
		class  waybill.Class
		reason waybill.Reason
	}{
		{waybill.Envelope{ID: "1", Topic: "a", Body: make([]byte, 90_000)}, waybill.ClassPermanent, waybill.ReasonTooLarge},
		{waybill.Envelope{ID: "2", Topic: "a", Headers: many, Body: make([]byte, 30_000)}, waybill.ClassPermanent, waybill.ReasonTooLarge},
		{waybill.Envelope{ID: "3", Topic: "a"}, 0, ""},
		{waybill.Envelope{ID: "4", Topic: "a"}, 0, ""},
		{waybill.Envelope{ID: "5", Topic: "a"}, waybill.ClassOutage, ""},
	} {
		err := bus.Publish(t.Context(), []waybill.Envelope{c.m}).FirstErr()
		if (err == nil) != (c.class == 0) || waybill.ClassOf(err) != c.class || waybill.ReasonOf(err) != c.reason {
			t.Errorf("message %d: %v", i+1, err)
		}
	}
}
