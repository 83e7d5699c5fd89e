package redisstreams_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// TR-08, DB-29, CO-24: a message that a setting of the server is too low for fails for good, and names the setting. All
// others of its batch are stored, but for those behind it of its key. A user may lack the right to read the settings.
func TestMessageAboveLimitOfServer(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	for _, setting := range []string{"proto-max-bulk-len", "client-query-buffer-limit"} {
		for _, user := range []string{"default", "shop"} {
			t.Run(setting+" "+user, func(t *testing.T) {
				t.Parallel()
				server := testenv.OwnRedis(t, testenv.RedisOptions{})
				opts := prepared(redisstreams.Options{})
				r := subscribe(t, dial(t, server.URL(), opts), core.Subscription{Queue: "q", Bindings: []string{"a"}})
				url := server.URL()
				if user == "shop" {
					url = actAs(t, server, user, opts.Bus)
				}
				bus := dial(t, url, opts)
				set := func(value int) {
					t.Helper()
					if err := server.Do(t.Context(), "CONFIG", "SET", setting, value); err != nil {
						t.Fatal(err)
					}
				}
				set(limit)
				batch := envelopes(many+9, "a")
				batch[many].Body = bytes.Repeat([]byte("x"), limit-1000) // it is stored
				large := map[int]int{1: limit + 1, many + 2: limit - 900, many + 5: 6 << 20}
				for i, n := range large {
					batch[i].Body = bytes.Repeat([]byte("x"), n)
				}
				batch[many+2].Headers = map[string]string{} // their prefixes make it too large
				for i := range 100 {
					batch[many+2].Headers[fmt.Sprintf("h%02d", i)] = ""
				}
				batch[1].Key, batch[2].Key, batch[many+1].Key = "k", "k", "k"
				batch[3].Key, batch[many+6].Key = "other", "other"
				res := bus.Publish(t.Context(), batch)
				stored := 0
				for i, err := range res {
					switch {
					case large[i] > 0:
						cures := []string{setting, "MaxMessageBytes", "raise"}
						if user == "default" {
							cures = append(cures, "is 1048576")
						}
						for _, want := range cures {
							if waybill.ClassOf(err) != waybill.ClassPermanent || waybill.ReasonOf(err) != waybill.ReasonTooLarge || !strings.Contains(err.Error(), want) {
								t.Errorf("message %d: %v, want one that is too large, with %q", i, err, want)
							}
						}
					case batch[i].Key == "k":
						if !errors.Is(err, waybill.ErrPredecessorFailed) {
							t.Errorf("message %d, behind a refused one: %v", i, err)
						}
					case err != nil:
						t.Errorf("message %d: %v", i, err)
					default:
						stored++
					}
				}
				came := map[string]bool{}
				for _, d := range receive(t, r, stored) {
					came[d.Envelope.ID] = true
					settle(t, r, core.AckDone(d))
				}
				if want := len(batch) - len(large) - 2; len(came) != want {
					t.Errorf("%d messages came, want %d", len(came), want)
				}
				set(8 << 20)
				publish(t, bus, batch[many+5]) // nothing is remembered
			})
		}
	}
}

// RL-03, CO-24: a connection that is lost with a large message is an outage, unless the server closes the connection at
// three more arguments of that size, and answers a small question after each. A small message is never too large.
func TestLostWithALargeMessage(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	opts := prepared(redisstreams.Options{})
	subscribe(t, dial(t, server.URL(), opts), core.Subscription{Queue: "q", Bindings: []string{"a"}})
	url := actAs(t, server, "shop", opts.Bus) // without a right to read settings
	for name, c := range map[string]struct {
		bytes, tries, questions int
		cut                     error
		want                    waybill.Class
		askedFor                int64
	}{
		"lost once":           {bytes: 2 << 20, want: waybill.ClassOutage, askedFor: 1},
		"lost two more times": {bytes: 2 << 20, tries: 2, want: waybill.ClassOutage, askedFor: 3},
		"the server is gone":  {bytes: 2 << 20, tries: 9, questions: 9, want: waybill.ClassOutage, askedFor: 1},
		"lost at each try":    {bytes: 2 << 20, tries: 9, want: waybill.ClassPermanent, askedFor: 3},
		"refused":             {bytes: 2 << 20, cut: answer("ERR Protocol error: invalid bulk length"), want: waybill.ClassPermanent},
		"a small message":     {bytes: 2 << 10, tries: 9, want: waybill.ClassOutage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, cuts := raw(t, url), &cuts{err: cmp.Or(c.cut, io.EOF)}
			client.AddHook(cuts)
			bus, err := redisstreams.New(client, opts)
			if err != nil {
				t.Fatal(err)
			}
			closeLater(t, bus)
			publish(t, bus, envelope("1", "a"))
			large := envelope("2", "a")
			large.Body = make([]byte, c.bytes)
			cuts.publishes.Store(1)
			cuts.tries.Store(int64(c.tries))
			cuts.questions.Store(int64(c.questions))
			err = bus.Publish(t.Context(), []waybill.Envelope{large})[0]
			if waybill.ClassOf(err) != c.want || (c.want == waybill.ClassPermanent) != (waybill.ReasonOf(err) == waybill.ReasonTooLarge) {
				t.Error(err)
			}
			if n := cuts.asked.Load(); n != c.askedFor {
				t.Errorf("the server was tried %d times, want %d", n, c.askedFor)
			}
			if small := c.bytes < 1<<20; cuts.alone.Load() != small {
				t.Error("a connection that the server has closed goes back to the pool")
			}
			publish(t, bus, large)
		})
	}
}

// cuts loses the connection of the next publishes, of the next tries of a size, and of the next questions after them.
// err is the answer to a publish before.
type cuts struct {
	publishes, tries, questions, asked atomic.Int64
	err                                error
	alone                              atomic.Bool // a command had none behind it that would see the loss
}

func (*cuts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *cuts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		left := &c.publishes
		if cmds[0].Name() == "get" {
			c.asked.Add(1)
			left = &c.tries
		}
		if left.Add(-1) < 0 {
			return next(ctx, cmds)
		}
		for _, cmd := range cmds {
			cmd.SetErr(io.EOF)
		}
		if left == &c.publishes {
			cmds[0].SetErr(c.err)
		}
		c.alone.CompareAndSwap(false, len(cmds) == 1)
		return io.EOF
	}
}

func (c *cuts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "get" || c.questions.Add(-1) < 0 {
			return next(ctx, cmd)
		}
		cmd.SetErr(io.EOF)
		return io.EOF
	}
}

// DB-29: Check names the setting of the server that is below Options.MaxMessageBytes.
func TestLimitOfServerIsTold(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	told := func(maxBytes int) string {
		t.Helper()
		var log sharedtest.Log
		dial(t, server.URL(), redisstreams.Options{MaxMessageBytes: maxBytes, Logger: log.Logger(slog.LevelWarn)})
		return log.String()
	}
	if log := told(0); log != "" {
		t.Errorf("without a reason: %s", log)
	}
	for _, setting := range []string{"proto-max-bulk-len", "client-query-buffer-limit"} {
		if err := server.Do(t.Context(), "CONFIG", "SET", setting, 4<<20); err != nil {
			t.Fatal(err)
		}
		if log := told(0); !strings.Contains(log, "redisstreams.message_limit") || !strings.Contains(log, setting) || !strings.Contains(log, "4194304") {
			t.Errorf("%s is too low, and the log is: %s", setting, log)
		}
		if log := told(3 << 20); log != "" {
			t.Errorf("without a reason: %s", log)
		}
		if err := server.Do(t.Context(), "CONFIG", "SET", setting, 512<<20); err != nil {
			t.Fatal(err)
		}
	}
}
