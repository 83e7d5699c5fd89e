package core_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

func newStamper(tb testing.TB, change func(o *core.StamperOptions)) *core.Stamper {
	tb.Helper()
	opts := core.StamperOptions{Source: "/test"}
	if change != nil {
		change(&opts)
	}
	s, err := core.NewStamper(opts)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestLimitsAreChecked(t *testing.T) { // ST-15
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s := newStamper(t, func(o *core.StamperOptions) {
		o.Now = func() time.Time { return now }
		o.Limits = waybill.Limits{MaxMessageBytes: 5000, MaxHeaders: 3, MaxHeaderBytes: 50, MaxDelay: 24 * time.Hour}
	})
	long := strings.Repeat("x", 256)
	empty, err := s.Stamp(t.Context(), []waybill.Message{waybill.RawMessage("topic", "text/plain", nil)})
	if err != nil {
		t.Fatal(err)
	}
	rest := empty[0].Envelope.Size() // all but the body
	for name, tc := range map[string]struct {
		field string // at the start of the problem; empty = fine
		set   func(m *waybill.Message)
	}{
		"fine":                       {"", func(*waybill.Message) {}},
		"message of 5000 bytes":      {"", func(m *waybill.Message) { m.Body = make([]byte, 5000-rest) }},
		"message of 5001 bytes":      {fmt.Sprintf("Body: has %d bytes, and the whole message 5001", 5001-rest), func(m *waybill.Message) { m.Body = make([]byte, 5001-rest) }},
		"no topic":                   {"Topic", func(m *waybill.Message) { m.Topic = "" }},
		"topic with an empty word":   {"Topic", func(m *waybill.Message) { m.Topic = "a..b" }},
		"topic that ends with a dot": {"Topic", func(m *waybill.Message) { m.Topic = "a." }},
		"wildcard topic":             {"Topic", func(m *waybill.Message) { m.Topic = "a.*" }},
		"hash topic":                 {"Topic", func(m *waybill.Message) { m.Topic = "a.#" }},
		"topic with a space":         {"Topic", func(m *waybill.Message) { m.Topic = "orders placed!" }},
		"source with a space":        {"Source", func(m *waybill.Message) { m.Source = "orders service" }},
		"source with an umlaut":      {"Source", func(m *waybill.Message) { m.Source = "/größe" }},
		"source that is a URL":       {"", func(m *waybill.Message) { m.Source = "https://orders.example/a%20b?x=1#y" }},
		"long topic":                 {"Topic", func(m *waybill.Message) { m.Topic = long }},
		"name of 255 bytes":          {"", func(m *waybill.Message) { m.ID = long[:255] }},
		"long id":                    {"ID", func(m *waybill.Message) { m.ID = long }},
		"long type":                  {"Type", func(m *waybill.Message) { m.Type = long }},
		"long source":                {"Source", func(m *waybill.Message) { m.Source = long }},
		"long subject":               {"Subject", func(m *waybill.Message) { m.Subject = long }},
		"long content type":          {"ContentType", func(m *waybill.Message) { m.ContentType = long }},
		"long key":                   {"Key", func(m *waybill.Message) { m.Key = long }},
		"long tenant":                {"Tenant", func(m *waybill.Message) { m.Tenant = long }},
		"long correlation id":        {"CorrelationID", func(m *waybill.Message) { m.CorrelationID = long }},
		"long causation id":          {"CausationID", func(m *waybill.Message) { m.CausationID = long }},
		"long run id":                {"RunID", func(m *waybill.Message) { m.RunID = long }},
		"key with a bad rune":        {"Key", func(m *waybill.Message) { m.Key = "a\xff" }},
		"key with NUL":               {"Key", func(m *waybill.Message) { m.Key = "a\x00" }},
		"key with a line break":      {"Key", func(m *waybill.Message) { m.Key = "a\n" }},
		"empty route":                {"Routes[1]", func(m *waybill.Message) { m.Routes = []string{"a", ""} }},
		"long route":                 {"Routes[0]", func(m *waybill.Message) { m.Routes = []string{long} }},
		"lineage of 32":              {"", func(m *waybill.Message) { m.Lineage = make([]string, 32) }},
		"lineage of 33":              {"Lineage", func(m *waybill.Message) { m.Lineage = make([]string, 33) }},
		"priority":                   {"Priority", func(m *waybill.Message) { m.Priority = 10 }},
		"three headers":              {"", func(m *waybill.Message) { m.Headers = map[string]string{"a": "", "b": "", "c": ""} }},
		"four headers": {"Headers: 4", func(m *waybill.Message) {
			m.Headers = map[string]string{
				"a": "", "b": "",
				"c": "", "d": "",
			}
		}},
		"header bytes":           {"Headers: 51 bytes", func(m *waybill.Message) { m.Headers = map[string]string{"a": long[:50]} }},
		"header without a name":  {"Headers", func(m *waybill.Message) { m.Headers = map[string]string{"": "v"} }},
		"header with a bad name": {"Headers", func(m *waybill.Message) { m.Headers = map[string]string{"a\n": "v"} }},
		"header with a bad rune": {"Headers", func(m *waybill.Message) { m.Headers = map[string]string{"a": "\xff"} }},
		"header with NUL":        {"Headers", func(m *waybill.Message) { m.Headers = map[string]string{"a": "\x00"} }},
		"reserved header":        {"Headers", func(m *waybill.Message) { m.Headers = map[string]string{"TraceParent": "v"} }},
		"reserved prefix":        {"Headers", func(m *waybill.Message) { m.Headers = map[string]string{"CE-foo": "v"} }},
		"time and delay":         {"DeliverAt", func(m *waybill.Message) { m.Delay, m.DeliverAt = 1, now }},
		"expiry and TTL":         {"Expires", func(m *waybill.Message) { m.TTL, m.Expires = 1, now.Add(time.Hour) }},
		"negative delay":         {"Delay", func(m *waybill.Message) { m.Delay = -1 }},
		"delay at the limit":     {"", func(m *waybill.Message) { m.Delay = 24 * time.Hour }},
		"delay above the limit":  {"Delay", func(m *waybill.Message) { m.Delay = 24*time.Hour + 1 }},
		"due in the past":        {"", func(m *waybill.Message) { m.DeliverAt = now.AddDate(-1, 0, 0) }},
		"due in the far past":    {"DeliverAt", func(m *waybill.Message) { m.DeliverAt = time.Unix(0, 0) }},
		"due in the far future":  {"DeliverAt", func(m *waybill.Message) { m.DeliverAt = now.AddDate(1000, 0, 0) }},
		"expired":                {"Expires", func(m *waybill.Message) { m.Expires = now }},
		"time beyond year 9999":  {"Time", func(m *waybill.Message) { m.Time = now.AddDate(9000, 0, 0) }},
		"value that cannot encode": {"Body", func(m *waybill.Message) {
			*m = waybill.NewTopic("t", waybill.JSON[func()]()).Message(nil)
		}},
		"topic without a codec": {"Body", func(m *waybill.Message) { *m = waybill.NewTopic[int]("t", nil).Message(1) }},
	} {
		m := waybill.RawMessage("topic", "text/plain", []byte("x"))
		tc.set(&m)
		_, err := s.Stamp(t.Context(), []waybill.Message{m})
		var invalid *waybill.InvalidError
		switch {
		case tc.field == "":
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case !errors.Is(err, waybill.ErrInvalid) || !errors.As(err, &invalid):
			t.Errorf("%s: got %v, want an InvalidError", name, err)
		case len(invalid.Problems) != 1 || !strings.HasPrefix(invalid.Problems[0], tc.field):
			t.Errorf("%s: got %q, want one problem with %s", name, invalid.Problems, tc.field)
		}
	}
}

func TestAllProblemsAreReportedAtOnce(t *testing.T) { // ST-15
	t.Parallel()
	s := newStamper(t, nil)
	good := waybill.RawMessage("topic", "", nil)
	bad := waybill.RawMessage("", "", nil, waybill.Key("\xff"), waybill.Priority(11))
	_, err := s.Stamp(t.Context(), []waybill.Message{good, bad, bad})
	var invalid *waybill.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Problems) != 6 {
		t.Fatalf("got %v, want six problems", err)
	}
	for i, want := range []string{"messages[1].Topic", "messages[1].Key", "messages[1].Priority", "messages[2].Topic"} {
		if !strings.HasPrefix(invalid.Problems[i], want) {
			t.Errorf("problem %d is %q, want one with %s", i, invalid.Problems[i], want)
		}
	}
	many := make([]waybill.Message, 100)
	if _, err := s.Stamp(t.Context(), many); !errors.As(err, &invalid) || len(invalid.Problems) > 25 {
		t.Errorf("100 bad messages give %d problems", len(invalid.Problems))
	}
	many = make([]waybill.Message, waybill.MaxMessages+1)
	for i := range many {
		many[i] = good
	}
	if _, err := s.Stamp(t.Context(), many); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("%d messages in one call: %v", len(many), err)
	}
}

func TestStamperOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := core.NewStamper(core.StamperOptions{TTL: -1, Limits: waybill.Limits{MaxMessageBytes: 1 << 30, MaxHeaders: -1}})
	var invalid *waybill.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Problems) != 4 {
		t.Errorf("got %v, want four problems", err)
	}
}

func TestInvalidIsNilWithoutProblems(t *testing.T) {
	t.Parallel()
	if err := waybill.Invalid("subject"); err != nil {
		t.Error(err)
	}
}
