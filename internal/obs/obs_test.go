package obs

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/internal/patience"
)

func TestRepeatedWarningsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		var out bytes.Buffer
		l := NewLogger(slog.New(slog.NewTextHandler(&out, nil)))
		for range Burst + 15 {
			l.Event(t.Context(), slog.LevelWarn, "x.failed", "failed")
			l.Event(t.Context(), slog.LevelInfo, "x.seen", "seen")
		}
		patience.Pass(t, Window)
		l.Event(t.Context(), slog.LevelWarn, "x.failed", "failed")
		l.Event(t.Context(), slog.LevelWarn, "x.failed", "failed")
		text := out.String()
		if n := strings.Count(text, "event=x.failed"); n != Burst+2 {
			t.Errorf("%d warnings", n)
		}
		if n := strings.Count(text, "event=x.seen"); n != Burst+15 {
			t.Errorf("%d lines that are no warnings", n)
		}
		if n := strings.Count(text, "suppressed=15"); n != 1 || strings.Count(text, Suppressed) != 1 {
			t.Errorf("what was suppressed is said %d times:\n%s", n, text)
		}
	})
}

// OP-05: at level debug nothing is left out.
func TestDebugHasWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := NewLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for range Burst + 15 {
		l.Event(t.Context(), slog.LevelWarn, "x.failed", "failed")
	}
	warnings, rest := strings.Count(out.String(), "level=WARN"), strings.Count(out.String(), "level=DEBUG")
	if warnings != Burst || rest != 15 {
		t.Errorf("%d warnings, %d lines of level debug", warnings, rest)
	}
}

// An outage that goes on for an hour, with a warning a second, takes few lines.
func TestLongRepetitionIsQuiet(t *testing.T) {
	t.Parallel()
	l, now := &Limiter{}, time.Now()
	lines, suppressed := 0, 0
	for range 3600 {
		now = now.Add(time.Second)
		if n, ok := l.Allow(now, "x.failed"); ok {
			lines++
			suppressed += n
		}
	}
	if lines < 15 || lines > 25 || lines+suppressed < 3300 {
		t.Errorf("%d lines, %d suppressed", lines, suppressed)
	}
}

func TestTraceContextTravelsWithoutAPropagator(t *testing.T) {
	t.Parallel()
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	headers := map[string]string{"a": "b"}
	c := Carried{Headers: headers}
	c.Inject(trace.ContextWithSpanContext(t.Context(), sc))
	got := trace.SpanContextFromContext(c.Extract(context.WithoutCancel(t.Context())))
	if got.TraceID() != sc.TraceID() || got.SpanID() != sc.SpanID() || !got.IsSampled() || !got.IsRemote() || len(headers) != 1 {
		t.Errorf("%+v became %+v", sc, got)
	}
}

func TestHeadersAreCopied(t *testing.T) {
	t.Parallel()
	headers := map[string]string{"a": "b", "baggage": "mine"}
	c := Carried{Headers: headers}
	c.Set("baggage", "other")
	c.Set("b3", "1")
	if len(headers) != 2 || c.Get("baggage") != "mine" || c.Get("b3") != "1" {
		t.Errorf("%v, %v", headers, c.Headers)
	}
}
