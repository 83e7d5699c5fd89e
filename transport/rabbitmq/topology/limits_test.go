package topology_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// RM-07: a queue whose policy the broker does not tell may have a length limit. RabbitMQ 3.10 does not tell that of a
// new queue for some seconds, nor any without statistics.
func TestLimitsWithoutStatistics(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answers []string // one after the other, the last for ever
		found   string
		refused error
	}{
		{answers: []string{`{"name":"q","effective_policy_definition":{}}`}},
		{answers: []string{`{"name":"q","effective_policy_definition":""}`}},
		{answers: []string{`{"name":"q","effective_policy_definition":null}`}},
		{answers: []string{`{"name":"q","type":"stream"}`}},
		{answers: []string{`{"name":"q"}`, `{"name":"q","effective_policy_definition":[]}`}},
		{answers: []string{`{"name":"q"}`, `{"name":"q","policy":"cap","effective_policy_definition":{"max-length":5}}`}, found: `queue "q" max-length by policy "cap"`},
		{answers: []string{`{"name":"q"}`}, refused: topology.ErrPolicyUnknown},
	} {
		asked := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := "{}"
			switch path := strings.TrimPrefix(r.URL.EscapedPath(), "/api"); path {
			case "/exchanges/%2F/waybill/bindings/source":
				answer = `[{"destination":"q","destination_type":"queue"}]`
			case "/queues/%2F/q":
				answer = c.answers[min(asked, len(c.answers)-1)]
				asked++
			}
			_, _ = io.WriteString(w, answer)
		}))
		t.Cleanup(server.Close)
		b, err := topology.NewBroker(topology.BrokerOptions{URL: server.URL, User: "u", Password: "p"})
		if err != nil {
			t.Fatal(err)
		}
		wait := time.Hour
		if c.refused != nil {
			wait = 0
		}
		found, err := topology.LimitsWithin(b, t.Context(), newTopology(t, topology.Options{}), wait)
		if c.refused != nil && waybill.ClassOf(err) != waybill.ClassOutage {
			t.Errorf("%v: %v", c.answers, err)
		}
		if !errors.Is(err, c.refused) || len(found) > 1 || (len(found) == 1) != (c.found != "") || len(found) == 1 && found[0].Object != c.found {
			t.Errorf("%v: %v, %v", c.answers, found, err)
		}
	}
}

// The end of the caller's context is no missing policy: its error names the end.
func TestLimitsOfAnEndedContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.EscapedPath(); {
		case strings.HasSuffix(path, "/bindings/source"):
			_, _ = io.WriteString(w, `[{"destination":"q","destination_type":"queue"}]`)
		case strings.HasSuffix(path, "/q"):
			cancel()
			<-r.Context().Done()
		default:
			_, _ = io.WriteString(w, "{}")
		}
	}))
	t.Cleanup(server.Close)
	b, err := topology.NewBroker(topology.BrokerOptions{URL: server.URL, User: "u", Password: "p"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Limits(ctx, newTopology(t, topology.Options{}))
	if !errors.Is(err, context.Canceled) || errors.Is(err, topology.ErrPolicyUnknown) {
		t.Errorf("%v", err)
	}
}
