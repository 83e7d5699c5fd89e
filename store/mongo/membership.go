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

// routeDoc is a document of the routes collection: the partitions of a route, and the facts that its next ones begin
// with after a time without members.
type routeDoc struct {
	Route        string         `bson:"_id"`
	Partitions   []partitionDoc `bson:"partitions"`
	ReadAfter    int64          `bson:"read_after"`
	MaybeOutUpTo int64          `bson:"uncertain_up_to"`
	Term         int64          `bson:"term"`
}

type partitionDoc struct {
	From         int32 `bson:"from"`
	To           int32 `bson:"to"`
	Owner        int64 `bson:"owner"`
	Term         int64 `bson:"term"`
	ReadAfter    int64 `bson:"read_after"`
	MaybeOutUpTo int64 `bson:"uncertain_up_to"`
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
	for i := range d.Partitions {
		if u := &d.Partitions[i]; u.Owner == int64(self) {
			own |= core.SlotRange(uint8(u.From), uint8(u.To))
		}
	}
	return own
}

func (d *routeDoc) partition(u core.Partition) *partitionDoc {
	for i := range d.Partitions {
		if v := &d.Partitions[i]; v.From == int32(u.From) && v.To == int32(u.To) {
			return v
		}
	}
	return nil
}

// Kept is of [rules.MembershipTx]. Save writes the document whole.
func (t *heartbeatTx) Kept(_ context.Context, route string) (core.PartitionState, error) {
	if d := t.routes[route]; d != nil {
		return core.PartitionState{ReadAfter: d.ReadAfter, MaybeOutUpTo: d.MaybeOutUpTo, Term: d.Term}, nil
	}
	return core.PartitionState{}, nil
}

// Save is of [rules.MembershipTx].
func (t *heartbeatTx) Save(ctx context.Context, partitions []core.PartitionState) error {
	docs := map[string]*routeDoc{}
	for _, u := range partitions {
		docs[u.Partition.Route] = &routeDoc{Route: u.Partition.Route}
	}
	for _, u := range t.membership.Partitions {
		if d := docs[u.Partition.Route]; d != nil {
			d.Partitions = append(d.Partitions, partitionDoc{int32(u.Partition.From), int32(u.Partition.To), int64(u.Owner), u.Term, u.ReadAfter, u.MaybeOutUpTo})
		}
	}
	var models []driver.WriteModel
	for route, d := range docs {
		models = append(models, driver.NewReplaceOneModel().SetFilter(bson.M{"_id": route}).SetReplacement(d).SetUpsert(true))
	}
	_, err := t.s.routes.BulkWrite(ctx, models)
	return raced(err)
}

// Retire is of [rules.MembershipTx].
func (t *heartbeatTx) Retire(ctx context.Context, kept core.PartitionState) error {
	d := routeDoc{Route: kept.Partition.Route, ReadAfter: kept.ReadAfter, MaybeOutUpTo: kept.MaybeOutUpTo, Term: kept.Term}
	_, err := t.s.routes.ReplaceOne(ctx, bson.M{"_id": d.Route}, d, options.Replace().SetUpsert(true))
	return raced(err)
}

// membershipOf returns the members, and the partitions with their owners.
func membershipOf(members map[int64]*memberDoc, routes map[string]*routeDoc) (out core.Membership) {
	for _, d := range members {
		m := core.Member{
			Session: core.Session(d.Session), Name: d.Name, Heartbeats: d.Heartbeats, Lease: time.Duration(d.Lease) * time.Microsecond,
			Presence: d.Presence, Capacity: d.Capacity, FreeCapacity: d.FreeCapacity, Suspected: d.Suspected,
		}
		for _, sv := range d.Routes {
			m.Routes = append(m.Routes, core.ServedRoute(sv))
		}
		out.Members = append(out.Members, m)
	}
	slices.SortFunc(out.Members, func(a, b core.Member) int { return cmp.Compare(a.Session, b.Session) })
	for _, d := range routes {
		for i := range d.Partitions {
			u := &d.Partitions[i]
			out.Partitions = append(out.Partitions, core.PartitionState{
				Partition: core.Partition{Route: d.Route, From: uint8(u.From), To: uint8(u.To)},
				Owner:     core.Session(u.Owner), Term: u.Term, ReadAfter: u.ReadAfter, MaybeOutUpTo: u.MaybeOutUpTo,
			})
		}
	}
	slices.SortFunc(out.Partitions, func(a, b core.PartitionState) int {
		return cmp.Or(cmp.Compare(a.Partition.Route, b.Partition.Route), cmp.Compare(a.Partition.From, b.Partition.From))
	})
	return out
}

// text differs in another database, and after a restore that was declared.
func (d *epochDoc) text() string { return d.Database + "/" + strconv.FormatInt(d.Epoch, 10) }

// hasNotices reports whether there are notices on one of the routes.
func (s *Store) hasNotices(ctx context.Context, served []core.ServedRoute) (bool, error) {
	if len(served) == 0 {
		return false, nil
	}
	routes := make([]string, len(served))
	for i := range served {
		routes[i] = served[i].Route
	}
	n, err := s.notice.CountDocuments(ctx, bson.M{"route": bson.M{"$in": routes}}, options.Count().SetLimit(1))
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
