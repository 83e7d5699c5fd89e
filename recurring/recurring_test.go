package recurring_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/recurring"
	"github.com/waybill-go/waybill/store/memory"
)

// world is a store in a bubble of virtual time, which begins at 2000-01-01 00:00 UTC.
type world struct {
	t     *testing.T
	store *memory.Store
	down  atomic.Bool
	mu    sync.Mutex
	log   bytes.Buffer
}

func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *world) logged(event string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(w.log.String(), "event="+event+" ")
}

// Do is that of the store, or fails while the database is down.
func (w *world) Do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx *memory.Tx) error) (core.InboxStatus, error) {
	if w.down.Load() {
		return core.InboxNone, waybill.Outage(errors.New("no database"))
	}
	return w.store.Do(ctx, key, fn)
}

func (w *world) Unwrap() any { return w.store }

func virtual(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		store, err := memory.New(memory.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		test(&world{t: t, store: store})
	})
}

// run runs a job for a time, n times at once.
func (w *world) run(n int, d time.Duration, j recurring.Job) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	var group sync.WaitGroup
	for range n {
		r, err := recurring.New(w, w.store, []recurring.Job{j}, recurring.Options{Logger: slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		if err != nil {
			w.t.Fatal(err)
		}
		group.Go(func() {
			if err := r.Run(ctx); err != nil {
				w.t.Error(err)
			}
		})
	}
	patience.Pass(w.t, d)
	cancel()
	group.Wait()
}

// ticks returns the ticks that were staged, in order.
func (w *world) ticks() (out []string) {
	for _, r := range w.store.Records() {
		out = append(out, string(r.Envelope.Body))
	}
	return out
}

func message(tick time.Time) (waybill.Message, error) {
	return waybill.RawMessage("tick", "text/plain", []byte(tick.Format("01-02 15:04"))), nil
}

func day(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }

// Three processes stage each tick once, also when the clocks change in spring and autumn.
func TestEachTickOnce(t *testing.T) { // OP-14
	t.Parallel()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	virtual(t, func(w *world) {
		j := recurring.Job{Name: "report", Schedule: "30 2 * * *", Location: zone, Message: message}
		patience.Pass(w.t, day(83))
		w.run(3, day(6), j) // the 24th to the 29th of March
		patience.Pass(w.t, day(211))
		w.run(3, day(4), j) // the 27th to the 30th of October
		want := []string{
			"03-24 02:30", "03-25 02:30", "03-26 03:30", "03-27 02:30", "03-28 02:30", "03-29 02:30",
			"10-27 02:30", "10-28 02:30", "10-29 02:30", "10-30 02:30",
		}
		if got := w.ticks(); !slices.Equal(got, want) {
			t.Errorf("staged %v", got)
		}
		for _, r := range w.store.Records() {
			if r.Envelope.Source != "/test" || r.Envelope.ID == "" {
				t.Errorf("%+v", r.Envelope)
			}
		}
		if n := w.logged("recurring.missed") + w.logged("recurring.failed"); n > 0 {
			t.Errorf("%d complaints", n)
		}
	})
}

// After a time in which no process ran, the job makes up for it as it says.
func TestCatchUp(t *testing.T) { // OP-14
	t.Parallel()
	begin := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		set  func(j *recurring.Job)
		want string
	}{
		{"by default not at all", func(*recurring.Job) {}, "01:00 02:00 06:00"},
		{"the latest", func(j *recurring.Job) { j.Late, j.From = 12*time.Hour, begin.Add(time.Second) }, "01:00 02:00 05:00 06:00"},
		{"all", func(j *recurring.Job) { j.Late, j.All, j.From = 12*time.Hour, true, begin.Add(time.Second) }, "01:00 02:00 03:00 04:00 05:00 06:00"},
		{"what is not too late", func(j *recurring.Job) { j.Late, j.All, j.From = 100*time.Minute, true, begin.Add(time.Second) }, "01:00 02:00 04:00 05:00 06:00"},
		{"from when it exists", func(j *recurring.Job) { j.Late, j.All, j.From = 12*time.Hour, true, begin.Add(4*time.Hour) }, "04:00 05:00 06:00"},
		{"with its first tick", func(j *recurring.Job) { j.Late, j.All, j.From = 12*time.Hour, true, begin }, "00:00 01:00 02:00 03:00 04:00 05:00 06:00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			virtual(t, func(w *world) {
				j := recurring.Job{Name: "hourly", Schedule: "@hourly", Message: message}
				c.set(&j)
				patience.Pass(w.t, time.Minute+time.Second)
				w.run(2, 2*time.Hour, j)
				patience.Pass(w.t, 3*time.Hour+29*time.Minute) // 05:30
				w.run(2, time.Hour, j)
				got := strings.ReplaceAll(strings.Join(w.ticks(), " "), "01-01 ", "")
				if got != c.want {
					t.Errorf("staged %s, want %s", got, c.want)
				}
			})
		})
	}
}

// A database that is down for less than Late delays a tick; one that is down for longer loses it, and the log says so.
func TestOutage(t *testing.T) { // OP-14 P7
	t.Parallel()
	virtual(t, func(w *world) {
		go func() {
			time.Sleep(time.Hour - time.Second)
			w.down.Store(true)
			time.Sleep(40 * time.Second)
			w.down.Store(false)
			time.Sleep(time.Hour - 40*time.Second)
			w.down.Store(true)
			time.Sleep(5 * time.Minute)
			w.down.Store(false)
		}()
		w.run(1, 3*time.Hour+time.Minute, recurring.Job{Name: "hourly", Schedule: "0 * * * *", Message: message})
		if got := strings.Join(w.ticks(), " "); got != "01-01 00:00 01-01 01:00 01-01 03:00" {
			t.Errorf("staged %s", got)
		}
		if n, m := w.logged("recurring.failed"), w.logged("recurring.missed"); n == 0 || m != 1 {
			t.Errorf("logged %d failures and %d misses", n, m)
		}
	})
}

// An outage that ends shortly before Late is over costs no tick: the pauses between tries get shorter towards the end.
func TestOutageUntilLate(t *testing.T) { // OP-14 P7
	t.Parallel()
	for _, late := range []time.Duration{recurring.DefaultLate, 30 * time.Minute} {
		virtual(t, func(w *world) {
			const ticks = 20
			begin := time.Now()
			go func() {
				for tick := range ticks {
					time.Sleep(time.Until(begin.Add(time.Duration(tick+1)*time.Hour - time.Second)))
					w.down.Store(true)
					time.Sleep(time.Second + late - 5*time.Second)
					w.down.Store(false)
				}
			}()
			j := recurring.Job{Name: "hourly", Schedule: "0 * * * *", Message: message, Late: late, From: time.Now().Add(time.Second)}
			w.run(1, ticks*time.Hour+late, j)
			if n := len(w.ticks()); n != ticks || w.logged("recurring.missed") > 0 {
				t.Errorf("Late %s: %d of %d ticks are staged, %d are missed", late, n, ticks, w.logged("recurring.missed"))
			}
			if n := w.logged("recurring.failed"); n > ticks*100 {
				t.Errorf("Late %s: %d tries for %d ticks", late, n, ticks)
			}
		})
	}
}

// A tick is an instant: processes that name its zone differently, as after a change of Location, stage it once.
func TestZonesShareTicks(t *testing.T) { // OP-14
	t.Parallel()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	virtual(t, func(w *world) {
		j := recurring.Job{Name: "hourly", Schedule: "0 * * * *", Message: message, Late: 12 * time.Hour, All: true, From: time.Now().Add(time.Second)}
		w.run(1, 3*time.Hour+time.Minute, j)
		j.Location = zone
		w.run(1, time.Hour, j)
		// the last one is 04:00 in UTC
		if got := strings.ReplaceAll(strings.Join(w.ticks(), " "), "01-01 ", ""); got != "01:00 02:00 03:00 05:00" {
			t.Errorf("staged %s", got)
		}
	})
}

// The ticks of a paused job are passed over for good, by all processes.
func TestPaused(t *testing.T) { // OP-14
	t.Parallel()
	virtual(t, func(w *world) {
		var paused, broken atomic.Bool
		j := recurring.Job{
			Name: "hourly", Schedule: "0 * * * *", Message: message, Late: 12 * time.Hour, All: true, From: time.Now().Add(time.Second),
			Paused: func(context.Context) (bool, error) {
				if broken.Load() {
					return false, errors.New("no answer")
				}
				return paused.Load(), nil
			},
		}
		go func() {
			time.Sleep(90 * time.Minute)
			paused.Store(true)
			time.Sleep(2 * time.Hour)
			paused.Store(false)
			broken.Store(true)
			time.Sleep(time.Hour)
			broken.Store(false)
		}()
		w.run(2, 5*time.Hour+time.Minute, j)
		w.run(2, time.Minute, j)
		if got := strings.ReplaceAll(strings.Join(w.ticks(), " "), "01-01 ", ""); got != "01:00 04:00 05:00" {
			t.Errorf("staged %s", got)
		}
		if n := w.logged("recurring.paused"); n != 2 {
			t.Errorf("logged %d pauses", n)
		}
	})
}

// A function that fails or panics is tried again, and another job goes on beside it.
func TestBadFunctions(t *testing.T) { // OP-14
	t.Parallel()
	virtual(t, func(w *world) {
		tries := 0
		bad := recurring.Job{Name: "bad", Schedule: "0 1 * * *", Late: 5 * time.Minute, From: time.Now(), Message: func(tick time.Time) (waybill.Message, error) {
			switch tries++; tries {
			case 1:
				panic("no")
			case 2:
				return waybill.Message{}, errors.New("not yet")
			case 3:
				return waybill.RawMessage("", "", nil), nil // the store refuses it
			}
			return message(tick)
		}}
		good := recurring.Job{Name: "good", Schedule: "0 1 * * *", Message: message}
		r, err := recurring.New(w, w.store, []recurring.Job{bad, good}, recurring.Options{Logger: slog.New(slog.NewTextHandler(w, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(w.t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		patience.Pass(w.t, 2*time.Hour)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := w.ticks(); len(got) != 2 || w.logged("recurring.failed") != 3 {
			t.Errorf("staged %v after %d failures", got, w.logged("recurring.failed"))
		}
	})
}

// Marks are deleted when no process can need them any more.
func TestMarksAreDeleted(t *testing.T) { // OP-14
	t.Parallel()
	virtual(t, func(w *world) {
		w.run(1, day(10), recurring.Job{Name: "hourly", Schedule: "@hourly", Message: message})
		n := 0
		for {
			k, err := w.store.PurgeInbox(w.t.Context(), "recurring/hourly", time.Nanosecond, 10)
			if err != nil {
				t.Fatal(err)
			}
			if n += k; k < 10 {
				break
			}
		}
		if n < 24 || n > 27 {
			t.Errorf("%d marks are left of 240", n)
		}
	})
}

// Bad jobs are refused, all problems at once.
func TestBadJobs(t *testing.T) { // OP-14
	t.Parallel()
	_, err := recurring.New[*memory.Tx](nil, nil, []recurring.Job{
		{Name: "a", Schedule: "* * * * *", Message: message},
		{Name: "a", Schedule: "61 * * * *"},
		{Name: strings.Repeat("x", 246), Schedule: "0 0 30 2 *", Late: 2 * time.Minute},
		{Schedule: "@every 5s", Late: -1},
		{Name: "b", Schedule: "TZ=UTC 0 * * *", Late: 32 * 24 * time.Hour},
		{Name: "c", Schedule: ""},
		{Name: "d", Schedule: "* * * * * *"},
	}, recurring.Options{})
	if !errors.Is(err, waybill.ErrInvalid) {
		t.Fatal(err)
	}
	for _, want := range []string{
		"marks: is nil", "outbox: is nil", `jobs[1].Name: "a" is that of`, "jobs[1].Schedule", "jobs[1].Message: is nil", "jobs[2].Name: has 246", "never comes",
		"jobs[2].From: is zero", "jobs[3].Name: has 0", `"@every 5s" has not five fields`, "jobs[3].Late: -1ns", "jobs[4].Schedule", "jobs[4].Late: 768h", "jobs[5].Schedule", "jobs[6].Schedule",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "jobs[0]") {
		t.Error(err)
	}
	if _, err := recurring.New[*memory.Tx](nil, nil, nil, recurring.Options{}); !strings.Contains(err.Error(), "there is none") {
		t.Error(err)
	}
}
