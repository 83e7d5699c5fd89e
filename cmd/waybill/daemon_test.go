package main

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/internal/patience"
)

// Two relays of one store and one transport open the transport once, and each serves its routes.
func TestRelaysShareTheirEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conf := write(t, b.base()+"relays:\n  a:\n    transport: bus\n    routes: [{name: fast, weight: 2}, {name: slow, transport: bus}]\n  b: {}\n")
	stage(t, b.store, message(waybill.Routes("fast", "slow", waybill.DefaultRoute)))
	r := start(t, b.app(), "relay", "--config", conf, "--until-empty", "--for", "1h")
	r.end(t, cli.ExitOK)
	if n := b.waiting(); n != 3 || b.opened.Load() != 1 {
		t.Errorf("%d messages, the broker was opened %d times", n, b.opened.Load())
	}
}

// Records that wait at the end of the time are counted, with an exit code of its own; the due ones have gone.
func TestUntilEmptyEndsInTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conf := write(t, b.base()+"relays:\n  a: {}\n")
	stage(t, b.store, message(), message(waybill.Delay(time.Hour)))
	stage(t, b.store, message(waybill.Routes("elsewhere"))) // nobody asks for that one
	r := start(t, b.app(), "relay", "--config", conf, "--until-empty", "--for", "1h")
	patience.Until(t, "what is due has gone", func() bool { return b.waiting() == 1 })
	r.stop()
	r.end(t, cli.ExitOK)
	r = start(t, b.app(), "relay", "--config", conf, "--until-empty", "--for", "3s")
	r.end(t, cli.ExitFindings)
	says(t, r.log.String(), "error: not empty after 3s: relays.a: 1 pending on route default\n")
	if n := b.waiting(); n != 1 {
		t.Errorf("%d messages", n)
	}
	start(t, b.app(), "relay", "--config", conf, "--for", "3s").end(t, cli.ExitUsage)
}

// OP-02: a port in use is one clear error before anything runs.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	conf := write(t, b.base()+"relays:\n  a: {}\nhttp:\n  listen: "+taken.Addr().String()+"\n")
	r := start(t, b.app(), "relay", "--config", conf)
	r.end(t, cli.ExitFailed)
	if text := r.log.String(); strings.Count(text, "\n") != 1 || b.opened.Load() != 0 {
		t.Errorf("opened %d times:\n%s", b.opened.Load(), text)
	}
	says(t, r.log.String(), "error: waybill.yaml:11: http.listen: cannot listen there: ", "address already in use")
}

// A relay that is misconfigured stops the command with an error that names it; the others are stopped in order.
func TestMisconfiguredRelayStopsTheCommand(t *testing.T) {
	t.Parallel()
	b, other := newBench(t), newBench(t)
	if _, err := other.store.DB().ExecContext(t.Context(), "DROP TABLE waybill_outbox"); err != nil {
		t.Fatal(err)
	}
	conf := write(t, b.base()+"relays:\n  a: {store: shop}\n  b: {store: bad}\n")
	r := start(t, b.app(), "relay", "--config", conf, "--set", "stores.bad.kind=sqlite", "--set", "stores.bad.path="+other.path)
	r.end(t, cli.ExitFailed)
	says(t, r.log.String(), "error: waybill.yaml:10: relays.b: from stores.bad to transports.bus: ", "waybill_outbox", "event=daemon.stop")
}

// OP-03, OP-06, OP-16: health and metrics over HTTP, counters born at 0, in the names of docs/metrics.md, and without
// the messages' own names.
func TestHealthAndMetrics(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conf := write(t, b.base()+"relays:\n  a: {}\nhttp:\n  listen: 127.0.0.1:0\n")
	r := start(t, b.app(), "relay", "--config", conf)
	at := address(t, &r.log)
	patience.Until(t, "ready", func() bool { code, _ := get(t, at+"/readyz"); return code == 200 })
	_, text := get(t, at+"/metrics")
	says(t, text, `waybill_relay_published_total{route="default",transport="memory"} 0`, `service_name="waybill"`, "go_goroutines", "process_open_fds")
	stage(t, b.store, message(waybill.ID("only-in-traces")))
	patience.Until(t, "counted", func() bool {
		_, text := get(t, at+"/metrics")
		return strings.Contains(text, `waybill_relay_published_total{route="default",transport="memory"} 1`)
	})
	_, text = get(t, at+"/metrics")
	says(t, text, "waybill_relay_message_age_seconds_bucket", `le="86400"`, "waybill_relay_oldest_age_seconds")
	if strings.Contains(text, "only-in-traces") || strings.Contains(text, "otel_scope") {
		t.Errorf("labels without a bound:\n%s", text)
	}
	for path, want := range map[string]string{
		"/healthz": "ok        relay a: run: running", "/readyz": "relay a: store: ", "/livez": "live: true",
	} {
		if code, text := get(t, at+path); code != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if _, text := get(t, at+"/healthz"); true {
		says(t, text, "store shop: schema: as it must be", "store shop: backlog: nothing is due", "transport bus: check: ")
	}
	r.stop()
	r.end(t, cli.ExitOK)
	if code, _ := get(t, at+"/livez"); code != 0 {
		t.Errorf("still listens: %d", code)
	}
}

// OP-02: SIGHUP takes over the level of the log and the paused routes, names the settings that need a restart, and
// survives wrong settings. SIGTERM ends in order.
func TestSignals(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	base := strings.Replace(b.base(), "kind: memory", "kind: rabbitmq\n    url: amqp://guest:hunter2@127.0.0.1:1/", 1)
	conf := write(t, base+"relays:\n  a:\n    routes: [{}]\n")
	p := process(t, "relay", "--config", conf)
	patience.Until(t, "starting", func() bool { return strings.Contains(p.Log.String(), "event=relay.start") })
	reload := func(text, wait string) string {
		t.Helper()
		p.Log.Take()
		rewrite(t, conf, text)
		p.Signal(syscall.SIGHUP)
		all := ""
		patience.Until(t, wait, func() bool { all += p.Log.Take(); return strings.Contains(all, wait) })
		return all
	}
	text := reload(base+"relays:\n  a:\n    window: 7\n    routes: [{paused: true}]\n", "event=relay.pause route=default")
	says(t, text, "event=daemon.restart_needed settings=relays.a.window\n", "event=daemon.reload\n")
	text = reload(base+"relays:\n  a:\n    rutes: [{}]\n", "event=daemon.reload_refused")
	says(t, text, "waybill.yaml:11: relays.a.rutes: is unknown: did you mean routes?")
	text = reload(base+"relays:\n  a:\n    routes: [{}]\n", "event=relay.resume route=default")
	if strings.Contains(text, "restart_needed") {
		t.Error(text)
	}
	reload(base+"relays:\n  a:\n    routes: [{paused: true}]\n", "event=relay.pause")
	reload(base+"relays:\n  a: {}\n", "event=relay.resume route=default") // the list that paused it is gone
	reload(base+"relays:\n  a:\n    routes: [{paused: true}]\n", "event=relay.pause")
	text = reload(base+"log: {level: error}\nrelays:\n  a:\n    routes: [{paused: false}]\n", "event=daemon.reload\n")
	text += reload(base+"relays:\n  a:\n    routes: [{paused: true}]\n", "event=relay.pause")
	if strings.Contains(text, "relay.resume") {
		t.Errorf("level error was not taken over:\n%s", text)
	}
	p.Signal(syscall.SIGTERM)
	ended(t, p)
	says(t, p.Log.String(), "event=relay.stop", "event=daemon.stop")
	if strings.Contains(text+p.Log.String(), "hunter2") {
		t.Error("tells a password")
	}
}

// SIGHUP with a paused route that the relay does not serve is answered, whether the route has a name or is the default.
func TestSignalForAnotherRoute(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	base := strings.Replace(b.base(), "kind: memory", "kind: stuck", 1)
	base += "relays:\n  a:\n    routes:\n      - name: orders\n"
	conf := write(t, base)
	p := process(t, "relay", "--config", conf)
	patience.Until(t, "starting", func() bool { return strings.Contains(p.Log.String(), "event=relay.start") })
	rewrite(t, conf, base+"      - paused: true\n")
	p.Signal(syscall.SIGHUP)
	patience.Until(t, "an answer", func() bool {
		return strings.Contains(p.Log.String(), "event=daemon.restart_needed relay=a route=default error=")
	})
	p.Signal(syscall.SIGTERM)
	ended(t, p)
	if strings.Contains(p.Log.String(), "event=relay.pause") {
		t.Errorf("a route was paused:\n%s", p.Log.String())
	}
}

// While the first SIGTERM waits for confirms, the probes go on and say so. A second one ends the process at once.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	stage(t, b.store, message())
	conf := write(t, strings.Replace(b.base(), "kind: memory", "kind: stuck", 1)+"relays:\n  a: {drain_timeout: 1h, publish_timeout: 1h}\nhttp:\n  listen: 127.0.0.1:0\n")
	p := process(t, "relay", "--config", conf)
	at := address(t, &p.Log)
	patience.Until(t, "publishing", func() bool { return strings.Contains(p.Log.String(), "publishing\n") })
	p.Signal(syscall.SIGTERM)
	patience.Until(t, "stopping", func() bool {
		code, text := get(t, at+"/readyz")
		return code == 503 && strings.Contains(text, "run: stopping")
	})
	p.Signal(syscall.SIGTERM) // one is enough
	ended(t, p)
	if text := p.Log.String(); strings.Contains(text, "event=daemon.stop") {
		t.Errorf("it ended in order:\n%s", text)
	}
}
