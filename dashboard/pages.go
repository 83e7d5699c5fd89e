package dashboard

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// maxRoutes is how many routes one page of blocked keys covers.
const maxRoutes = 20

// keysData are the blocked keys of an outbox.
type keysData struct {
	Outbox, Route string // of all known routes if Route is empty
	Routes        []string
	Keys          []admin.BlockedKey
	More          []keysAfter
	Can           actionsOf
}

// keysAfter is where the keys of a route go on.
type keysAfter struct{ Route, After string }

func (d *Dashboard) keys(w http.ResponseWriter, r *http.Request) error {
	b, err := d.outbox(r)
	if err != nil {
		return err
	}
	keeper, ok := core.As[admin.BlockedKeys](b.Store)
	if !ok {
		return &notFound{"This store cannot list blocked keys."}
	}
	data := &keysData{Outbox: b.Name, Route: r.FormValue("route"), Routes: d.routesOf(r, b.Name), Can: d.can(r, b)}
	routes := data.Routes[:min(len(data.Routes), maxRoutes)]
	if data.Route != "" {
		routes = []string{data.Route}
	}
	for _, route := range routes {
		req := admin.BlockedKeysRequest{Route: route, BlockAfterAbandon: b.blocks(route), After: r.FormValue("after"), Limit: pageSize}
		keys, more, err := keeper.BlockedKeys(r.Context(), req)
		if err != nil {
			return err
		}
		if data.Keys = append(data.Keys, keys...); more && len(keys) > 0 {
			data.More = append(data.More, keysAfter{route, keys[len(keys)-1].Key})
		}
	}
	return d.render(w, r, http.StatusOK, "keys", data)
}

// routesOf names the routes of an outbox that are known.
func (d *Dashboard) routesOf(r *http.Request, outbox string) []string {
	looks, _, _ := d.look(r.Context())
	var out []string
	for i := range looks {
		if looks[i].Name == outbox {
			for _, row := range looks[i].rows() {
				out = append(out, row.Route)
			}
		}
	}
	slices.Sort(out)
	return out
}

// parkedData are the parked messages of a queue.
type parkedData struct {
	Queue  string
	Depth  int
	Counts []reasonCount
	Reason string
	Topic  string
	Error  string
	List   []admin.Parked
	Can    bool
}

type reasonCount struct {
	Reason waybill.Reason
	N      int
}

func (d *Dashboard) parked(w http.ResponseWriter, r *http.Request) error {
	q, err := d.queue(r)
	if err != nil {
		return err
	}
	who := sessionOf(r)
	data := &parkedData{Queue: q.Name, Reason: r.FormValue("reason"), Topic: r.FormValue("topic"), Error: r.FormValue("error"), Can: who.may(RightAct)}
	if data.Depth, err = q.Parked.ParkedDepth(r.Context(), q.Name); err != nil {
		return err
	}
	if data.Depth > 0 {
		if data.List, err = q.Parked.ListParked(r.Context(), q.Name, data.filter(), pageSize); err != nil {
			return err
		}
	}
	seen := map[waybill.Reason]int{}
	for i := range data.List {
		seen[data.List[i].Reason]++
	}
	for reason, n := range seen {
		data.Counts = append(data.Counts, reasonCount{reason, n})
	}
	slices.SortFunc(data.Counts, func(a, b reasonCount) int { return b.N - a.N })
	return d.render(w, r, http.StatusOK, "parked", data)
}

func (p *parkedData) filter() admin.ParkedFilter {
	f := admin.ParkedFilter{Error: p.Error}
	if p.Reason != "" {
		f.Reasons = []waybill.Reason{waybill.Reason(p.Reason)}
	}
	if p.Topic != "" {
		f.Topics = []string{p.Topic}
	}
	return f
}

// parkedMessageData is one parked message.
type parkedMessageData struct {
	P       admin.Parked
	At      string // RFC 3339, for the forms
	Body    body
	Raw     string // for editing
	Headers []pair
	Facts   []pair
	Can     bool
	Edit    bool
}

func (d *Dashboard) parkedMessage(w http.ResponseWriter, r *http.Request) error {
	q, err := d.queue(r)
	if err != nil {
		return err
	}
	f, err := parkedTarget(r)
	if err != nil {
		return err
	}
	p, err := q.Parked.InspectParked(r.Context(), q.Name, f)
	if err != nil {
		return err
	}
	who := sessionOf(r)
	data := &parkedMessageData{
		P: p, At: p.At.Format(time.RFC3339Nano), Body: d.show(&p.Envelope), Headers: headersOf(&p.Envelope), Facts: d.factsOf("", &p.Envelope), Can: who.may(RightAct),
	}
	data.Edit = who.may(RightEdit) && d.editable(&p)
	if data.Edit {
		data.Raw = string(p.Envelope.Body)
	}
	return d.render(w, r, http.StatusOK, "parkedmessage", data)
}

// editable reports whether the body of a message can be replaced here. A body that is hidden, masked, cut or no text
// cannot be, and browsers do not keep a carriage return.
func (d *Dashboard) editable(p *admin.Parked) bool {
	kind := d.show(&p.Envelope).Kind
	return d.opts.ShowBodies && d.opts.Mask == nil && len(p.Envelope.Body) <= maxBody && (kind == "json" || kind == "text") &&
		!bytes.ContainsRune(p.Envelope.Body, '\r')
}

// parkedTarget is the filter for one parked message: by id, or by place and time if it has none.
func parkedTarget(r *http.Request) (admin.ParkedFilter, error) {
	if id := r.FormValue("id"); id != "" {
		return admin.ParkedFilter{IDs: []string{id}}, nil
	}
	n, err := strconv.Atoi(r.FormValue("position"))
	if err != nil || n < 1 {
		return admin.ParkedFilter{}, &notFound{"Name a parked message by its id, or by its position."}
	}
	f := admin.ParkedFilter{Positions: []int{n}}
	if at, err := time.Parse(time.RFC3339Nano, r.FormValue("at")); err == nil {
		f.Since, f.Until = at, at.Add(1)
	}
	return f, nil
}

// scheduleData is what is due later.
type scheduleData struct {
	Outbox  string
	Records []admin.Stored
	Note    string
}

func (d *Dashboard) schedule(w http.ResponseWriter, r *http.Request) error {
	b, err := d.outbox(r)
	if err != nil {
		return err
	}
	inspector, ok := core.As[admin.Inspector](b.Store)
	if !ok {
		return &notFound{"This store cannot list its messages."}
	}
	data := &scheduleData{Outbox: b.Name}
	page := admin.PageRequest{Limit: admin.MaxPageLimit}
	l, err := inspector.List(r.Context(), admin.Filter{States: []core.State{core.StatePending, core.StateFailed}}, page)
	if err != nil {
		return err
	}
	for i := range l.Records {
		if l.Records[i].DueIn > 0 {
			data.Records = append(data.Records, l.Records[i])
		}
	}
	slices.SortFunc(data.Records, func(a, b admin.Stored) int { return int((a.DueIn - b.DueIn) / time.Millisecond) })
	if len(data.Records) > 100 {
		data.Records = data.Records[:100]
	}
	if l.Next != 0 {
		data.Note = "Only the first " + count(admin.MaxPageLimit) + " waiting messages were looked at, in the order in which they were staged."
	}
	return d.render(w, r, http.StatusOK, "schedule", data)
}
