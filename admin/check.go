package admin

import (
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Bounds and defaults of the requests of operators.
const (
	DefaultPageLimit  = 100
	MaxPageLimit      = 1000
	DefaultPageBudget = 10_000
	MaxPageBudget     = 1_000_000
	// MaxFilterValues bounds the values of one field of a Filter.
	MaxFilterValues = 1000
)

// CheckList returns page with its defaults filled in, or an [*waybill.InvalidError] that lists every problem of f and
// page. Every store's List begins with it.
func CheckList(f *Filter, page PageRequest) (PageRequest, error) {
	p := page.check(f.check(nil))
	return page, waybill.Invalid("waybill: list", p...)
}

// CheckRedrive returns req with the defaults of its page filled in, and with its states if it names none, or an
// [*waybill.InvalidError] that lists every problem. Every store's Redrive begins with it. It does not change the
// argument's slices. limits are the store's.
func CheckRedrive(req RedriveRequest, limits waybill.Limits) (RedriveRequest, error) {
	var p []string
	if req.Filter.IsZero() && !req.All {
		p = append(p, "Filter: is empty, which selects every failed and abandoned record: "+
			"set All if that is meant, or name ids, reasons, topics or times")
	}
	p = req.Page.check(req.Filter.check(p))
	for _, s := range req.Filter.States {
		if s != core.StateFailed && s != core.StateAbandoned {
			p = append(p, fmt.Sprintf("Filter.States: %s records cannot be redriven; only failed and abandoned ones", s))
		}
	}
	if req.Body != nil && (len(req.Filter.Routes) != 1 || len(req.Filter.IDs) != 1) {
		p = append(p, fmt.Sprintf("Body: is for one record, but Filter has %d routes and %d ids: name one of each",
			len(req.Filter.Routes), len(req.Filter.IDs)))
	}
	if most := limits.WithDefaults().MaxMessageBytes; len(req.Body) > most {
		p = append(p, fmt.Sprintf("Body: has %d bytes; Limits.MaxMessageBytes allows %d", len(req.Body), most))
	}
	if req.InboxRetention < 0 {
		p = append(p, fmt.Sprintf("InboxRetention: %s is negative; 0 is not checked", req.InboxRetention))
	}
	if len(req.Filter.States) == 0 {
		req.Filter.States = []core.State{core.StateFailed, core.StateAbandoned}
	}
	return req, waybill.Invalid("waybill: redrive", p...)
}

// CheckBlockedKeys returns req with the default limit of a page filled in, or an [*waybill.InvalidError].
func CheckBlockedKeys(req BlockedKeysRequest) (BlockedKeysRequest, error) {
	page := PageRequest{Limit: req.Limit}
	p := page.check(nil)
	if req.Route == "" {
		p = append(p, "route: is empty; name one, such as "+waybill.DefaultRoute)
	}
	req.Limit = page.Limit
	return req, waybill.Invalid("waybill: blocked keys", p...)
}

// CheckDecide returns an [*waybill.InvalidError] if the arguments of a DecideHead are unusable.
func CheckDecide(route, key, id string, action HeadAction) error {
	var p []string
	for _, f := range [...]struct{ name, value string }{{"route", route}, {"key", key}, {"id", id}} {
		if f.value == "" {
			p = append(p, f.name+": is empty; take it from BlockedKeys")
		}
	}
	if action < HeadSkip || action > HeadRequeue {
		p = append(p, fmt.Sprintf("action: %d is none; choose HeadSkip, HeadSetAside or HeadRequeue", action))
	}
	return waybill.Invalid("waybill: decide head", p...)
}

// NotHead explains that id is not the head of key: an error that matches waybill.ErrNotFound.
func NotHead(op, route, key, id string) error {
	return &waybill.Error{Op: op, Class: waybill.ClassRejected, Err: fmt.Errorf(
		"message %q is not the head of key %q of route %q: it went on, or is due already and cannot be put back, "+
			"or another one is before it; list the blocked keys again (%w)", id, key, route, waybill.ErrNotFound)}
}

// HeadInFlight explains that a relay holds id: an error that matches waybill.ErrInFlight.
func HeadInFlight(op, route, key, id string) error {
	return &waybill.Error{Op: op, Class: waybill.ClassRejected, Err: fmt.Errorf(
		"message %q of key %q of route %q is being sent, or its relay died: "+
			"decide again when that is over (%w)", id, key, route, waybill.ErrInFlight)}
}

// HeadPending explains that the decision about id is stored, but not yet carried out: an error that matches
// waybill.ErrInFlight.
func HeadPending(op, route, key, id string) error {
	return &waybill.Error{Op: op, Class: waybill.ClassRejected, Err: fmt.Errorf(
		"the decision about message %q of key %q of route %q is stored; the relay "+
			"that owns the key carries it out when the message is not being sent: look again later (%w)", id, key, route, waybill.ErrInFlight)}
}

// HeadExpired explains that id cannot be requeued, because it would be given up again at once.
func HeadExpired(id string, expires time.Time) error {
	return waybill.Invalid("waybill: decide head", fmt.Sprintf(
		"id: message %q expired at %s and would be given up again at once: skip it, set it aside, "+
			"or redrive it with Force, which removes the expiry", id, expires.UTC().Format(time.RFC3339)))
}

// HeadDuplicate explains that id cannot be requeued, because a live message has its dedupe key.
func HeadDuplicate(id string) error {
	return waybill.Invalid("waybill: decide head", fmt.Sprintf(
		"id: a live message with the dedupe key of message %q exists: cancel that one first, "+
			"or skip this one", id))
}

// NoRecord explains that route has no record with id: an error that matches waybill.ErrNotFound.
func NoRecord(op, route, id string) error {
	return &waybill.Error{Op: op, Class: waybill.ClassRejected, Err: fmt.Errorf(
		"route %q has no message %q: it was never staged there, or was published "+
			"and deleted (%w)", route, id, waybill.ErrNotFound)}
}
