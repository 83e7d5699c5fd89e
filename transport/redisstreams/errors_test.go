package redisstreams_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// answer is an error as the server sends it.
type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

// TR-08: every error has a class, says what to do, and leads to the driver's. No message is at fault.
func TestErrorTable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		fix  bool // it matches ErrMisconfigured
		cure string
	}{
		{answer("NOGROUP No such consumer group 'waybill' for key name 'x'"), true, "deleted"},
		{answer("WRONGTYPE Operation against a key holding the wrong kind of value"), true, "another Options.Bus"},
		{answer("CROSSSLOT Keys in request don't hash to the same slot"), true, "rewrite"},
		{answer("MOVED 3999 127.0.0.1:6381"), true, "cluster client"},
		{answer("ASK 3999 127.0.0.1:6381"), false, "moving"},
		{answer("TRYAGAIN Multiple keys request during rehashing of slot"), false, "moving"},
		{answer("CLUSTERDOWN The cluster is down"), false, "CLUSTER INFO"},
		{answer("MASTERDOWN Link with MASTER is down"), false, "primary"},
		{answer("LOADING Redis is loading the dataset in memory"), false, "loading"},
		{answer("BUSY Redis is busy running a script."), false, "script"},
		{answer("OOM command not allowed when used memory > 'maxmemory'."), false, "maxmemory"},
		{answer("MISCONF Redis is configured to save RDB snapshots"), false, "disk"},
		{answer("READONLY You can't write against a read only replica."), false, "primary"},
		{answer("NOREPLICAS Not enough good replicas to write."), false, "min-replicas-to-write"},
		{answer("NOAUTH Authentication required."), true, "password"},
		{answer("WRONGPASS invalid username-password pair or user is disabled."), true, "password"},
		{answer("NOPERM User x has no permissions to run the 'xadd' command"), true, "docs/redis.md"},
		{answer("ERR The user executing the script can't run this command or subcommand script: 1, on @user_script:3."), true, "docs/redis.md"},
		{answer("ERR ACL failure in script: User x has no permissions to run the 'xadd' command"), true, "docs/redis.md"},
		{answer("ERR unknown command 'XAUTOCLAIM'"), true, "7.0"},
		{answer("ERR Unknown Redis command called from script script: 1, on @user_script:19."), true, "renamed"},
		{answer("EXECABORT Transaction discarded because of: NOPERM this user has no permissions to run the 'exec' command"), true, "docs/redis.md"},
		{answer("ERR Protocol error: invalid bulk length"), true, "Options.MaxMessageBytes"},
		{&net.OpError{Op: "write", Err: syscall.ECONNRESET}, false, "maxmemory-clients"},
		{answer("ERR max number of clients reached"), false, "maxclients"},
		{answer("ERR DB index is out of range"), true, "URL"},
		{answer("ERR something new"), false, "something new"},
		{redis.ErrPoolTimeout, false, "PoolSize"},
		{redis.ErrClosed, false, "closed"},
		{context.DeadlineExceeded, false, "result is unknown"},
		{os.ErrDeadlineExceeded, false, "result is unknown"},
		{io.EOF, false, "redis://user:password@host:6379/0"},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, false, "server runs"},
		{x509.UnknownAuthorityError{}, true, "Options.TLS"},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: certificate required")}, true, "Options.TLS"},
	} {
		got := redisstreams.Classify("publish", c.err)
		if got.Class != waybill.ClassOutage || errors.Is(got, waybill.ErrMisconfigured) != c.fix || !strings.Contains(got.Error(), c.cure) {
			t.Errorf("%v becomes %s, %v", c.err, got.Class, got)
		}
		if _, unknown := errors.AsType[x509.UnknownAuthorityError](c.err); !errors.Is(got, c.err) && !unknown {
			t.Errorf("%v does not lead to the driver's error", got)
		}
	}
	if got := redisstreams.Classify("publish", redis.ErrClosed); !errors.Is(got, waybill.ErrClosed) {
		t.Error(got)
	}
}

// TR-08, TR-09: what real servers say, at the start and later.
func TestErrorsOfServers(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{Config: []string{"user default on nopass ~* +@all", "user app on >secret ~* +@all", "maxmemory-policy noeviction"}})
	as := func(user, database string) string {
		return strings.Replace(strings.Replace(server.URL(), "redis://", "redis://"+user+"@", 1), "/0", database, 1)
	}
	opts := prepared(redisstreams.Options{})
	for name, c := range map[string]struct {
		url, want string
		fix       bool
	}{
		"wrong password": {as("app:hunter2", "/0"), "check both", true},
		"wrong database": {as("app:secret", "/99"), "database", true},
		"nobody there":   {"redis://app:hunter2@127.0.0.1:1/0", "check host and port", false},
	} {
		_, err := redisstreams.Dial(t.Context(), c.url, opts)
		if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) != c.fix || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the password is in the error", name)
		}
	}
	if _, err := redisstreams.Dial(t.Context(), "redis://app:hun%ter2@host", opts); !errors.Is(err, waybill.ErrInvalid) || strings.Contains(err.Error(), "ter2") {
		t.Error(err)
	}

	bus := dial(t, server.URL(), opts)
	sub := core.Subscription{Queue: "q", Bindings: []string{"a"}}
	r := subscribe(t, bus, sub)
	publish(t, bus, envelope("1", "a"))
	for _, step := range []struct {
		do   []any
		want string
		undo []any
	}{
		{[]any{"CONFIG", "SET", "maxmemory", "1"}, "no memory left", []any{"CONFIG", "SET", "maxmemory", "0"}},
		{[]any{"REPLICAOF", "127.0.0.1", "1"}, "replica", []any{"REPLICAOF", "NO", "ONE"}},
		{[]any{"CONFIG", "SET", "min-replicas-to-write", "1"}, "min-replicas-to-write", []any{"CONFIG", "SET", "min-replicas-to-write", "0"}},
	} {
		if err := server.Do(t.Context(), step.do...); err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, many} {
			err := bus.Publish(t.Context(), envelopes(n, "a"))[n-1]
			if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), step.want) {
				t.Errorf("%v, %d messages: %v", step.do, n, err)
			}
		}
		if err := server.Do(t.Context(), step.undo...); err != nil {
			t.Fatal(err)
		}
		publish(t, bus, envelope("2", "a"))
	}
	receive(t, r, 2)

	if err := server.Do(t.Context(), "SET", "{"+opts.Bus+"}:queue:other", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "other"}); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Error(err)
	}
}

// TR-08: a node of a cluster, asked as if it were alone, says what to do.
func TestNodeOfCluster(t *testing.T) {
	t.Parallel()
	nodes := testenv.OwnRedisCluster(t, 3)
	moved := 0
	for _, n := range nodes {
		if _, err := redisstreams.Dial(t.Context(), n.URL(), prepared(redisstreams.Options{Bus: "fixed"})); err != nil {
			if moved++; !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "cluster client") {
				t.Error(err)
			}
		}
	}
	if moved != 2 {
		t.Errorf("%d of 3 nodes do not have the slot", moved)
	}
}

// TR-09: every problem of the options at once.
func TestOptions(t *testing.T) {
	t.Parallel()
	err := redisstreams.Options{
		Bus: "a{b}", HoldFor: time.Millisecond, Confirm: 9, Replicas: -1, MaxLen: -1, MaxMessageBytes: 1 << 30, Timeout: -1, PublishTimeout: 1,
	}.Validate()
	for _, field := range []string{"Bus", "HoldFor", "Confirm", "Replicas", "MaxLen", "MaxMessageBytes", "Timeout", "PublishTimeout"} {
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, o := range []redisstreams.Options{{Confirm: redisstreams.ConfirmReplicas}, {Replicas: 1}} {
		if err := o.Validate(); !errors.Is(err, waybill.ErrInvalid) {
			t.Error(err)
		}
	}
	if err := (redisstreams.Options{}).Validate(); err != nil {
		t.Error(err)
	}
	if _, err := redisstreams.New((*redis.Client)(nil), redisstreams.Options{}); !errors.Is(err, waybill.ErrInvalid) {
		t.Error(err)
	}
	for c, want := range map[redisstreams.Confirm][2]bool{
		redisstreams.ConfirmStored: {false, false}, redisstreams.ConfirmAlways: {true, true}, redisstreams.ConfirmReplicas: {true, false}, redisstreams.ConfirmSynced: {true, true},
	} {
		client := redis.NewClient(&redis.Options{})
		defer client.Close()
		bus, err := redisstreams.New(client, redisstreams.Options{Confirm: c, Replicas: map[bool]int{true: 1}[c == redisstreams.ConfirmReplicas]})
		if err != nil {
			t.Fatal(err)
		}
		if tr := bus.Traits(); tr.Durable != want[0] || tr.Synced != want[1] {
			t.Errorf("%s: %+v", c, tr)
		}
	}
}
