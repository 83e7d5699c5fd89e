package sqlite

import (
	"context"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// DB-10: new records and new commands wake at once. What was there at the last wake-up wakes again only after a while:
// it may wait for its key, or be out.
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
		return true, w.tell(context.WithoutCancel(t.Context()), core.ControlKey, &row{Row: rules.Row{Ref: core.Ref{Route: route}}, key: "k"})
	})
	if err != nil {
		t.Fatal(err)
	}
	wakes("a command", old, true)
	old.control = look(old).control
	wakes("nothing new after the command", old, false)
}
