package topology_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// management answers as RabbitMQ does with one unused queue "old". later is what the queue holds after it was unbound,
// and rest the bindings of its dead-letter exchange then.
func management(t *testing.T, now, later, rest string) (*topology.Broker, func() []string) {
	t.Helper()
	var changes []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.EscapedPath(), "/api")
		if r.Method != http.MethodGet {
			body, _ := io.ReadAll(r.Body)
			if r.URL.RawQuery != "" {
				path += "?" + r.URL.RawQuery
			}
			changes = append(changes, fmt.Sprint(r.Method, " ", path, " ", string(body)))
			w.WriteHeader(map[string]int{http.MethodPost: http.StatusCreated, http.MethodDelete: http.StatusNoContent}[r.Method])
			return
		}
		answer := map[string]string{
			"/bindings/%2F": `[{"source":"waybill.dlx.old","destination":"old","destination_type":"queue"},` +
				`{"source":"waybill.dlx","destination":"older","destination_type":"queue"},` +
				`{"source":"waybill.dlx.q","destination":"q","destination_type":"queue"},` +
				`{"source":"waybill","destination":"foreign","destination_type":"queue"},` +
				`{"source":"waybill.dlxs.q","destination":"foreign","destination_type":"queue"}]`,
			"/exchanges/%2F/waybill.dlx.old/bindings/source": rest,
			"/queues/%2F": `[{"name":"old"},{"name":"older"},{"name":"q"},{"name":"foreign"},{"name":"waybill.delay_5s"},{"name":"waybill.delay_soon"}]`,
			"/queues/%2F/old/bindings": `[{"source":"","routing_key":"old","properties_key":"old"},` +
				`{"source":"waybill","routing_key":"a.#","properties_key":"a.%23","arguments":{}},` +
				`{"source":"waybill.dlx.old","routing_key":"old.return","properties_key":"old.return","arguments":{}}]`,
			"/queues/%2F/old": now,
		}[path]
		if path == "/queues/%2F/old" && len(changes) > 0 {
			answer = later
		}
		if answer == "" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	b, err := topology.NewBroker(topology.BrokerOptions{URL: server.URL, User: "u", Password: "p"})
	if err != nil {
		t.Fatal(err)
	}
	return b, func() []string { return changes }
}

// RM-09: queues of the exchange that no subscription has are found, and no others.
func TestUnusedQueues(t *testing.T) {
	t.Parallel()
	b, _ := management(t, "", "", "")
	want := newTopology(t, topology.Options{}, core.Subscription{Queue: "q"})
	if got, err := b.UnusedQueues(t.Context(), want); err != nil || fmt.Sprint(got) != "[old older waybill.delay_5s]" {
		t.Error(got, err)
	}
	for _, name := range []string{"q", "foreign", "nobody"} {
		if err := topology.DeleteUnusedQueueAfter(b, t.Context(), want, name, 0); !errors.Is(err, waybill.ErrMisconfigured) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// RM-09, RM-12: an unused queue is deleted only if it is empty and has no consumer, also after it was unbound;
// otherwise its bindings are there afterwards.
func TestDeleteUnusedQueue(t *testing.T) {
	t.Parallel()
	const (
		empty  = `{"messages":0,"consumers":0}`
		unbind = "DELETE /bindings/%2F/e/waybill/q/old/a.%2523 \nDELETE /bindings/%2F/e/waybill.dlx.old/q/old/old.return "
		bind   = `POST /bindings/%2F/e/waybill/q/old {"arguments":{},"routing_key":"a.#"}` + "\n" +
			`POST /bindings/%2F/e/waybill.dlx.old/q/old {"arguments":{},"routing_key":"old.return"}`
		del  = "DELETE /queues/%2F/old "
		last = "\nDELETE /exchanges/%2F/waybill.dlx.old?if-unused=true "
		dlq  = `[{"source":"waybill.dlx.old","destination":"old.dlq","destination_type":"queue"}]`
	)
	for _, c := range []struct {
		now, later, rest, want string
		refused                error
	}{
		{empty, empty, `[]`, unbind + "\n" + del + last, nil},
		{empty, empty, dlq, unbind + "\n" + del, nil},
		{empty, empty, "", unbind + "\n" + del, nil}, // somebody else has deleted the exchange
		{`{"messages":1,"consumers":0}`, empty, "", "", waybill.ErrInFlight},
		{`{"messages":0,"consumers":1}`, empty, "", "", waybill.ErrInFlight},
		{empty, `{"messages":1,"consumers":0}`, "", unbind + "\n" + bind, waybill.ErrInFlight},
		{empty, `{"messages":0,"consumers":2}`, "", unbind + "\n" + bind, waybill.ErrInFlight},
		{`{"name":"old"}`, empty, "", "", waybill.ErrMisconfigured}, // the broker keeps no statistics
		{`{"messages":0}`, empty, "", "", waybill.ErrMisconfigured},
		{empty, `{"consumers":0}`, "", unbind + "\n" + bind, waybill.ErrMisconfigured},
	} {
		b, changes := management(t, c.now, c.later, c.rest)
		err := topology.DeleteUnusedQueueAfter(b, t.Context(), newTopology(t, topology.Options{}), "old", 0)
		if got := strings.Join(changes(), "\n"); got != c.want || !errors.Is(err, c.refused) {
			t.Errorf("%s, then %s: %v\n%s", c.now, c.later, err, got)
		}
	}
}

// RM-09, RM-12: an unused delay queue is not deleted if the broker keeps no statistics, which is why it tells of no
// messages.
func TestDeleteUnusedDelayWithoutStatistics(t *testing.T) {
	t.Parallel()
	for answer, deleted := range map[string]bool{`{"name":"old.delay_5s"}`: false, `{"messages":0}`: true} {
		var deletes []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch path := strings.TrimPrefix(r.URL.EscapedPath(), "/api"); {
			case r.Method == http.MethodDelete:
				deletes = append(deletes, path)
				w.WriteHeader(http.StatusNoContent)
			case path == "/queues/%2F":
				_, _ = io.WriteString(w, "["+strings.Replace(answer, "{", `{"name":"old.delay_5s",`, 1)+"]")
			default:
				_, _ = io.WriteString(w, answer)
			}
		}))
		t.Cleanup(server.Close)
		b, err := topology.NewBroker(topology.BrokerOptions{URL: server.URL, User: "u", Password: "p"})
		if err != nil {
			t.Fatal(err)
		}
		want := newTopology(t, topology.Options{}, core.Subscription{Queue: "old"})
		unused, err := b.UnusedDelays(t.Context(), want)
		if err != nil || len(unused) != 1 || unused[0].Messages != map[bool]int{false: -1}[deleted] {
			t.Errorf("%s: %+v, %v", answer, unused, err)
		}
		err = topology.DeleteUnusedDelayAfter(b, t.Context(), want, "old.delay_5s", 0)
		if deleted == errors.Is(err, waybill.ErrMisconfigured) || deleted && err != nil || strings.Contains(strings.Join(deletes, " "), "/queues/") != deleted {
			t.Errorf("%s: %v, deleted %v", answer, err, deletes)
		}
	}
}
