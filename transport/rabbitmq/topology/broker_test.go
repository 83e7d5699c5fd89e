package topology_test

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// The error names the fault of the options, without any part of the URL.
func TestBrokerRefuses(t *testing.T) {
	t.Parallel()
	encrypted := &tls.Config{MinVersion: tls.VersionTLS12}
	for _, c := range []struct {
		opts topology.BrokerOptions
		says string
	}{
		{topology.BrokerOptions{}, "URL: the scheme"},
		{topology.BrokerOptions{URL: "http://u:hunter2 @h"}, "URL: cannot be read"},
		{topology.BrokerOptions{URL: "ftp://u:hunter2@h"}, "URL: the scheme"},
		{topology.BrokerOptions{URL: "http://u:hunter2@/"}, "URL: names no host"},
		{topology.BrokerOptions{URL: "http://u:hunter2@h?x=1"}, "URL: has a query"},
		{topology.BrokerOptions{URL: "http://h:15672"}, "URL: names no user"},
		{topology.BrokerOptions{URL: "http://u:hunter2@h", TLS: encrypted}, "TLS: is set, but the URL says http://"},
		{topology.BrokerOptions{URL: "http://u:hunter2@h", Timeout: -time.Second}, "Timeout: -1s is negative"},
	} {
		_, err := topology.NewBroker(c.opts)
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("want %s, got %v", c.says, err)
		}
	}
}

// The user of the URL comes first, and the virtual host "/" is the default.
func TestBrokerAsks(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		asked <- user + ":" + password + " " + r.URL.EscapedPath()
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(server.Close)
	for _, c := range []struct{ url, vhost, want string }{
		{server.URL, "", "option:secret /api/exchanges/%2F/waybill"},
		{strings.Replace(server.URL, "://", "://url:own@", 1) + "/", "a/b", "url:own /api/exchanges/a%2Fb/waybill"},
	} {
		broker, err := topology.NewBroker(topology.BrokerOptions{URL: c.url, User: "option", Password: "secret", VHost: c.vhost})
		if err != nil {
			t.Fatal(err)
		}
		differences, err := broker.Compare(t.Context(), newTopology(t, topology.Options{}))
		if err != nil || len(differences) != 1 || differences[0].Have != "missing" || differences[0].Surplus {
			t.Errorf("%v, %v", differences, err)
		}
		if got := <-asked; got != c.want {
			t.Errorf("asked as %s, want %s", got, c.want)
		}
	}
}
