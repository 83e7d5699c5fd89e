package transporttest_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
)

// No adapter hangs the suite or crashes it: every check ends, and one that fails says which it is.
func TestNoAdapterHangsTheSuite(t *testing.T) {
	t.Parallel()
	type hooks = func(hang func()) faults
	for name, f := range map[string]hooks{
		"publish panics": func(func()) faults {
			return faults{publish: func(*broken, context.Context, []waybill.Envelope) core.Results { panic("publish") }}
		},
		"publish has no results": func(func()) faults {
			return faults{publish: func(*broken, context.Context, []waybill.Envelope) core.Results { return nil }}
		},
		"publish hangs": func(hang func()) faults {
			return faults{publish: func(*broken, context.Context, []waybill.Envelope) core.Results { hang(); return nil }}
		},
		"subscribe hangs": func(hang func()) faults {
			return faults{subscribe: func(_ *broken, s core.Subscription) core.Subscription { hang(); return s }}
		},
		"receive panics": func(func()) faults {
			return faults{receive: func(*brokenReceiver, context.Context, int) ([]*waybill.Delivery, error) { panic("receive") }}
		},
		"receive hangs": func(hang func()) faults {
			return faults{receive: func(*brokenReceiver, context.Context, int) ([]*waybill.Delivery, error) { hang(); return nil, nil }}
		},
		"receive returns nil deliveries": func(func()) faults {
			return faults{receive: func(_ *brokenReceiver, _ context.Context, limit int) ([]*waybill.Delivery, error) {
				return make([]*waybill.Delivery, limit), nil
			}}
		},
		"receive returns nothing": func(func()) faults {
			return faults{receive: func(*brokenReceiver, context.Context, int) ([]*waybill.Delivery, error) { return nil, nil }}
		},
		"receive returns too many": func(func()) faults {
			return faults{receive: func(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error) {
				ds, err := r.Receiver.Receive(ctx, limit)
				return append(ds, ds...), err
			}}
		},
		"settle panics": func(func()) faults {
			return faults{settle: func(*brokenReceiver, context.Context, []core.Ack) core.Results { panic("settle") }}
		},
		"settle has no results": func(func()) faults {
			return faults{settle: func(*brokenReceiver, context.Context, []core.Ack) core.Results { return nil }}
		},
		"settle hangs": func(hang func()) faults {
			return faults{settle: func(*brokenReceiver, context.Context, []core.Ack) core.Results { hang(); return nil }}
		},
		"close hangs": func(hang func()) faults {
			return faults{close: func(*brokenReceiver, context.Context) error { hang(); return nil }}
		},
		"close panics": func(func()) faults {
			return faults{close: func(*brokenReceiver, context.Context) error { panic("close") }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failed := 0
			for _, c := range transporttest.Checks() {
				synctest.Test(t, func(t *testing.T) {
					release := make(chan struct{})
					defer close(release)
					w := newWorld(t, f(func() { <-release }))
					switch err := c.Run(t.Context(), w.harness()); {
					case err == nil, errors.Is(err, transporttest.ErrNotDeclared):
					case !strings.HasPrefix(err.Error(), "check "+c.Name+" (") || !strings.Contains(err.Error(), "\n\tabout it: "+c.Doc):
						t.Errorf("%s: %v", c.Name, err)
					default:
						failed++
					}
				})
			}
			if failed < 3 {
				t.Errorf("only %d checks fail", failed)
			}
		})
	}
}

// A receiver that never stops delivering, and a harness that fails by itself, end a check, too.
func TestEndlessAdapters(t *testing.T) {
	t.Parallel()
	for _, c := range transporttest.Checks() {
		if c.Name != "publish-cancelled" && c.Name != "settle-done" {
			continue
		}
		endless := faults{
			receive: func(*brokenReceiver, context.Context, int) ([]*waybill.Delivery, error) {
				return []*waybill.Delivery{{Envelope: waybill.Envelope{ID: "again"}}}, nil
			},
			settle: func(_ *brokenReceiver, _ context.Context, acks []core.Ack) core.Results {
				return make(core.Results, len(acks))
			},
		}
		synctest.Test(t, func(t *testing.T) {
			if err := c.Run(t.Context(), newWorld(t, endless).harness()); err == nil {
				t.Errorf("%s ends without an error", c.Name)
			} else {
				t.Log(err)
			}
			h := newWorld(t, faults{}).harness()
			h.NewName = func() string { runtime.Goexit(); return "" } // as t.FailNow does
			if err := c.Run(t.Context(), h); err == nil || !strings.Contains(err.Error(), "FailNow in the harness") {
				t.Errorf("%s: a harness that ends the goroutine: %v", c.Name, err)
			}
			if err := c.Run(t.Context(), transporttest.Harness{}); err == nil || errors.Is(err, transporttest.ErrNotDeclared) {
				t.Errorf("%s: a harness without anything: %v", c.Name, err)
			}
		})
	}
}

// A failure names the wrong behaviour, the line of the suite that saw it, and the promise. A nil error reads as one.
func TestFailuresAreReadable(t *testing.T) {
	t.Parallel()
	for _, c := range transporttest.Checks() {
		if c.Name != "subscribe-nonsense" {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			accepts := faults{subscribe: func(_ *broken, s core.Subscription) core.Subscription { s.Queue += "q"; return s }}
			got := c.Run(t.Context(), newWorld(t, accepts).harness()).Error()
			for _, want := range []string{"check subscribe-nonsense (checks_life.go:", "nothing", "about it: " + c.Doc} {
				if !strings.Contains(got, want) {
					t.Errorf("%q does not hold %q", got, want)
				}
			}
			if strings.Contains(got, "%!") || strings.Contains(got, "<nil>") {
				t.Error(got)
			}
		})
	}
}

// An adapter of one direction proves what it does, and is told that the other was not tested.
func TestOneDirection(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"publisher", "subscriber"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			ran := 0
			for _, c := range transporttest.Checks() {
				synctest.Test(t, func(t *testing.T) {
					h := newWorld(t, faults{}).harness()
					if way == "publisher" {
						h.Reader, h.Subscriber = h.Subscriber, nil
					} else {
						h.Writer, h.Publisher = h.Publisher, nil
					}
					switch err := c.Run(t.Context(), h); {
					case err == nil:
						ran++
						if other := map[string]string{"publisher": "settle-", "subscriber": "publish-un"}[way]; strings.HasPrefix(c.Name, other) {
							t.Errorf("%s ran for a %s", c.Name, way)
						}
					case !errors.Is(err, transporttest.ErrNotDeclared):
						t.Error(err)
					}
				})
			}
			if ran < 15 {
				t.Errorf("%d checks ran", ran)
			}
		})
	}
}
