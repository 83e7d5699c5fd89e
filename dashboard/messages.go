package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

const pageSize = 50

// timeouts spare the database.
type timeouts struct {
	// search is how long a search begins another step. Each step is twice as large as the one before.
	search time.Duration
	// inspect is how long one message is searched for. Then the search goes on in the list, step by step.
	inspect time.Duration
	// look is how long the overview waits for the stores.
	look time.Duration
}

var defaultTimeouts = timeouts{search: 250 * time.Millisecond, inspect: 500 * time.Millisecond, look: 3 * time.Second}

// search returns the first p.Limit records that match, or those that it finds in its time: then Next says where it
// stopped.
func (d *Dashboard) search(ctx context.Context, in admin.Inspector, f admin.Filter, p admin.PageRequest) (out admin.Listing, err error) {
	limit := p.Limit
	p.Budget = admin.DefaultPageBudget
	for began := time.Now(); ; p.Budget = min(2*p.Budget, admin.MaxPageBudget) {
		l, err := in.List(ctx, f, p)
		if err != nil {
			return out, err
		}
		if out.Records, out.Next = append(out.Records, l.Records...), l.Next; l.Next == 0 || len(out.Records) >= limit || time.Since(began) > d.timeouts.search {
			return out, nil
		}
		p.After, p.Limit = l.Next, limit-len(out.Records)
	}
}

// filterForm is a filter as a form has it.
type filterForm struct {
	Outbox, Route, State, Reason, Topic, Key, Tenant, ID, Since, Until string
}

func formOf(r *http.Request) filterForm {
	v := func(name string) string { return strings.TrimSpace(r.FormValue(name)) }
	return filterForm{
		Outbox: v("outbox"), Route: v("route"), State: v("state"), Reason: v("reason"), Topic: v("topic"), Key: v("key"), Tenant: v("tenant"),
		ID: v("id"), Since: v("since"), Until: v("until"),
	}
}

// filter returns the form as a filter.
func (f *filterForm) filter() (admin.Filter, error) {
	var out admin.Filter
	one := func(s string) []string {
		if s == "" {
			return nil
		}
		return []string{s}
	}
	out.Routes, out.Topics, out.Keys, out.Tenants, out.IDs = one(f.Route), one(f.Topic), one(f.Key), one(f.Tenant), one(f.ID)
	if f.State != "" {
		i := slices.IndexFunc(states, func(s core.State) bool { return s.String() == f.State })
		if i < 0 {
			return out, waybill.Invalid("filter", fmt.Sprintf("state: %q is unknown", clip(f.State, 60)))
		}
		out.States = []core.State{states[i]}
	}
	if f.Reason != "" {
		out.Reasons = []waybill.Reason{waybill.Reason(f.Reason)}
	}
	var err error
	if out.Since, err = parseTime(f.Since); err != nil {
		return out, err
	}
	out.Until, err = parseTime(f.Until)
	return out, err
}

var states = []core.State{core.StatePending, core.StateProcessing, core.StateFailed, core.StatePublished, core.StateAbandoned}

// parseTime reads the value of a browser's field for a time, as UTC.
func parseTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, waybill.Invalid("filter", fmt.Sprintf("time: %q is none: write 2006-01-02T15:04", clip(s, 60)))
}

// query returns the form as the query of a URL, without what is empty.
func (f *filterForm) query() url.Values {
	v := url.Values{}
	for name, value := range map[string]string{
		"outbox": f.Outbox, "route": f.Route, "state": f.State, "reason": f.Reason, "topic": f.Topic, "key": f.Key, "tenant": f.Tenant, "id": f.ID,
		"since": f.Since, "until": f.Until,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v
}

// pairs returns the form as fields, without what is empty.
func (f *filterForm) pairs() (out []pair) {
	for name, values := range f.query() {
		out = append(out, pair{Name: name, Value: values[0]})
	}
	return out
}

// messagesData is a page of messages.
type messagesData struct {
	Form    filterForm
	States  []core.State
	Reasons []waybill.Reason
	Records []admin.Stored
	Next    string // query of the next page
	Note    string
	Empty   bool // no filter at all
	Can     actionsOf
}

func (d *Dashboard) messages(w http.ResponseWriter, r *http.Request) error {
	b, err := d.outbox(r)
	if err != nil {
		return err
	}
	form := formOf(r)
	form.Outbox = b.Name
	f, err := form.filter()
	if err != nil {
		return err
	}
	after := int64(0)
	if s := r.FormValue("after"); s != "" {
		if after, err = strconv.ParseInt(s, 10, 64); err != nil {
			return waybill.Invalid("messages", "after: is no number: begin at the first page")
		}
	}
	inspector, ok := core.As[admin.Inspector](b.Store)
	if !ok {
		return &notFound{"This store cannot list its messages."}
	}
	l, err := d.search(r.Context(), inspector, f, admin.PageRequest{After: after, Limit: pageSize})
	if err != nil {
		return err
	}
	data := &messagesData{Form: form, States: states, Reasons: waybill.Reasons(), Records: l.Records, Empty: f.IsZero(), Can: d.can(r, b)}
	if l.Next != 0 {
		q := form.query()
		q.Set("after", strconv.FormatInt(l.Next, 10))
		data.Next = q.Encode()
		if len(l.Records) < pageSize {
			data.Note = fmt.Sprintf("Searched to number %s, and stopped there to spare the database.", count(l.Next))
		}
	}
	return d.render(w, r, http.StatusOK, "messages", data)
}

// actionsOf has the possible actions on the records of an outbox.
type actionsOf struct{ Redrive, Purge, Keys, Pause bool }

func (d *Dashboard) can(r *http.Request, b *Outbox) actionsOf {
	if s := sessionOf(r); !s.may(RightAct) {
		return actionsOf{}
	}
	_, redrive := core.As[admin.Redriver](b.Store)
	_, purge := core.As[admin.Purger](b.Store)
	_, keys := core.As[admin.BlockedKeys](b.Store)
	return actionsOf{redrive, purge, keys, b.Relay != nil}
}

// messageData is one message.
type messageData struct {
	Outbox  string
	S       admin.Stored
	Body    body
	Headers []pair
	Facts   []pair
	Can     actionsOf
	Ended   bool
	Waits   string // why it is not out
	Other   *admin.Stored
}

// pair is a name with a value, or with links.
type pair struct {
	Name, Value string
	Links       []link
}

type link struct{ Text, Href string }

func (d *Dashboard) message(w http.ResponseWriter, r *http.Request) error {
	b, err := d.outbox(r)
	if err != nil {
		return err
	}
	inspector, ok := core.As[admin.Inspector](b.Store)
	if !ok {
		return &notFound{"This store cannot show its messages."}
	}
	form := filterForm{Outbox: b.Name, Route: r.FormValue("route"), ID: r.FormValue("id")}
	seq, _ := strconv.ParseInt(r.FormValue("seq"), 10, 64) // 0 = unknown
	s, err := d.inspect(r.Context(), inspector, b.Store, &form, seq)
	if errors.Is(err, errLong) {
		http.Redirect(w, r, d.opts.Path+"/messages?"+form.query().Encode(), http.StatusSeeOther)
		return nil
	}
	if errors.Is(err, waybill.ErrNotFound) {
		return &notFound{"The outbox has no such message on this route any more. It was published and deleted, or purged, meanwhile."}
	}
	if err != nil {
		return err
	}
	data := &messageData{Outbox: b.Name, S: s, Body: d.show(&s.Envelope), Can: d.can(r, b), Headers: headersOf(&s.Envelope), Facts: d.factsOf(b.Name, &s.Envelope), Ended: s.State.Terminal()}
	d.explain(r.Context(), b, data)
	return d.render(w, r, http.StatusOK, "message", data)
}

// explain says why a message waits, unless the store takes long to tell.
func (d *Dashboard) explain(ctx context.Context, b *Outbox, data *messageData) {
	if data.Ended {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeouts.look)
	defer cancel()
	why, err := admin.WhyWaits(ctx, b.Store, &data.S, b.blocks(data.S.Route))
	if data.Waits, data.Other = why.String(), why.Other; err != nil {
		data.Waits = "the store could not tell: " + core.ErrorText(err)
	}
}

// errLong reports a search that would take long.
var errLong = errors.New("the search for this message takes long")

// inspect finds a record by its sequence if the store can, and else searches for it, but not for long.
func (d *Dashboard) inspect(ctx context.Context, in admin.Inspector, store core.OutboxStore, at *filterForm, seq int64) (admin.Stored, error) {
	if direct, ok := core.As[admin.SeqInspector](store); ok {
		if s, err := direct.InspectAt(ctx, at.Route, at.ID, seq); !errors.Is(err, waybill.ErrNotFound) {
			return s, err
		}
	}
	short, cancel := context.WithTimeout(ctx, d.timeouts.inspect)
	defer cancel()
	s, err := in.Inspect(short, at.Route, at.ID)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		return s, errLong
	}
	return s, err
}

func headersOf(e *waybill.Envelope) []pair {
	var out []pair
	for name, value := range e.Headers {
		out = append(out, pair{Name: name, Value: clip(value, 4096)})
	}
	slices.SortFunc(out, func(a, b pair) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// factsOf lists the attributes of an envelope that are not empty. The messages that caused it lead to outbox.
func (d *Dashboard) factsOf(outbox string, e *waybill.Envelope) []pair {
	messages := func(ids ...string) (out []link) {
		for _, id := range ids {
			if id != "" {
				f := filterForm{Outbox: outbox, ID: id}
				out = append(out, link{id, d.opts.Path + "/messages?" + f.query().Encode()})
			}
		}
		return out
	}
	all := []pair{
		{Name: "Id", Value: e.ID},
		{Name: "Topic", Value: e.Topic},
		{Name: "Type", Value: e.Type},
		{Name: "Source", Value: e.Source},
		{Name: "Subject", Value: e.Subject},
		{Name: "Time", Value: when(e.Time)},
		{Name: "Key", Value: e.Key},
		{Name: "Tenant", Value: e.Tenant},
		{Name: "Content type", Value: e.ContentType},
		{Name: "Correlation", Value: e.CorrelationID},
		{Name: "Caused by", Links: messages(e.CausationID)},
		{Name: "Chain of causes", Links: messages(e.Lineage...)},
		{Name: "Run", Value: e.RunID},
		{Name: "Expires", Value: when(e.Expires)},
		{Name: "Trace", Value: e.TraceParent},
	}
	if !e.HLC.IsZero() {
		all = append(all, pair{Name: "HLC", Value: e.HLC.String()})
	}
	return slices.DeleteFunc(all, func(p pair) bool { return p.Value == "" && len(p.Links) == 0 })
}
