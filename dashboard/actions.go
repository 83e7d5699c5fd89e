package dashboard

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/admin/audit"
	"github.com/waybill-go/waybill/core"
)

// action is an operator's request. It travels in the form of the preview, so that the confirmed action is the one that
// was shown.
type action struct {
	Name   string // redrive, purge, skip, aside, requeue, replay, purgeparked, pause, resume
	Form   filterForm
	Force  bool
	Wait   bool // purge: also what waits for a time
	Queue  string
	Parked parkedForm
	Edit   *edit // replay: another body; nil = the stored one
}

// edit is another body for one message. The hashes say which body it takes the place of.
type edit struct{ Body, Before, After string }

func hashOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// parkedForm selects parked messages.
type parkedForm struct {
	ID, Position, At, Reason, Topic, Error string
	All                                    bool
}

func (p *parkedForm) filter() (admin.ParkedFilter, error) {
	if p.ID != "" || p.Position != "" {
		r := &http.Request{Form: map[string][]string{"id": {p.ID}, "position": {p.Position}, "at": {p.At}}}
		return parkedTarget(r)
	}
	d := parkedData{Reason: p.Reason, Topic: p.Topic, Error: p.Error}
	return d.filter(), nil
}

var actionNames = map[string]string{
	"redrive": "Send again", "purge": "Delete for good", "skip": "Skip", "aside": "Put aside", "requeue": "Try again at once",
	"replay": "Replay", "purgeparked": "Delete for good", "pause": "Pause", "resume": "Resume",
}

func actionOf(r *http.Request) (*action, error) {
	a := &action{
		Name: r.PostFormValue("action"), Form: formOf(r), Force: r.PostFormValue("force") != "", Wait: r.PostFormValue("waiting") != "",
		Queue: r.PostFormValue("queue"), Parked: parkedForm{
			ID: r.PostFormValue("id"), Position: r.PostFormValue("position"), At: r.PostFormValue("at"), Reason: r.PostFormValue("reason"),
			Topic: r.PostFormValue("topic"), Error: r.PostFormValue("error"), All: r.PostFormValue("all") != "",
		},
	}
	if actionNames[a.Name] == "" {
		return nil, &notFound{"There is no such action."}
	}
	if r.PostForm.Has("body") {
		text := strings.ReplaceAll(r.PostFormValue("body"), "\r\n", "\n") // as browsers send new lines
		a.Edit = &edit{Body: text, After: hashOf([]byte(text))}
	}
	return a, nil
}

// previewData shows the effect that an action would have.
type previewData struct {
	Title, Text string
	Facts       []pair
	Danger      bool
	Nothing     bool
	Sealed      string // the action, for the form
	Seal        string // its signature: only what was shown can be done
	Anyway      []pair // the fields that ask for what is refused, too; nil = nothing is refused
}

// right is what an action takes.
func (a *action) right() Right {
	if a.Edit != nil {
		return RightEdit
	}
	return RightAct
}

func (d *Dashboard) preview(w http.ResponseWriter, r *http.Request) error {
	a, err := actionOf(r)
	if err != nil {
		return err
	}
	if err := demand(r, a.right()); err != nil {
		return err
	}
	data, err := d.dryRun(r.Context(), a)
	if err != nil {
		return err
	}
	sealed, err := json.Marshal(a)
	if err != nil {
		return err
	}
	data.Title, data.Sealed = actionNames[a.Name], string(sealed)
	data.Seal = d.seal(r, data.Sealed)
	return d.render(w, r, http.StatusOK, "preview", data)
}

// seal signs the preview that a user was shown, for that user and session only.
func (d *Dashboard) seal(r *http.Request, sealed string) string {
	s := sessionOf(r)
	return d.sessions.sign("action", s.token, s.via, s.user, sealed)
}

// dryRun returns the effect that a would have, and changes nothing.
func (d *Dashboard) dryRun(ctx context.Context, a *action) (*previewData, error) {
	if a.Edit != nil && a.Name != "replay" {
		return nil, waybill.Invalid("action", "body: is given, and the action is no replay")
	}
	switch a.Name {
	case "replay", "purgeparked":
		return d.dryParked(ctx, a)
	case "pause", "resume":
		if _, err := d.relay(a); err != nil {
			return nil, err
		}
		text := fmt.Sprintf("The relay of this process stops publishing route %s of %s. Messages wait. Other relays go on.", a.Form.Route, a.Form.Outbox)
		if a.Name == "resume" {
			text = fmt.Sprintf("The relay of this process publishes route %s of %s again.", a.Form.Route, a.Form.Outbox)
		}
		return &previewData{Text: text}, nil
	case "skip", "aside", "requeue":
		b, err := d.named(a.Form.Outbox)
		if err != nil {
			return nil, err
		}
		if inspector, ok := core.As[admin.Inspector](b.Store); ok {
			// Heads that wait are in indexes. One that is due need not be: then the decision itself finds
			// out.
			if _, err := d.inspect(ctx, inspector, b.Store, &a.Form, 0); err != nil && !errors.Is(err, errLong) {
				return nil, err
			}
		}
		return &previewData{Text: map[string]string{
			"skip":    "The message is given up, for good. Its key goes on with the next one.",
			"aside":   "The message is put aside, to be sent some day out of order. Its key goes on with the next one.",
			"requeue": "The message is tried again at once, at its place, with all its attempts.",
		}[a.Name], Facts: a.facts(), Danger: a.Name == "skip"}, nil
	}
	b, err := d.named(a.Form.Outbox)
	if err != nil {
		return nil, err
	}
	f, err := a.Form.filter()
	if err != nil {
		return nil, err
	}
	if f.IsZero() {
		return nil, waybill.Invalid("action", "filter: is empty, which means every message: choose at least a state, a route or a reason")
	}
	page := admin.PageRequest{Budget: 100_000, Limit: admin.MaxPageLimit}
	out := &previewData{Facts: a.facts()}
	if a.Name == "redrive" {
		redriver, ok := core.As[admin.Redriver](b.Store)
		if !ok {
			return nil, &notFound{"This store cannot do that."}
		}
		step, err := redriver.Redrive(ctx, admin.RedriveRequest{Filter: f, Page: page, DryRun: true, Force: a.Force, BlockAfterAbandon: b.blocks(a.Form.Route)})
		if err != nil {
			return nil, err
		}
		out.Text = fmt.Sprintf("%s would be sent again, of %s.", plural(int64(step.Changed), "message"), atLeast(step.Matched, step.Next))
		for cause, n := range step.Refused {
			out.Facts = append(out.Facts, pair{Name: "Refused", Value: fmt.Sprintf("%s: %s", count(int64(n)), refusalText(cause))})
		}
		if len(step.Refused) > 0 {
			out.Anyway = a.Form.pairs()
		}
		out.Nothing = step.Changed == 0 && step.Next == 0
		return out, nil
	}
	purger, ok := core.As[admin.Purger](b.Store)
	if !ok {
		return nil, &notFound{"This store cannot do that."}
	}
	step, err := purger.PurgeRecords(ctx, admin.PurgeRequest{Filter: f, Page: page, DryRun: true, Waiting: a.Wait})
	if err != nil {
		return nil, err
	}
	if stays := step.Matched - step.Deleted; stays > 0 {
		out.Facts = append(out.Facts, pair{Name: "Stay", Value: plural(int64(stays), "message") + " that can be sent at any time, or wait for a time and were not asked for"})
	}
	out.Danger, out.Nothing = true, step.Deleted == 0 && step.Next == 0
	out.Text = fmt.Sprintf("%s would be deleted for good, of %s. There is no way back.", plural(int64(step.Deleted), "message"), atLeast(step.Matched, step.Next))
	return out, nil
}

func (d *Dashboard) dryParked(ctx context.Context, a *action) (*previewData, error) {
	q, err := d.namedQueue(a.Queue)
	if err != nil {
		return nil, err
	}
	f, err := a.Parked.filter()
	if err != nil {
		return nil, err
	}
	if f.IsZero() && !a.Parked.All {
		return nil, waybill.Invalid("action", "filter: is empty, which means every parked message: choose some, or all")
	}
	if a.Edit != nil {
		return d.dryEdit(ctx, q, a, f)
	}
	list, err := q.Parked.ListParked(ctx, q.Name, f, admin.MaxPageLimit)
	if err != nil {
		return nil, err
	}
	n := plural(int64(len(list)), "message")
	if len(list) == admin.MaxPageLimit {
		n = "at least " + n
	}
	out := &previewData{Nothing: len(list) == 0, Danger: a.Name == "purgeparked", Facts: []pair{{Name: "Queue", Value: q.Name}}}
	out.Text = n + " would go back into the queue, as first attempts. What had its effect is recognised by the inbox."
	if out.Danger {
		out.Text = n + " would be deleted for good. There is no way back."
	}
	return out, nil
}

// dryEdit returns the effect that a replay with another body would have. It is for one message that the user has seen
// whole.
func (d *Dashboard) dryEdit(ctx context.Context, q *Queue, a *action, f admin.ParkedFilter) (*previewData, error) {
	if len(f.IDs)+len(f.Positions) == 0 {
		return nil, waybill.Invalid("action", "body: is given for several messages: name one by its id, or by its position")
	}
	p, err := q.Parked.InspectParked(ctx, q.Name, f)
	if err != nil {
		return nil, err
	}
	if !d.editable(&p) {
		return nil, &refused{http.StatusForbidden, "This body cannot be edited here: bodies are hidden or masked, or it is cut or no text."}
	}
	a.Edit.Before = hashOf(p.Envelope.Body)
	a.Parked.ID = p.Envelope.ID
	return &previewData{
		Text:  fmt.Sprintf("1 message would go back into the queue as a first attempt, with a body of %s.", plural(int64(len(a.Edit.Body)), "byte")),
		Facts: []pair{{Name: "Queue", Value: q.Name}, {Name: "Id", Value: p.Envelope.ID}, {Name: "SHA-256 before", Value: a.Edit.Before}, {Name: "SHA-256 after", Value: a.Edit.After}},
	}, nil
}

// facts lists the filters and values of an action.
func (a *action) facts() []pair {
	f := &a.Form
	all := []pair{
		{Name: "Outbox", Value: f.Outbox},
		{Name: "Route", Value: f.Route},
		{Name: "State", Value: f.State},
		{Name: "Reason", Value: f.Reason},
		{Name: "Topic", Value: f.Topic},
		{Name: "Key", Value: f.Key},
		{Name: "Tenant", Value: f.Tenant},
		{Name: "Id", Value: f.ID},
		{Name: "Since", Value: f.Since},
		{Name: "Until", Value: f.Until},
	}
	return slices.DeleteFunc(all, func(p pair) bool { return p.Value == "" })
}

func atLeast(n int, next int64) string {
	if next != 0 {
		return "at least " + plural(int64(n), "message")
	}
	if n == 1 {
		return "1 message that matches"
	}
	return plural(int64(n), "message") + " that match"
}

// relay returns the relay that serves the outbox of an action.
func (d *Dashboard) relay(a *action) (Relay, error) {
	b, err := d.named(a.Form.Outbox)
	if err != nil {
		return nil, err
	}
	if b.Relay == nil {
		return nil, &notFound{"No relay of this process serves this outbox."}
	}
	return b.Relay, nil
}

func (d *Dashboard) named(outbox string) (*Outbox, error) {
	return d.outbox(&http.Request{Form: map[string][]string{"outbox": {outbox}}})
}

func (d *Dashboard) namedQueue(queue string) (*Queue, error) {
	return d.queue(&http.Request{Form: map[string][]string{"queue": {queue}}})
}

// filter says in full what an action selects, as the query of a URL.
func (a *action) filter() string {
	q := a.Form.query()
	q.Del("outbox")
	for name, value := range map[string]string{
		"id": a.Parked.ID, "position": a.Parked.Position, "at": a.Parked.At, "reason": a.Parked.Reason, "topic": a.Parked.Topic, "error": a.Parked.Error,
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	for name, on := range map[string]bool{"force": a.Force, "waiting": a.Wait, "all": a.Parked.All} {
		if on {
			q.Set(name, "true")
		}
	}
	return q.Encode()
}

// do carries out what a preview has shown, as a job.
func (d *Dashboard) do(w http.ResponseWriter, r *http.Request) error {
	a, sealed := &action{}, r.PostFormValue("sealed")
	if !hmac.Equal([]byte(r.PostFormValue("seal")), []byte(d.seal(r, sealed))) {
		return &refused{http.StatusBadRequest, "This is not what was shown: go back, load the page again, and repeat."}
	}
	if err := json.Unmarshal([]byte(sealed), a); err != nil {
		return err
	}
	if err := demand(r, a.right()); err != nil {
		return err
	}
	j, err := d.jobs.begin(actionNames[a.Name])
	if err != nil {
		return err
	}
	who, remote := sessionOf(r), r.RemoteAddr
	ctx := context.WithoutCancel(r.Context()) // it goes on when the viewer has gone
	facts := []any{
		"job", j.id, "user", who.user, "via", who.via, "remote", remote, "client", who.from, "action", a.Name, "outbox", a.Form.Outbox, "queue", a.Queue,
		"filter", a.filter(), "all", a.Parked.All, "edited", a.Edit != nil,
	}
	if e := a.Edit; e != nil {
		facts = append(facts, "before", e.Before, "after", e.After)
	}
	d.log.InfoContext(ctx, "an operator begins", append([]any{"event", "dashboard.begin"}, facts...)...)
	entry := &audit.Entry{Act: j.id, User: who.user, Via: who.via, From: who.from, Action: a.Name, Target: a.target(), Filter: a.filter()}
	if e := a.Edit; e != nil {
		entry.Before, entry.After = e.Before, e.After
	}
	go func() {
		ctx, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		defer j.end() // after its line is in the log
		text := j.result(entry.Record(ctx, d.auditor(a), func(ctx context.Context) error {
			err := d.carryOut(ctx, a, j)
			entry.IDs, entry.Result = j.changed(), j.said()
			return err
		}))
		d.log.InfoContext(ctx, "an operator acted", append(append([]any{"event", "dashboard.action"}, facts...), "ids", j.changed(), "result", text)...)
	}()
	j.wait(r.Context(), 300*time.Millisecond) // most are done by then
	http.Redirect(w, r, d.opts.Path+"/jobs/"+j.id, http.StatusSeeOther)
	return nil
}

// target names what an action is about.
func (a *action) target() string {
	if a.Name == "replay" || a.Name == "purgeparked" {
		return "queue " + a.Queue
	}
	return "outbox " + a.Form.Outbox
}

// auditor returns the store that keeps the record of an action; nil = there is none.
func (d *Dashboard) auditor(a *action) audit.Recorder {
	onQueue := a.Name == "replay" || a.Name == "purgeparked"
	if onQueue && d.opts.Audit != nil {
		return d.opts.Audit
	}
	for i := range d.opts.Outboxes {
		if b := &d.opts.Outboxes[i]; onQueue || b.Name == a.Form.Outbox || a.Form.Outbox == "" {
			if auditor, ok := core.As[audit.Recorder](b.Store); ok {
				return auditor
			}
			if !onQueue {
				return nil
			}
		}
	}
	return nil
}

// carryOut does a, and tells j of its progress.
func (d *Dashboard) carryOut(ctx context.Context, a *action, j *job) error {
	if a.Name == "replay" || a.Name == "purgeparked" {
		return d.doParked(ctx, a, j)
	}
	b, err := d.named(a.Form.Outbox)
	if err != nil {
		return err
	}
	switch a.Name {
	case "pause", "resume":
		relay, err := d.relay(a)
		if err != nil {
			return err
		}
		if a.Name == "pause" {
			return relay.Pause(a.Form.Route)
		}
		return relay.Resume(a.Form.Route)
	case "skip", "aside", "requeue":
		keeper, ok := core.As[admin.BlockedKeys](b.Store)
		if !ok {
			return &notFound{"This store cannot do that."}
		}
		what := map[string]admin.HeadAction{"skip": admin.HeadSkip, "aside": admin.HeadSetAside, "requeue": admin.HeadRequeue}[a.Name]
		err := keeper.DecideHead(ctx, a.Form.Route, a.Form.Key, a.Form.ID, what)
		if err == nil {
			j.change(a.Form.ID)
		}
		return err
	}
	f, err := a.Form.filter()
	if err != nil {
		return err
	}
	if a.Name == "redrive" {
		redriver, ok := core.As[admin.Redriver](b.Store)
		if !ok {
			return &notFound{"This store cannot do that."}
		}
		sum, err := admin.RedriveAll(ctx, redriver, admin.RedriveRequest{Filter: f, Force: a.Force, BlockAfterAbandon: b.blocks(a.Form.Route)}, admin.RedriveOptions{
			Progress: func(sum admin.Redriven) {
				j.progress("%s sent again, %s looked at", count(int64(sum.Changed)), count(int64(sum.Matched)))
			},
		})
		j.progress("%s sent again, of %s that matched", count(int64(sum.Changed)), count(int64(sum.Matched)))
		return err
	}
	purger, ok := core.As[admin.Purger](b.Store)
	if !ok {
		return &notFound{"This store cannot do that."}
	}
	req := admin.PurgeRequest{Filter: f, Waiting: a.Wait, Page: admin.PageRequest{Limit: admin.MaxPageLimit, Budget: 100_000}}
	deleted, matched := 0, 0
	for {
		step, err := purger.PurgeRecords(ctx, req)
		if err != nil {
			return err
		}
		deleted, matched = deleted+step.Deleted, matched+step.Matched
		j.progress("%s deleted, of %s that matched", count(int64(deleted)), count(int64(matched)))
		if step.Next == 0 {
			return nil
		}
		req.Page.After = step.Next
	}
}

func (d *Dashboard) doParked(ctx context.Context, a *action, j *job) error {
	q, err := d.namedQueue(a.Queue)
	if err != nil {
		return err
	}
	f, err := a.Parked.filter()
	if err != nil {
		return err
	}
	var failed error
	req := admin.ParkedRequest{
		Queue: q.Name, Filter: f, All: a.Parked.All && f.IsZero(),
		Progress: func(looked, total int) { j.progress("%s of %s looked at", count(int64(looked)), count(int64(total))) },
		Result: func(p admin.Parked, err error) {
			if err != nil {
				failed = err
				return
			}
			j.change(p.Envelope.ID)
		},
	}
	if a.Name == "purgeparked" {
		n, err := q.Parked.PurgeParked(ctx, req)
		j.progress("%s deleted", plural(int64(n), "message"))
		return errors.Join(err, failed)
	}
	if a.Edit != nil {
		req.Limit = 1
		req.Edit = func(p admin.Parked) ([]byte, error) {
			if hashOf(p.Envelope.Body) != a.Edit.Before {
				return nil, errors.New("the message is another one than the one that was shown: load its page again")
			}
			return []byte(a.Edit.Body), nil
		}
	}
	n, err := q.Parked.ReplayParked(ctx, req)
	if a.Edit != nil && n == 0 && err == nil && failed == nil {
		return admin.NoParked("waybill/dashboard: replay", q.Name)
	}
	j.progress("%s replayed", plural(int64(n), "message"))
	return errors.Join(err, failed)
}
