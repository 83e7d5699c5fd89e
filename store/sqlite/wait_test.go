package sqlite

import (
	"context"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// DB-10: new records and new commands wake at once. Records that were there at the last wake-up wake again only after a
// while: they may wait for their key, or be out.
func TestNews(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	look := func(old sight) (news sight) {
		t.Helper()
		err := s.read(t.Context(), "wait", func(w *work) (err error) {
			var due bool
			if news, due, _, err = w.news(t.Context(), route, old); err == nil && !due {
				t.Error("a ready record is not due")
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return news
	}
	wakes := func(what string, old sight, want bool) {
		t.Helper()
		if got := !look(old).woken.IsZero(); got != want {
			t.Errorf("%s: it wakes: %v, want %v", what, got, want)
		}
	}
	stage(t, s, raw("a", "k"))
	wakes("the first look", sight{}, true)
	old := look(sight{})
	old.woken = time.Now().Add(time.Hour) // much less than calm ago, however slow this test is
	wakes("nothing new", old, false)
	old.woken = time.Now().Add(-calm)
	wakes("nothing new for a while", old, true)
	old.woken = time.Now().Add(time.Hour)
	stage(t, s, raw("b", "k"))
	wakes("a new record", old, true)
	old.seq = look(old).seq
	wakes("nothing new again", old, false)
	err := s.write(t.Context(), "tell", func(w *work) (bool, error) {
		return true, w.tell(context.WithoutCancel(t.Context()), core.NoticeKey, &row{Row: rules.Row{Ref: core.Ref{Route: route}}, key: "k"})
	})
	if err != nil {
		t.Fatal(err)
	}
	wakes("a command", old, true)
	old.notice = look(old).notice
	wakes("nothing new after the command", old, false)
}

// When nothing new came for a second, an idle process looks 50 times a second instead of 200. Commits that bring
// nothing, as a relay's own renewals do, do not end that; a record and a command do.
func TestIdleLooksRarely(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	now := time.Now()
	pause := func(what string, want time.Duration) {
		t.Helper()
		if got := s.watch.pause(now, s.opts.PollInterval); got != want {
			t.Errorf("%s: a look each %s, want %s", what, got, want)
		}
	}
	look := func() {
		t.Helper()
		s.watch.mu.Lock()
		s.watch.news = now.Add(-quietAfter)
		s.watch.mu.Unlock()
		if _, _, err := s.listen(t.Context(), []string{route}); err != nil {
			t.Fatal(err)
		}
	}
	look()
	pause("at first", quietTimes*DefaultPollInterval)
	stage(t, s, raw("a", "k"))
	look()
	pause("after a record", DefaultPollInterval)
	if _, err := s.db.ExecContext(t.Context(), "CREATE TABLE other (n int)"); err != nil {
		t.Fatal(err)
	}
	s.watch.mu.Lock()
	old := s.watch.seen[route]
	old.woken = now.Add(time.Hour) // much less than calm ago
	s.watch.seen[route] = old
	s.watch.mu.Unlock()
	look()
	pause("after a commit of others", quietTimes*DefaultPollInterval)
	err := s.write(t.Context(), "tell", func(w *work) (bool, error) {
		return true, w.tell(context.WithoutCancel(t.Context()), core.NoticeKey, &row{Row: rules.Row{Ref: core.Ref{Route: route}}, key: "k"})
	})
	if err != nil {
		t.Fatal(err)
	}
	look()
	pause("after a command", DefaultPollInterval)
}
