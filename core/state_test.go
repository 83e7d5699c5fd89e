package core_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var update = flag.Bool("update", false, "write docs/state-machine.md")

var allStates = []core.State{
	core.StateNone, core.StatePending, core.StateProcessing, core.StatePublished, core.StateFailed, core.StateAbandoned,
}

// TestStateMachineDoc compares docs/state-machine.md with the table; go test ./core -run StateMachineDoc -update writes
// it.
func TestStateMachineDoc(t *testing.T) { // DB-01
	t.Parallel()
	const path = "../docs/state-machine.md"
	var b bytes.Buffer
	b.WriteString(`# State machine

This page is made from the table in ` + "`core/state.go`" + ` by ` + "`go test ./core -run StateMachineDoc -update`" + `; a test compares
them.

A record is a stored message. Engines decide by this table alone; stores persist the outcome.
Stores write the number of a state, which never changes.

| state | number | terminal |
|---|---|---|
`)
	for _, s := range allStates {
		if s != core.StateNone {
			fmt.Fprintf(&b, "| %s | %d | %s |\n", s, s, map[bool]string{true: "yes", false: "no"}[s.Terminal()])
		}
	}
	b.WriteString("\n| from | event | to | note |\n|---|---|---|---|\n")
	for _, tr := range core.Transitions() {
		from := tr.From.String()
		if tr.From == core.StateNone {
			from = "–"
		}
		fmt.Fprintln(&b, strings.TrimRight(fmt.Sprintf("| %s | %s | %s | %s", from, tr.Event, tr.To, tr.Note), " ")+" |")
	}
	b.WriteString("\n```mermaid\nstateDiagram-v2\n")
	var edges []string
	for _, tr := range core.Transitions() {
		from := tr.From.String()
		if tr.From == core.StateNone {
			from = "[*]"
		}
		edges = append(edges, fmt.Sprintf("    %s --> %s: %s\n", from, tr.To, tr.Event))
	}
	b.WriteString(strings.Join(edges, ""))
	b.WriteString("    published --> [*]\n    abandoned --> [*]\n```\n")
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, b.Bytes()) {
		t.Errorf("%s is not what the table says; run go test ./core -run StateMachineDoc -update", path)
	}
}

func TestStateMachineIsSound(t *testing.T) { // DB-01
	t.Parallel()
	type edge struct {
		from  core.State
		event core.Event
	}
	seen := map[edge]bool{}
	reached := map[core.State]bool{core.StateNone: true}
	for _, tr := range core.Transitions() {
		if e := (edge{tr.From, tr.Event}); seen[e] {
			t.Errorf("%s on %s is in the table twice", tr.From, tr.Event)
		} else {
			seen[e] = true
		}
		reached[tr.To] = true
		if to, ok := core.Next(tr.From, tr.Event); !ok || to != tr.To {
			t.Errorf("Next(%s, %s) = %s, %v; want %s", tr.From, tr.Event, to, ok, tr.To)
		}
		if tr.From == core.StatePublished {
			t.Errorf("published is left on %s", tr.Event)
		}
		if tr.From == core.StateAbandoned && tr.Event != core.EventRequeued {
			t.Errorf("abandoned is left on %s, without an operator", tr.Event)
		}
	}
	for _, s := range allStates {
		if !reached[s] {
			t.Errorf("%s is never reached", s)
		}
		leaves := slices.ContainsFunc(core.Transitions(),
			func(tr core.Transition) bool { return tr.From == s && tr.Event != core.EventRequeued })
		if s.Terminal() == leaves {
			t.Errorf("%s: terminal %v, but is left by itself: %v", s, s.Terminal(), leaves)
		}
	}
	if to, ok := core.Next(core.StatePublished, core.EventHandedOut); ok {
		t.Errorf("a published record can be handed out, to %s", to)
	}
	table := core.Transitions()
	table[0].To = core.StateAbandoned
	if to, _ := core.Next(core.StateNone, core.EventStaged); to != core.StatePending {
		t.Error("the table can be changed from outside")
	}
}

func TestNamesOfUnknownNumbers(t *testing.T) {
	t.Parallel()
	if s := core.State(77).String(); s != "State(77)" {
		t.Error(s)
	}
	if s := core.Event(77).String(); s != "Event(77)" {
		t.Error(s)
	}
}

func TestOutcomes(t *testing.T) { // DB-01 DB-18
	t.Parallel()
	no := errors.New("no")
	ref := core.Ref{Route: "route", Seq: 7, ID: "id", Version: 9}
	fresh := core.Record{Ref: ref, Slot: 3, Envelope: waybill.Envelope{ID: "id", HLC: 42}}
	failed := fresh
	failed.Failed = true
	for name, tc := range map[string]struct {
		o       core.Outcome
		event   core.Event
		state   core.State
		counts  bool
		unknown bool
		err     string
		in      time.Duration
		reason  waybill.Reason
	}{
		"published": {o: core.Published(&fresh), event: core.EventConfirmed, state: core.StatePublished},
		"retry": {
			o: core.Retry(&fresh, no, time.Second), event: core.EventAttemptFailed, state: core.StateFailed,
			counts: true, err: "no", in: time.Second,
		},
		"retry without an attempt": {
			o: core.Retry(&fresh, no, time.Second).WithoutAttempt(), event: core.EventAttemptFailed, state: core.StateFailed, err: "no", in: time.Second,
		},
		"retry in the past": {
			o: core.Retry(&fresh, no, -time.Second), event: core.EventAttemptFailed, state: core.StateFailed,
			counts: true, err: "no",
		},
		"retry after unknown": {
			o: core.Retry(&fresh, no, 0).WithUnknown(), event: core.EventAttemptFailed,
			state: core.StateFailed, counts: true, err: "no", unknown: true,
		},
		"abandon": {
			o: core.Abandon(&fresh, waybill.ReasonTooLarge, no), event: core.EventGivenUp,
			state: core.StateAbandoned, counts: true, err: "no", reason: waybill.ReasonTooLarge,
		},
		"abandon for no reason": {
			o: core.Abandon(&fresh, waybill.ReasonNone, no), event: core.EventGivenUp,
			state: core.StateAbandoned, counts: true, err: "no", reason: waybill.ReasonRejected,
		},
		"abandon expired": {
			o: core.Abandon(&fresh, waybill.ReasonExpired, nil), event: core.EventGivenUp,
			state: core.StateAbandoned, reason: waybill.ReasonExpired,
		},
		"abandon crashed": {
			o: core.Abandon(&fresh, waybill.ReasonCrashed, nil), event: core.EventCrashesSpent,
			state: core.StateAbandoned, reason: waybill.ReasonCrashed,
		},
		"cancel": {
			o: core.Cancel(&fresh, waybill.ReasonSkipped), event: core.EventCancelled,
			state: core.StateAbandoned, reason: waybill.ReasonSkipped,
		},
		"release": {o: core.Release(&fresh, 0, false), event: core.EventReleased, state: core.StatePending},
		"release failed one": {
			o: core.Release(&failed, time.Minute, false), event: core.EventReleased,
			state: core.StateFailed, in: time.Minute,
		},
		"release unknown": {o: core.Release(&fresh, -1, true), event: core.EventReleased, state: core.StatePending, unknown: true},
	} {
		o := tc.o
		if o.Event() != tc.event || o.State() != tc.state || o.CountsAttempt() != tc.counts || o.Unknown() != tc.unknown ||
			o.Error() != tc.err || o.In() != tc.in || o.Reason() != tc.reason {
			t.Errorf("%s: got %s, %s, counts %v, unknown %v, error %q, due in %s, reason %q", name, o.Event(), o.State(),
				o.CountsAttempt(), o.Unknown(), o.Error(), o.In(), o.Reason())
		}
		if o.Ref() != ref || o.Slot() != 3 || o.HLC() != 42 || o.NoticeNumber() != 0 {
			t.Errorf("%s is about another record: %+v, slot %d, stamp %d, control %d", name, o.Ref(), o.Slot(), o.HLC(), o.NoticeNumber())
		}
	}
}

// A reason that a publisher or a handler made up can be stored. Else its record could not be settled, and its key would
// wait for ever.
func TestReasonsAreStorable(t *testing.T) {
	t.Parallel()
	for in, want := range map[waybill.Reason]waybill.Reason{
		waybill.ReasonForbidden: waybill.ReasonForbidden,
		"no\x00t\xff":           "no\uFFFDt\uFFFD",
		waybill.Reason(strings.Repeat("x", 100_000)): waybill.Reason(strings.Repeat("x", 255)),
	} {
		o := core.Abandon(&core.Record{}, in, nil)
		if ack := core.AckReject(&waybill.Delivery{}, in, nil); o.Reason() != want || ack.Reason != want {
			t.Errorf("%q is stored as %q, and parked as %q, want %q", in, o.Reason(), ack.Reason, want)
		}
	}
}

func TestErrorText(t *testing.T) { // DB-18
	t.Parallel()
	for in, want := range map[string]string{
		"":                              "",
		"plain":                         "plain",
		"a\x00b\xffc":                   "a�b�c",
		strings.Repeat("x", 2000):       strings.Repeat("x", core.MaxErrorBytes),
		strings.Repeat("ü", 2000):       strings.Repeat("ü", core.MaxErrorBytes/2),
		"x" + strings.Repeat("ü", 2000): "x" + strings.Repeat("ü", core.MaxErrorBytes/2-1),
	} {
		if got := core.ErrorText(errors.New(in)); got != want {
			t.Errorf("ErrorText of %d bytes has %d bytes, want %d", len(in), len(got), len(want))
		}
	}
	if got := core.ErrorText(nil); got != "" {
		t.Errorf("ErrorText(nil) = %q", got)
	}
}
