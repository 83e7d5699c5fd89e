package waybill_test

import (
	"database/sql"
	"path/filepath"
	"slices"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/sqlite"
)

// ST-09: a topic can name again each message that it staged, wherever its routes, a message's routes and its lane led.
func TestCancelKeysFindWhatWasStaged(t *testing.T) {
	t.Parallel()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"), sqlite.Options{Source: "/shop", AutoMigrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close(t.Context()) })
	plain := waybill.NewTopic("mail.send", waybill.JSON[string]())
	two := plain.On("mails", "audit")
	for name, c := range map[string]struct {
		topic  waybill.Topic[string]
		opts   []waybill.MessageOption
		routes []string
	}{
		"default":           {plain, nil, []string{"default"}},
		"the topic's":       {two, nil, []string{"mails", "audit"}},
		"the message's":     {two, []waybill.MessageOption{waybill.Routes("other")}, []string{"other"}},
		"a lane":            {plain.On("mails"), []waybill.MessageOption{waybill.InLane(waybill.LaneHigh)}, []string{"mails/high"}},
		"a lane of default": {plain, []waybill.MessageOption{waybill.InLane(waybill.LaneLow)}, []string{"default/low"}},
	} {
		var got []waybill.CancelStatus
		keys := c.topic.CancelKeys(name, c.opts...)
		tx, err := store.DB().BeginTx(t.Context(), &sql.TxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = store.Stage(t.Context(), tx, c.topic.Message("hello", append(slices.Clone(c.opts), waybill.DedupeKey(name))...)); err == nil {
			got, err = store.Cancel(t.Context(), tx, keys...)
		}
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			t.Fatal(err)
		}
		var routes []string
		for i, k := range keys {
			if routes = append(routes, k.Route); got[i] != waybill.CancelDone {
				t.Errorf("%s: route %s: %s", name, k.Route, got[i])
			}
		}
		if !slices.Equal(routes, c.routes) {
			t.Errorf("%s: %v, want %v", name, routes, c.routes)
		}
	}
}
