package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// overviewData is the first page.
type overviewData struct {
	Attention []attention
	Charts    []chart
	Routes    []routeRow
	Relays    []lookOf
	Parked    []parkedOf
	At        string
}

// attention is a problem that needs an operator, in words, with the address of its page.
type attention struct {
	Level, Text, Link, Action string
}

// unservedAfter is how long a due message waits on a route without a member before that is said.
const unservedAfter = 10 * time.Second

// tellEvery is how often a stream tells. It leaves the stores time to answer, so that the numbers are new each time.
const tellEvery = freshFor + 250*time.Millisecond

// liveFor bounds a stream. The browser then asks for another one, and with it whether the session still holds.
const liveFor = time.Minute

// routeRow is a route with its records by state.
type routeRow struct {
	Outbox, Route                                string
	Pending, Processing, Failed, Published, Gone int64
	Waits, Fails, Ends                           string // "~" before an estimate, ">" before a least number
	Oldest                                       time.Duration
	Status, Text                                 string // of the relay of this process
	Relay                                        bool
	Paused                                       bool
}

func (d *Dashboard) overview(w http.ResponseWriter, r *http.Request) error {
	return d.render(w, r, http.StatusOK, "overview", d.overviewNow(r))
}

func (d *Dashboard) overviewNow(r *http.Request) *overviewData {
	looks, parked, samples := d.look(r.Context())
	data := &overviewData{Relays: looks, Parked: parked, At: time.Now().Format("15:04:05"), Charts: d.charts(samples)}
	for i := range looks {
		data.Routes = append(data.Routes, looks[i].rows()...)
		data.Attention = append(data.Attention, looks[i].attention()...)
	}
	for _, p := range parked {
		switch {
		case p.Err != "":
			data.Attention = append(data.Attention, attention{"bad", fmt.Sprintf("The parked messages of %s cannot be counted: %s", p.Name, p.Err), "", ""})
		case p.Depth > 0:
			data.Attention = append(data.Attention, attention{
				"warn", fmt.Sprintf("%s of queue %s %s parked: the consumer gave up.", plural(int64(p.Depth), "message"), p.Name, isAre(int64(p.Depth))),
				"/parked?queue=" + urlquery(p.Name), lookAt(int64(p.Depth)),
			})
		}
	}
	return data
}

func (d *Dashboard) charts(samples []sample) []chart {
	waiting, age := series(samples, func(s *sample) float64 { return s.waiting }), series(samples, func(s *sample) float64 { return s.age })
	mark := ""
	if len(samples) > 0 {
		mark = samples[len(samples)-1].mark
	}
	out := []chart{
		{"Waiting", mark + count(int64(last(waiting))), "messages in the outbox", line(waiting, "messages that wait, over time")},
		{"Oldest", short(time.Duration(last(age) * float64(time.Second))), "since it was due", line(age, "age of the oldest due message, over time")},
	}
	if d.opts.Metrics == nil {
		return out
	}
	const processed = "waybill.consumer.processed"
	for _, c := range []struct {
		name  string
		total func(*sample) float64
		note  string
	}{
		{"Staged", staged, "a second, if only this process publishes"},
		{"Published", sum("waybill.relay.published"), "a second, by this process"},
		{"Processed", sum(processed+" success", processed+" duplicate"), "a second, by this process"},
		{"Failures", sum("waybill.relay.failures", processed+" retried", processed+" parked", processed+" failed"), "a second, of publishing and handling"},
	} {
		v := rates(samples, c.total)
		out = append(out, chart{c.name, rate(last(v)), c.note, line(v, c.name+" per second, over time")})
	}
	if len(samples) > 1 {
		newest, before := &samples[len(samples)-1], &samples[max(len(samples)-16, 0)]
		const name = "waybill.relay.message.age"
		p50, p99 := newest.buckets[name].quantile(before.buckets[name], 0.5), newest.buckets[name].quantile(before.buckets[name], 0.99)
		ages := make([]float64, 0, len(samples))
		for i := 1; i < len(samples); i++ {
			ages = append(ages, samples[i].buckets[name].quantile(samples[i-1].buckets[name], 0.99))
		}
		note := "from due to confirmed, p99"
		value := "–"
		if p99 > 0 {
			value = "≤\u202f" + short(time.Duration(p99*float64(time.Second)))
			note += "; p50 ≤ " + short(time.Duration(p50*float64(time.Second)))
		}
		out = append(out, chart{"Latency", value, note, line(ages, "99th percentile of the time from due to confirmed, over time")})
	}
	return out
}

// The marks before a number that is not exact. A sum has the lesser one of its parts.
const (
	leastMark    = ">"
	estimateMark = "~"
)

// about returns the mark of a sum that has mark, after c was added to it.
func about(mark string, c *admin.Count) string {
	switch {
	case c.AtLeast || mark == leastMark:
		return leastMark
	case c.Estimated:
		return estimateMark
	}
	return mark
}

// messages says how many messages there are, at the beginning of a sentence.
func messages(mark string, n int64) string {
	text := plural(n, "message")
	switch mark {
	case leastMark:
		return "More than " + text
	case estimateMark:
		return "About " + text
	}
	return text
}

func (l *lookOf) rows() []routeRow {
	byRoute := map[string]*routeRow{}
	var order []string
	at := func(route string) *routeRow {
		if byRoute[route] == nil {
			byRoute[route] = &routeRow{Outbox: l.Name, Route: route}
			order = append(order, route)
		}
		return byRoute[route]
	}
	for i := range l.Counts {
		c := &l.Counts[i]
		row := at(c.Route)
		switch c.State {
		case core.StatePending:
			row.Pending += c.N
			row.Waits = about(row.Waits, c)
		case core.StateProcessing:
			row.Processing += c.N
		case core.StateFailed:
			row.Failed += c.N
			row.Fails = about(row.Fails, c)
		case core.StatePublished:
			row.Published += c.N
		case core.StateAbandoned:
			row.Gone += c.N
			row.Ends = about(row.Ends, c)
		case core.StateNone:
		}
		if !c.State.Terminal() {
			row.Oldest = max(row.Oldest, c.Oldest)
		}
	}
	for _, c := range l.Health.Checks {
		if name, ok := strings.CutPrefix(c.Name, "route "); ok {
			row := at(name)
			row.Status, row.Text, row.Relay = string(c.Status), c.Text, true
			row.Paused = strings.HasPrefix(c.Text, "paused;") || c.Text == "paused"
		}
	}
	out := make([]routeRow, len(order))
	for i, name := range order {
		out[i] = *byRoute[name]
	}
	return out
}

// attention lists the problems of an outbox.
func (l *lookOf) attention() []attention {
	var out []attention
	if l.Err != "" {
		out = append(out, attention{"bad", fmt.Sprintf("Outbox %s does not answer: %s", l.Name, l.Err), "", ""})
	}
	if l.NoHeartbeat != "" && l.NoHeartbeat != l.Err {
		out = append(out, attention{"warn", fmt.Sprintf("The members of %s are unknown: %s", l.Name, l.NoHeartbeat), "", ""})
	}
	var dead []string
	for i := range l.Members {
		if m := &l.Members[i]; m.Dead {
			dead = append(dead, clip(m.Name, 100))
		}
	}
	if n := int64(len(dead)); n > 0 {
		out = append(out, attention{
			"bad", fmt.Sprintf("%s of %s %s silent for longer than the lease: %s. What ended or cannot reach the store hands out nothing; another member takes its partitions over, if there is one.",
				plural(n, "member"), l.Name, isAre(n), strings.Join(dead[:min(n, 3)], ", ")), "", "",
		})
	}
	link := func(of, query string) string { return "/" + of + "?outbox=" + urlquery(l.Name) + query }
	rows := l.rows()
	for i := range rows {
		if row := &rows[i]; l.Served != nil && !l.Served[row.Route] && row.Oldest >= unservedAfter {
			waiting, sum := row.Pending+row.Failed, row.Waits
			if row.Fails != "" && sum != leastMark {
				sum = row.Fails
			}
			out = append(out, attention{
				"warn", fmt.Sprintf("%s on route %s of %s %s, the oldest for %s: no member serves the route.",
					messages(sum, waiting), row.Route, l.Name, waitWaits(waiting), short(row.Oldest)),
				link("messages", "&state=pending&route="+urlquery(row.Route)), "See what waits",
			})
		}
	}
	for _, c := range l.Health.Checks {
		if c.Status == waybill.HealthOK || c.Name == "unserved" {
			continue // unserved routes are above, earlier than the relay reports them
		}
		level := "warn"
		if c.Status == waybill.HealthFailed {
			level = "bad"
		}
		a := attention{level, fmt.Sprintf("%s: %s: %s", l.Name, c.Name, c.Text), "", ""}
		if c.Name == "backlog" {
			a.Link, a.Action = link("messages", "&state=pending"), "See what waits"
		}
		out = append(out, a)
	}
	for i := range rows {
		if n := rows[i].Failed; n > 0 {
			out = append(out, attention{
				"warn", fmt.Sprintf("%s on route %s of %s failed and %s for the next attempt; later ones of the same key wait behind.", messages(rows[i].Fails, n), rows[i].Route, l.Name, waitWaits(n)),
				link("keys", "&route="+urlquery(rows[i].Route)), "See the keys",
			})
		}
	}
	for i := range l.Counts {
		c := &l.Counts[i]
		if c.State == core.StateAbandoned && c.N > 0 && !c.Reason.Cancelled() && c.Reason != waybill.ReasonSkipped {
			out = append(out, attention{
				"warn", fmt.Sprintf("%s on route %s of %s %s given up: %s.", messages(about("", c), c.N), c.Route, l.Name, isAre(c.N), reasonText(c.Reason)),
				link("messages", "&state=abandoned&route="+urlquery(c.Route)+"&reason="+urlquery(string(c.Reason))), lookAt(c.N),
			})
		}
	}
	return out
}

// live sends the changing parts of the overview as server-sent events, for a minute.
func (d *Dashboard) live(w http.ResponseWriter, r *http.Request) error {
	flusher, ok := w.(http.Flusher)
	if !ok {
		return &refused{http.StatusNotImplemented, "This server cannot stream."}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if _, err := fmt.Fprint(w, "retry: 1000\n\n"); err != nil {
		return nil // the viewer has gone
	}
	end := time.NewTimer(liveFor)
	defer end.Stop()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	t := time.NewTicker(tellEvery)
	defer t.Stop()
	for {
		if _, goesOn := d.sessions.of(sessionOf(r).cookie); !goesOn {
			return nil // the page loads the stream again, and comes to the login
		}
		var b bytes.Buffer
		if err := d.pages["overview"].ExecuteTemplate(&b, "live", d.frame(r, "overview", d.overviewNow(r))); err != nil {
			return nil // the head is sent; the page shows that the stream ended
		}
		text, err := json.Marshal(b.String())
		if err != nil {
			return nil // as above
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
			return nil // the viewer has gone
		}
		flusher.Flush()
		select {
		case <-t.C:
		case <-end.C:
			return nil
		case <-r.Context().Done():
			return nil
		}
	}
}
