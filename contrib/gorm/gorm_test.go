package waybillgorm_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	waybillgorm "github.com/waybill-go/waybill/contrib/gorm"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/memory"
)

// Order and Bill are tables.
type (
	Order struct{ ID string }
	Bill  struct{ OrderID string }
)

var placed = waybill.NewTopic("orders.placed", waybill.JSON[Order]())

// service is a GORM service with one pool: it places orders over HTTP, and bills them.
type service struct {
	db     *gorm.DB
	sql    *sql.DB
	outbox *postgres.Outbox
	stager *waybillgorm.Stager
	inbox  core.Inbox[*gorm.DB]
}

func newService(t *testing.T, config gorm.Config) *service {
	t.Helper()
	dsn := testenv.Postgres(t).DSN
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	config.Logger = logger.Discard
	g, err := gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: db}), &config)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.AutoMigrate(&Order{}, &Bill{}); err != nil {
		t.Fatal(err)
	}
	store, err := postgres.NewSQL(db, postgres.Options{Source: "/orders"})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	in, err := waybillgorm.NewInbox(g, store)
	if err != nil {
		t.Fatal(err)
	}
	return &service{db: g, sql: db, outbox: store.Outbox, stager: waybillgorm.NewStager(store.SQL()), inbox: in}
}

// ServeHTTP places the order with the id in the query, and its message, in one transaction.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o := Order{ID: r.URL.Query().Get("id")}
	err := s.db.WithContext(r.Context()).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&o).Error; err != nil {
			return err
		}
		_, err := s.stager.Stage(r.Context(), tx, placed.Message(o))
		return err
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func bill(_ context.Context, tx *gorm.DB, o Order) error {
	return tx.Transaction(func(tx *gorm.DB) error { return tx.Create(&Bill{OrderID: o.ID}).Error })
}

// run runs a relay and a consumer until the test ends.
func (s *service) run(t *testing.T, billing *inbox.Inbox[*gorm.DB]) {
	t.Helper()
	bus, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(s.outbox, bus, relay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(bus, consumer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Handle(waybill.Subscription{Queue: "billing", Bindings: []string{"orders.*"}}, inbox.Handler(billing, placed, bill)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	group.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); group.Wait() })
}

// ST-02 ST-20 IN-03: handlers and requests of one GORM service run at the same time, with prepared statements and
// without; neither meets the transaction of another.
func TestServiceWithConcurrentRequests(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]gorm.Config{"plain": {}, "prepared": {PrepareStmt: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, config)
			billing, err := inbox.New(s.inbox, "billing", inbox.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s.run(t, billing)
			server := httptest.NewServer(s)
			defer server.Close()
			const clients, each = 8, 40
			var group sync.WaitGroup
			for c := range clients {
				group.Go(func() {
					for i := range each {
						place(t, fmt.Sprintf("%s?id=%d-%d", server.URL, c, i))
					}
				})
			}
			group.Wait()
			patience.Moving(t, "all is billed", func() (int, bool) { n := s.count(t, "bills"); return n, n >= clients*each })
			if orders, bills := s.count(t, "orders"), s.count(t, "bills"); orders != clients*each || bills != orders {
				t.Errorf("%d orders, %d bills", orders, bills)
			}
		})
	}
}

func place(t *testing.T, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
	if err != nil {
		t.Error(err)
		return
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", url, res.Status)
	}
}

func (s *service) count(t *testing.T, table string) (n int) {
	t.Helper()
	if err := s.sql.QueryRowContext(t.Context(), "SELECT count(DISTINCT ctid) FROM "+table).Scan(&n); err != nil {
		t.Error(err)
	}
	return n
}

// A handler writes in the transaction of its inbox. Its writes before it fails are gone, and so is the mark.
func TestFailedHandler(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]gorm.Config{"plain": {}, "prepared": {PrepareStmt: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, config)
			batches, ok := core.As[core.BatchInbox[*gorm.DB]](s.inbox)
			if !ok {
				t.Fatal("the inbox handles no batches")
			}
			key := core.InboxKey{Consumer: "billing", Source: "/orders", ID: "1"}
			refused := errors.New("refused")
			write := func(tx *gorm.DB, err error) error { return errors.Join(tx.Create(&Bill{OrderID: "1"}).Error, err) }
			if _, err := s.inbox.Do(t.Context(), key, func(_ context.Context, tx *gorm.DB) error { return write(tx, refused) }); !errors.Is(err, refused) {
				t.Errorf("got %v", err)
			}
			_, err := batches.DoBatch(t.Context(), []core.InboxKey{key}, func(_ context.Context, tx *gorm.DB, _ []int) error { return write(tx, refused) })
			if !errors.Is(err, refused) {
				t.Errorf("batch: got %v", err)
			}
			if bills := s.count(t, "bills"); bills != 0 {
				t.Errorf("%d bills of handlers that failed", bills)
			}
			status, err := batches.DoBatch(t.Context(), []core.InboxKey{key}, func(_ context.Context, tx *gorm.DB, _ []int) error { return write(tx, nil) })
			if err != nil || len(status) != 1 || status[0] != core.InboxNew {
				t.Errorf("then: %v, %v", status, err)
			}
			if bills := s.count(t, "bills"); bills != 1 {
				t.Errorf("%d bills of one that succeeded", bills)
			}
		})
	}
}

// ST-03: the unit of work over GORM: what code below stages with the context alone is in the transaction.
func TestUnitOfWork(t *testing.T) {
	t.Parallel()
	s := newService(t, gorm.Config{})
	unit, err := waybillgorm.NewUnitOfWork(s.db, s.stager)
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	for i, want := range []error{nil, refused} {
		err := unit.Do(t.Context(), func(ctx context.Context, tx *gorm.DB) error {
			if err := tx.Create(&Order{ID: strconv.Itoa(i)}).Error; err != nil {
				return err
			}
			return errors.Join(unit.Stage(ctx, placed.Message(Order{ID: "1"})), want)
		})
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	var staged int
	if err := s.sql.QueryRowContext(t.Context(), "SELECT count(*) FROM waybill.waybill_outbox").Scan(&staged); err != nil {
		t.Fatal(err)
	}
	if orders := s.count(t, "orders"); orders != 1 || staged != 1 {
		t.Errorf("%d orders, %d messages", orders, staged)
	}
}

// ST-15: a *gorm.DB that is no transaction is refused, with the cure.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := newService(t, gorm.Config{})
	for name, tx := range map[string]*gorm.DB{"nil": nil, "no transaction": s.db, "no connection": {}} {
		if _, err := s.stager.Stage(t.Context(), tx, placed.Message(Order{ID: "1"})); !errors.Is(err, waybill.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := waybillgorm.NewInbox(nil, nil); !errors.Is(err, waybill.ErrInvalid) {
		t.Error(err)
	}
	if _, err := waybillgorm.NewUnitOfWork(nil, s.stager); !errors.Is(err, waybill.ErrInvalid) {
		t.Error(err)
	}
}
