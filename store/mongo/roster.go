package mongo

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/core"
)

// maxUnserved bounds Roster.Unserved.
const maxUnserved = 100

// routeDoc is a document of the routes collection: the units of a route, and the facts that its next ones begin with
// after a time without members.
type routeDoc struct {
	Route   string    `bson:"_id"`
	Units   []unitDoc `bson:"units"`
	Low     int64     `bson:"low"`
	Careful int64     `bson:"careful"`
	Term    int64     `bson:"term"`
}

type unitDoc struct {
	From    int32 `bson:"from"`
	To      int32 `bson:"to"`
	Owner   int64 `bson:"owner"`
	Term    int64 `bson:"term"`
	Low     int64 `bson:"low"`
	Careful int64 `bson:"careful"`
}

// routeDocs reads the documents of routes; nil = of all.
func (w *work) routeDocs(ctx context.Context, routes []string) (map[string]*routeDoc, error) {
	filter := bson.M{}
	if routes != nil {
		filter["_id"] = bson.M{"$in": routes}
	}
	cur, err := w.s.routes.Find(ctx, filter)
	if err != nil {
		return nil, err
	}
	var all []*routeDoc
	if err := cur.All(ctx, &all); err != nil {
		return nil, err
	}
	out := map[string]*routeDoc{}
	for _, d := range all {
		out[d.Route] = d
	}
	return out, nil
}

// owned returns the slots of routes that self owns.
func (w *work) owned(ctx context.Context, self core.Session, routes []string) (map[string]core.Slots, error) {
	own := map[string]core.Slots{}
	if len(routes) == 0 {
		return own, nil
	}
	docs, err := w.routeDocs(ctx, routes)
	if err != nil {
		return nil, err
	}
	for _, d := range docs {
		own[d.Route] = d.slotsOf(self)
	}
	return own, nil
}

func (d *routeDoc) slotsOf(self core.Session) (own core.Slots) {
	for i := range d.Units {
		if u := &d.Units[i]; u.Owner == int64(self) {
			own |= core.SlotRange(uint8(u.From), uint8(u.To))
		}
	}
	return own
}

func (d *routeDoc) unit(u core.Unit) *unitDoc {
	for i := range d.Units {
		if v := &d.Units[i]; v.From == int32(u.From) && v.To == int32(u.To) {
			return v
		}
	}
	return nil
}

// Kept is of [rules.Membership]. Save writes the document whole.
func (t *meeting) Kept(_ context.Context, route string) (core.OwnedUnit, error) {
	if d := t.routes[route]; d != nil {
		return core.OwnedUnit{Low: d.Low, Careful: d.Careful, Term: d.Term}, nil
	}
	return core.OwnedUnit{}, nil
}

// Save is of [rules.Membership].
func (t *meeting) Save(ctx context.Context, units []core.OwnedUnit) error {
	docs := map[string]*routeDoc{}
	for _, u := range units {
		docs[u.Unit.Route] = &routeDoc{Route: u.Unit.Route}
	}
	for _, u := range t.roster.Units {
		if d := docs[u.Unit.Route]; d != nil {
			d.Units = append(d.Units, unitDoc{int32(u.Unit.From), int32(u.Unit.To), int64(u.Owner), u.Term, u.Low, u.Careful})
		}
	}
	var models []driver.WriteModel
	for route, d := range docs {
		models = append(models, driver.NewReplaceOneModel().SetFilter(bson.M{"_id": route}).SetReplacement(d).SetUpsert(true))
	}
	_, err := t.s.routes.BulkWrite(ctx, models)
	return raced(err)
}

// Retire is of [rules.Membership].
func (t *meeting) Retire(ctx context.Context, kept core.OwnedUnit) error {
	d := routeDoc{Route: kept.Unit.Route, Low: kept.Low, Careful: kept.Careful, Term: kept.Term}
	_, err := t.s.routes.ReplaceOne(ctx, bson.M{"_id": d.Route}, d, options.Replace().SetUpsert(true))
	return raced(err)
}

// rosterOf returns the members, and the units with their owners.
func rosterOf(members map[int64]*memberDoc, routes map[string]*routeDoc) (out core.Roster) {
	for _, d := range members {
		m := core.Member{
			Session: core.Session(d.Session), Name: d.Name, Beat: d.Beat, Lease: time.Duration(d.Lease) * time.Microsecond,
			Presence: d.Presence, Handlers: d.Handlers, Free: d.Free, Flag: d.Flag,
		}
		for _, sv := range d.Serves {
			m.Serves = append(m.Serves, core.Serving(sv))
		}
		out.Members = append(out.Members, m)
	}
	slices.SortFunc(out.Members, func(a, b core.Member) int { return cmp.Compare(a.Session, b.Session) })
	for _, d := range routes {
		for i := range d.Units {
			u := &d.Units[i]
			out.Units = append(out.Units, core.OwnedUnit{
				Unit:  core.Unit{Route: d.Route, From: uint8(u.From), To: uint8(u.To)},
				Owner: core.Session(u.Owner), Term: u.Term, Low: u.Low, Careful: u.Careful,
			})
		}
	}
	slices.SortFunc(out.Units, func(a, b core.OwnedUnit) int {
		return cmp.Or(cmp.Compare(a.Unit.Route, b.Unit.Route), cmp.Compare(a.Unit.From, b.Unit.From))
	})
	return out
}

// text differs in another database, and after a restore that was declared.
func (d *epochDoc) text() string { return d.Database + "/" + strconv.FormatInt(d.Epoch, 10) }

// unserved returns the routes with due records and no unit, outside of any transaction.
func (s *Store) unserved(ctx context.Context, units []core.OwnedUnit) (out []string, err error) {
	routes, err := s.routeNames(ctx)
	if err != nil {
		return nil, err
	}
	served := map[string]bool{}
	for i := range units {
		served[units[i].Unit.Route] = true
	}
	w := work{s: s}
	for _, route := range routes {
		if served[route] || len(out) == maxUnserved {
			continue
		}
		if w.now.IsZero() {
			if err := w.clock(ctx); err != nil {
				return nil, err
			}
		}
		any := bson.M{"route": route, "$or": bson.A{
			bson.M{"phase": phaseReady}, bson.M{"phase": bson.M{"$in": bson.A{phaseTimer, phaseRetry}}, "due": bson.M{"$lte": w.now}},
		}}
		n, err := s.outbox.CountDocuments(ctx, any, options.Count().SetLimit(1))
		if err != nil {
			return nil, err
		}
		if n > 0 {
			out = append(out, route)
		}
	}
	return out, nil
}

// told reports whether there are control records on one of the routes.
func (s *Store) told(ctx context.Context, serves []core.Serving) (bool, error) {
	if len(serves) == 0 {
		return false, nil
	}
	routes := make([]string, len(serves))
	for i := range serves {
		routes[i] = serves[i].Route
	}
	n, err := s.control.CountDocuments(ctx, bson.M{"route": bson.M{"$in": routes}}, options.Count().SetLimit(1))
	return n > 0, err
}

// routeNames returns the routes that have records.
func (s *Store) routeNames(ctx context.Context) (names []string, err error) {
	if err := s.outbox.Distinct(ctx, "route", bson.M{}).Decode(&names); err != nil {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}
