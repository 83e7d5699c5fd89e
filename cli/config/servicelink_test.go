package config_test

import (
	"strings"
	"testing"

	"github.com/waybill-go/waybill/cli/config"
)

// OP-02: the variables that Kubernetes puts beside a Service named waybill, or waybill-relay, are no settings. Similar
// names stay mistakes, and are reported.
func TestServiceLinks(t *testing.T) {
	t.Parallel()
	load := func(environ ...string) error {
		l, err := config.Load(config.Sources{Environ: environ})
		if err == nil {
			err = l.Decode(&settings{})
		}
		return err
	}
	for _, name := range []string{"WAYBILL", "WAYBILL_RELAY", "WAYBILL_2"} {
		err := load(
			name+"_SERVICE_HOST=10.0.0.11", name+"_SERVICE_PORT=9464", name+"_SERVICE_PORT_HTTP=9464", name+"_PORT=tcp://10.0.0.11:9464",
			name+"_PORT_9464_TCP=tcp://10.0.0.11:9464", name+"_PORT_9464_TCP_PROTO=tcp", name+"_PORT_9464_TCP_PORT=9464",
			name+"_PORT_9464_TCP_ADDR=10.0.0.11", name+"_PORT_53_UDP=udp://10.0.0.11:53", name+"_PORT_53_UDP_ADDR=10.0.0.11",
		)
		if err != nil {
			t.Error(err)
		}
	}
	for _, v := range []string{"WAYBILL_PORT=8080", "WAYBILL_LISTEN_PORT=8080", "WAYBILL_THINGS__A__PORT=tcp://x", "WAYBILL_NAMES=x"} {
		name, _, _ := strings.Cut(v, "=")
		if err := load(v); err == nil || !strings.Contains(err.Error(), "environment variable "+name) {
			t.Errorf("%s: %v", v, err)
		}
	}
}
