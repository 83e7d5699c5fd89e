package redisstreams_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// valuesOf are the values of the settings of Redis that are neither numbers nor yes or no.
var valuesOf = map[string][]string{
	"maxmemory-policy":       {"noeviction"}, // TestEvictingServer has the others
	"appendfsync":            {"no", "everysec", "always"},
	"notify-keyspace-events": {"KEA"}, "client-output-buffer-limit": {"normal 1 1 1", "pubsub 1 1 1"},
	"propagation-error-behavior": {"panic-on-replicas"}, "acl-pubsub-default": {"allchannels"}, "repl-diskless-load": {"on-empty-db"},
	"sanitize-dump-payload": {"yes"}, "cluster-preferred-endpoint-type": {"hostname"}, "save": {"1 1"}, "loglevel": {"debug", "nothing"},
	"replicaof": {""}, "latency-tracking-info-percentiles": {""}, "oom-score-adj": {"no"}, "requirepass": {"x"},
}

// notSwept are settings that move the server elsewhere, stop it from being asked, or are other names of swept ones.
var notSwept = regexp.MustCompile(`^(port|tls-.*|bind.*|dir|dbfilename|maxclients|slave.*|repl-ping-slave-period|min-slaves-.*|.*ziplist.*|lua-time-limit)$`)

// named are the settings with which not all works. The error of the first call that does not has the text.
var named = map[string]string{
	"maxmemory=1":                             "maxmemory",
	"min-replicas-to-write=1":                 "min-replicas-to-write",
	"min-replicas-to-write=2147483647":        "min-replicas-to-write",
	"proto-max-bulk-len=1048576":              "proto-max-bulk-len",
	"client-query-buffer-limit=1048576":       "client-query-buffer-limit",
	"client-output-buffer-limit=normal 1 1 1": "client-output-buffer-limit",
	"maxmemory-clients=1":                     "maxmemory-clients",
	"requirepass=x":                           "password",
}

// DB-29: a server may have each setting that can be changed while it runs, at both ends of its range: every call
// works, or its error names the setting.
func TestEverySetting(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "200 settings, each with a server of its own: two minutes")
	scratch := testenv.OwnRedis(t, testenv.RedisOptions{})
	list, err := raw(t, scratch.URL()).ConfigGet(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	takes := func(name, v string) bool { return scratch.Do(t.Context(), "CONFIG", "SET", name, v) == nil }
	n := 0
	for name, now := range list {
		if notSwept.MatchString(name) {
			continue
		}
		values := valuesOf[name]
		if _, err := strconv.ParseInt(now, 10, 64); err == nil {
			for _, ends := range [][]string{{"0"}, {"1", "10", "1048576"}, {"2147483647", "10000", "100"}} {
				if i := slices.IndexFunc(ends, func(v string) bool { return takes(name, v) && takes(name, now) }); i >= 0 {
					values = append(values, ends[i])
				}
			}
		}
		switch now {
		case "yes":
			values = []string{"no"}
		case "no":
			values = []string{"yes"}
		}
		for _, v := range values {
			if v == now || len(valuesOf[name]) == 0 && (!takes(name, v) || !takes(name, now)) {
				continue
			}
			n++
			t.Run(name+"="+v, func(t *testing.T) {
				t.Parallel()
				server := testenv.OwnRedis(t, testenv.RedisOptions{})
				if err := server.Do(t.Context(), "CONFIG", "SET", name, v); err != nil {
					t.Skip(err)
				}
				err := everyCall(t, server.URL())
				switch want := named[name+"="+v]; {
				case want == "" && err != nil:
					t.Error(err)
				case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
					t.Errorf("%v, want an error with %q", err, want)
				}
			})
		}
	}
	if n < 120 {
		t.Errorf("%d values", n)
	}
}

// DB-29: a replica that takes writes loses them, and a server that does not sync while it rewrites its file breaks
// ConfirmAlways: both are refused by their settings' names.
func TestUnsafeServerIsRefused(t *testing.T) {
	t.Parallel()
	primary := testenv.OwnRedis(t, testenv.RedisOptions{})
	server := testenv.OwnRedis(t, testenv.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}})
	refused := func(opts redisstreams.Options, want string) {
		t.Helper()
		opts.Lazy = true
		err := dial(t, server.URL(), opts).Check(t.Context())
		if misconfigured := errors.Is(err, waybill.ErrMisconfigured); misconfigured != (want != "") || want != "" && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	set := func(words ...any) {
		t.Helper()
		if err := server.Do(t.Context(), words...); err != nil {
			t.Fatal(err)
		}
	}
	always := redisstreams.Options{Confirm: redisstreams.ConfirmAlways}
	refused(always, "")
	set("CONFIG", "SET", "no-appendfsync-on-rewrite", "yes")
	refused(always, `no-appendfsync-on-rewrite is "yes"`)
	refused(redisstreams.Options{}, "")
	set("REPLICAOF", "127.0.0.1", strconv.Itoa(primary.Port))
	set("CONFIG", "SET", "replica-read-only", "no")
	refused(redisstreams.Options{}, "replica-read-only no")
	set("REPLICAOF", "NO", "ONE")
	refused(redisstreams.Options{}, "")
}

// everyCall lets messages go through a bus, and returns the first error. Small ones, large ones, ordered ones, a batch
// in a transaction, retries, rejections and the acts of an operator.
func everyCall(t *testing.T, url string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(time.Minute))
	defer cancel()
	opts := prepared(redisstreams.Options{})
	bus, err := redisstreams.Dial(ctx, url, opts)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	closeLater(t, bus)
	big := envelope("big", "x")
	big.Body = bytes.Repeat([]byte("0123456789abcdef"), 80000)
	for _, inOrder := range []bool{false, true} {
		sub := core.Subscription{Queue: fmt.Sprintf("q%t", inOrder), Bindings: []string{"x"}, InOrder: inOrder}
		r, err := bus.Subscribe(ctx, sub)
		if err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
		closeLater(t, r)
		batch := append(envelopes(many, "x"), big)
		for _, list := range [][]waybill.Envelope{batch[:2], batch[2:many], batch[many:]} {
			if err := bus.Publish(ctx, list).FirstErr(); err != nil {
				return fmt.Errorf("publish %d: %w", len(list), err)
			}
		}
		var came []*waybill.Delivery
		take := func(n int) error {
			came = nil
			for len(came) < n {
				got, err := r.Receive(ctx, n-len(came))
				if err != nil {
					return fmt.Errorf("receive, %d of %d came: %w", len(came), n, err)
				}
				came = append(came, got...)
			}
			return nil
		}
		if err := take(len(batch)); err != nil {
			return err
		}
		for i, d := range came {
			if d.Envelope.ID != batch[i].ID || !bytes.Equal(d.Envelope.Body, batch[i].Body) {
				return fmt.Errorf("message %d is %s with %d bytes", i, d.Envelope.ID, len(d.Envelope.Body))
			}
		}
		acks := []core.Ack{core.AckReject(came[0], waybill.ReasonRejected, errors.New("no")), core.AckRetry(came[len(came)-1], time.Millisecond, nil)}
		for _, d := range came[1 : len(came)-1] {
			acks = append(acks, core.AckDone(d))
		}
		if err := r.Settle(ctx, acks).FirstErr(); err != nil {
			return fmt.Errorf("settle: %w", err)
		}
		if err := take(1); err != nil {
			return err
		}
		if err := r.Settle(ctx, []core.Ack{core.AckRetry(came[0], 0, nil)}).FirstErr(); err != nil {
			return fmt.Errorf("retry: %w", err)
		}
		if err := take(1); err != nil {
			return err
		}
		if came[0].Envelope.ID != "big" || !bytes.Equal(came[0].Envelope.Body, big.Body) || came[0].Attempt != 3 {
			return fmt.Errorf("%s came, attempt %d", came[0].Envelope.ID, came[0].Attempt)
		}
		if err := r.Settle(ctx, []core.Ack{core.AckReject(came[0], waybill.ReasonRejected, nil)}).FirstErr(); err != nil {
			return fmt.Errorf("reject: %w", err)
		}
		if l, err := bus.ListParked(ctx, sub.Queue, admin.ParkedFilter{}, 9); err != nil || len(l) != 2 {
			return fmt.Errorf("%d are parked: %w", len(l), err)
		}
		if n, err := bus.ReplayParked(ctx, admin.ParkedRequest{Queue: sub.Queue, All: true}); err != nil || n != 2 {
			return fmt.Errorf("%d are replayed: %w", n, err)
		}
		if err := take(2); err != nil {
			return err
		}
		if err := r.Settle(ctx, []core.Ack{core.AckDone(came[0]), core.AckDone(came[1])}).FirstErr(); err != nil {
			return fmt.Errorf("settle: %w", err)
		}
		if err := r.Close(ctx); err != nil {
			return fmt.Errorf("close: %w", err)
		}
	}
	return nil
}

// DB-29: an administrator may have renamed each command that a bus needs, or denied it to the user. The first call that
// needs the command is a misconfiguration that says so.
func TestEveryCommandIsMissed(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "30 commands, twice each")
	page, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := regexp.MustCompile(`(?m)^ACL SETUSER (?:billing|shop) .*$`).FindAllString(string(page), -1)
	commands := map[string]bool{}
	for word := range strings.FieldsSeq(strings.Join(rules, " ")) {
		if c, ok := strings.CutPrefix(word, "+"); ok {
			commands[c] = true
		}
	}
	if len(commands) < 25 {
		t.Fatalf("%d commands", len(commands))
	}
	for c := range commands {
		for _, way := range []string{"renamed", "denied"} {
			t.Run(c+" "+way, func(t *testing.T) {
				t.Parallel()
				var opts testenv.RedisOptions
				if way == "renamed" {
					opts.Config = []string{"rename-command " + c + " \"\""}
				}
				server := testenv.OwnRedis(t, opts)
				url := server.URL()
				if way == "denied" {
					if err := server.Do(t.Context(), "ACL", "SETUSER", "u", "on", ">secret", "~*", "+@all", "-"+c); err != nil {
						t.Fatal(err)
					}
					url = strings.Replace(url, "redis://", "redis://u:secret@", 1)
				}
				err := everyCall(t, url)
				if err == nil {
					t.Skip("nothing needs it")
				}
				if !errors.Is(err, waybill.ErrMisconfigured) {
					t.Error(err)
				}
				t.Log(err)
			})
		}
	}
}
