package obs

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Of each event, [Burst] lines are written in a [Window]. The next line after that says how many were not.
const (
	Burst  = 5
	Window = 10 * time.Second
)

// Suppressed is the attribute that says how many lines of the same event were not written since the one before.
const Suppressed = "suppressed"

// Logger writes log lines that have an event, and limits those that repeat. The zero value is not usable; see
// [NewLogger]. It is safe for concurrent use.
type Logger struct {
	*slog.Logger
	limits *limits
}

// NewLogger returns a logger that writes through l.
func NewLogger(l *slog.Logger) *Logger { return &Logger{l, &limits{events: map[string]*count{}}} }

// With returns a logger with more attributes. It counts repeats apart from l.
func (l *Logger) With(args ...any) *Logger { return NewLogger(l.Logger.With(args...)) }

// Event writes a line of event, which is written "component.what", unless it is a warning or more and there were too
// many of them.
func (l *Logger) Event(ctx context.Context, level slog.Level, event, text string, attrs ...slog.Attr) {
	if !l.Enabled(ctx, level) {
		return
	}
	attrs = append(attrs, slog.String("event", event))
	if level >= slog.LevelWarn {
		n, ok := l.limits.allow(time.Now(), event)
		if !ok {
			return
		}
		if n > 0 {
			attrs = append(attrs, slog.Int(Suppressed, n))
		}
	}
	l.LogAttrs(ctx, level, text, attrs...)
}

type limits struct {
	mu     sync.Mutex
	events map[string]*count
}

type count struct {
	since              time.Time
	passed, suppressed int
}

// allow reports whether a line of event may be written now, and how many were not since the last one.
func (l *limits) allow(now time.Time, event string) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.events[event]
	if c == nil {
		c = &count{since: now}
		l.events[event] = c
	}
	if now.Sub(c.since) >= Window {
		c.since, c.passed = now, 0
	}
	if c.passed >= Burst {
		c.suppressed++
		return 0, false
	}
	c.passed++
	suppressed, c.suppressed = c.suppressed, 0
	return suppressed, true
}
