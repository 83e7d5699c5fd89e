package relay_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
)

// linesOf returns the lines of a log in JSON.
func linesOf(t *testing.T, text string) (lines []map[string]any) {
	t.Helper()
	for line := range strings.Lines(text) {
		var l map[string]any
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	return lines
}

// OP-05: at level debug the log tells what becomes of one message, of batches and pages, of partitions and members.
// Nothing of a body is in it.
func TestDebugLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.answer = func(e *waybill.Envelope, nth int) error {
			switch {
			case e.ID == "refused" && nth == 1:
				return errNo
			case e.ID == "away" && nth == 1:
				return down()
			}
			return nil
		}
		stage(t, s, waybill.RawMessage("t.a", "text/plain", []byte("a secret"), waybill.ID("fine")), msg("refused", "k"), msg("away", ""))
		var buf bytes.Buffer
		o := relay.Options{Name: "first", Logger: slog.New(slog.NewJSONHandler(&buf, &slog.HandlerOptions{Level: slog.LevelDebug}))}
		stop := begin(t, newRelay(t, s, b, o))
		within(t, time.Hour, "published", func() bool { return b.count() == 3 })
		second := begin(t, newRelay(t, s, newBus(), relay.Options{Name: "second"}))
		patience.Pass(t, time.Minute)
		if err := second(); err != nil {
			t.Error(err)
		}
		patience.Pass(t, time.Minute)
		if err := stop(); err != nil {
			t.Error(err)
		}
		story := map[string][]string{} // of each message
		counted := map[string]float64{}
		var members []string
		for _, l := range linesOf(t, buf.String()) {
			event, _ := l["event"].(string)
			if id, ok := l["id"].(string); ok {
				text := strings.TrimPrefix(event, "relay.")
				if outcome, ok := l["outcome"]; ok {
					text += fmt.Sprint(" ", outcome)
				} else if l["attempt"] == nil {
					t.Errorf("no attempt: %v", l)
				}
				story[id] = append(story[id], text)
			}
			switch event {
			case "relay.handed_out", "relay.published", "relay.released", "relay.settled", "relay.read", "relay.batch", "relay.partitions":
				if l["level"] != "DEBUG" || l["route"] != "default" {
					t.Errorf("not of level debug, or without its route: %v", l)
				}
				if n, ok := l["records"].(float64); ok {
					counted[event] += n
				}
				if n, ok := l["confirmed"].(float64); ok {
					counted["confirmed"] += n
				}
				for _, change := range []string{"taken", "gone"} {
					if partitions, ok := l[change].([]any); ok {
						counted[change] += float64(len(partitions))
					}
				}
			case "relay.members":
				members = append(members, fmt.Sprint(l["met"], l["gone"]))
			}
		}
		if d := cmp.Diff(map[string][]string{
			"fine":    {"handed_out", "published", "settled confirmed"},
			"refused": {"handed_out", "retry", "settled attempt failed", "handed_out", "published", "settled confirmed"},
			"away":    {"handed_out", "breaker_open", "released", "handed_out", "published", "settled confirmed"},
		}, story); d != "" {
			t.Error(d)
		}
		if counted["relay.read"] < 3 || counted["relay.batch"] != 5 || counted["confirmed"] != 3 || counted["taken"] == 0 || counted["gone"] == 0 {
			t.Errorf("%v", counted)
		}
		if !slices.Contains(members, "[first] <nil>") || !slices.Contains(members, "[second] <nil>") || !slices.Contains(members, "<nil> [second]") {
			t.Errorf("members: %q", members)
		}
		if strings.Contains(buf.String(), "secret") {
			t.Error("a body is in the log")
		}
	})
}

// OP-05: repeated warnings are left out, but not at level debug: there is a line for each attempt of each message.
func TestDebugLogIsComplete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Calls(1000, "300 retries, each due at a time of its own: a Due, a read and a settle each")
		s, b := newStore(t), newBus()
		b.answer = func(_ *waybill.Envelope, nth int) error {
			if nth == 1 {
				return errNo
			}
			return nil
		}
		stage(t, s, msgs(300, noKey)...)
		var buf bytes.Buffer
		r := newRelay(t, s, b, relay.Options{Logger: slog.New(slog.NewJSONHandler(&buf, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		stop := begin(t, r)
		within(t, time.Hour, "published", func() bool { return b.count() == 300 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		retries := map[any]int{}
		for _, l := range linesOf(t, buf.String()) {
			if l["event"] == "relay.retry" {
				retries[l["level"]]++
			}
		}
		if d := cmp.Diff(map[any]int{"WARN": 10, "DEBUG": 290}, retries); d != "" {
			t.Error(d)
		}
	})
}
