package relay

import (
	"log/slog"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/obs"
)

// debug reports whether the log wants single messages. The relay builds the lines about single messages only then.
func (e *engine) debug() bool { return e.log.Enabled(e.base, slog.LevelDebug) }

// note logs what happened to an item, at level debug.
func (e *engine) note(item *dispatch.Item, event, text string, more ...any) {
	args := append(append([]any{"event", event}, ofMessage(item)...), more...)
	e.log.DebugContext(core.ContextWithTrace(e.base, &item.Record.Envelope), text, args...)
}

// warn logs a warning about an item (nil = about no record). If there were too many of its event lately, it is a line
// of level debug.
func (e *engine) warn(item *dispatch.Item, event, text string, err error, more ...any) {
	key := event
	if item != nil {
		key += item.Route()
	}
	level := slog.LevelWarn
	suppressed, ok := e.limiter.Allow(e.now, key)
	if !ok {
		level = slog.LevelDebug
	}
	if !e.log.Enabled(e.base, level) {
		return
	}
	ctx, args := e.base, []any{"event", event}
	if item != nil {
		ctx, args = core.ContextWithTrace(ctx, &item.Record.Envelope), append(args, ofMessage(item)...)
	}
	args = append(append(args, more...), "error", core.ErrorText(err))
	if suppressed > 0 {
		args = append(args, obs.Suppressed, suppressed)
	}
	e.log.Log(ctx, level, text, args...)
}

// ofMessage names the message of item in a log line.
func ofMessage(item *dispatch.Item) []any {
	env := &item.Record.Envelope
	args := []any{"route", item.Route(), "id", env.ID, "attempt", attempt(item), "topic", env.Topic}
	if env.Key != "" {
		args = append(args, "key", env.Key)
	}
	if env.Tenant != "" {
		args = append(args, "tenant", env.Tenant)
	}
	return args
}

// noteChanges logs which members came and went, and which partitions the relay got and has no longer.
func (e *engine) noteChanges() {
	if met, gone := e.member.seen.Members(e.d.Membership().Members); len(met)+len(gone) > 0 {
		e.log.DebugContext(e.base, "members changed", "event", "relay.members", "met", met, "gone", gone, "members", len(e.d.Membership().Members))
	}
	for _, rt := range e.order {
		owned := e.d.Owned(rt.Name)
		if taken, given := e.member.seen.Partitions(rt.Name, owned); len(taken)+len(given) > 0 {
			e.log.DebugContext(e.base, "partitions changed", "event", "relay.partitions", "route", rt.Name, "taken", taken, "gone", given, "owned", len(owned))
		}
	}
}

// perRoute counts the records of a page.
func perRoute(result *core.ReadResult) map[string]int {
	n := map[string]int{}
	count := func(records []core.Record) {
		for i := range records {
			n[records[i].Route]++
		}
	}
	for i := range result.Ranges {
		count(result.Ranges[i].Records)
	}
	for i := range result.Keys {
		count(result.Keys[i].Records)
	}
	count(result.Rechecked)
	return n
}

// noteAnswer logs which records a call has read, and which outcomes it has stored.
func (e *engine) noteAnswer(s *timed) {
	for _, rt := range e.order {
		if n := s.read[rt.Name]; n > 0 {
			e.log.DebugContext(e.base, "page read", "event", "relay.read", "route", rt.Name, "records", n)
		}
	}
	for i := range s.outcomes {
		o := &s.outcomes[i]
		if o.NoticeNumber() != 0 || i >= len(s.results) {
			continue
		}
		ref := o.Ref()
		args := []any{"event", "relay.settled", "route", ref.Route, "id", ref.ID, "outcome", o.Event().String()}
		if err := s.results[i]; err != nil {
			args = append(args, "error", core.ErrorText(err))
		}
		e.log.DebugContext(e.base, "outcome stored", args...)
	}
}
