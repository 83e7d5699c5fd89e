package obs

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Of each event, [Burst] lines are written in a [Window]. While it goes on repeating, one line is written in windows
// that double, up to [MaxWindow]. The next line that is written says how many were not.
const (
	Burst     = 10
	Window    = 20 * time.Second
	MaxWindow = 5 * time.Minute
)

// Suppressed is the attribute with the number of lines of the same event that were suppressed since the line before.
const Suppressed = "suppressed"

// Logger writes log lines with an event, and limits repeated ones. The zero value is not usable; see [NewLogger]. It is
// safe for concurrent use.
type Logger struct {
	*slog.Logger
	limits Limiter
}

// NewLogger returns a logger that writes through l.
func NewLogger(l *slog.Logger) *Logger { return &Logger{Logger: l} }

// With returns a logger with more attributes. It counts repeats apart from l.
func (l *Logger) With(args ...any) *Logger { return NewLogger(l.Logger.With(args...)) }

// Event writes a line of event, which has the form "component.verb". If there were too many of the event, a line of
// level warning or higher is one of level debug.
func (l *Logger) Event(ctx context.Context, level slog.Level, event, text string, attrs ...slog.Attr) {
	if !l.Enabled(ctx, level) {
		return
	}
	attrs = append(attrs, slog.String("event", event))
	if level >= slog.LevelWarn {
		n, ok := l.limits.Allow(time.Now(), event)
		if !ok {
			level = slog.LevelDebug
		}
		if n > 0 {
			attrs = append(attrs, slog.Int(Suppressed, n))
		}
	}
	l.LogAttrs(ctx, level, text, attrs...) // does nothing if the level is off
}

// Limiter counts lines by event. Its zero value is ready. It is safe for concurrent use.
type Limiter struct {
	mu     sync.Mutex
	events map[string]*count
}

type count struct {
	since, last               time.Time
	window                    time.Duration
	burst, passed, suppressed int
}

// Allow reports whether a line of event may be written now, and how many were not since the last one.
func (l *Limiter) Allow(now time.Time, event string) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.events[event]
	if c == nil {
		if l.events == nil {
			l.events = map[string]*count{}
		}
		c = &count{}
		l.events[event] = c
	}
	switch {
	case now.Sub(c.last) >= Window: // it is new, or was quiet
		c.since, c.window, c.burst, c.passed = now, Window, Burst, 0
	case now.Sub(c.since) < c.window:
	case c.suppressed > 0:
		c.since, c.window, c.burst, c.passed = now, min(2*c.window, MaxWindow), 1, 0
	default:
		c.since, c.window, c.burst, c.passed = now, Window, Burst, 0
	}
	c.last = now
	if c.passed >= c.burst {
		c.suppressed++
		return 0, false
	}
	c.passed++
	suppressed, c.suppressed = c.suppressed, 0
	return suppressed, true
}
