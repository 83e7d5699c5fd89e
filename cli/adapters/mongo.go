package adapters

import (
	"cmp"
	"context"
	"errors"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/store/mongo"
)

// Mongo are the settings of the kind mongo, beside mongo.Options.
type Mongo struct {
	// URL is the connection string. Database is the database's name.
	URL      cli.Secret
	Database string
	TLS      cli.TLS
	mongo.Options
}

func openMongo(ctx context.Context, s *Mongo, env cli.Env) (*cli.Store, error) {
	text, err := s.URL.Required("URL", "mongodb://user:password@host:27017/?replicaSet=rs0")
	if err != nil {
		return nil, err
	}
	if s.Database == "" {
		return nil, invalid("Database: is missing; name the database")
	}
	tls, err := s.TLS.Config()
	if err != nil {
		return nil, invalid("%s", err)
	}
	conn := options.Client().ApplyURI(text).SetAppName("waybill")
	if tls != nil {
		conn.SetTLSConfig(tls)
	}
	client, err := driver.Connect(conn)
	if err != nil {
		return nil, invalid("URL: is no connection string; it must look like mongodb://user:password@host:27017/?replicaSet=rs0")
	}
	opts := s.Options
	opts.Source = cmp.Or(opts.Source, "/waybill")
	opts.Logger, opts.TracerProvider = env.Logger, env.TracerProvider
	store, err := mongo.New(client.Database(s.Database), opts)
	if err != nil {
		_ = client.Disconnect(ctx)
		return nil, err
	}
	unit, err := store.NewUnitOfWork()
	if err != nil {
		_ = client.Disconnect(ctx)
		return nil, err
	}
	return &cli.Store{
		Outbox: store, Inbox: store, Schema: &mongoSchema{store}, Producer: cli.NewProducer(store, unit.Do), Mark: cli.NewMark(store), Close: client.Disconnect,
	}, nil
}

// mongoSchema are the collections and indexes of a MongoDB store, which have no versions.
type mongoSchema struct{ store *mongo.Store }

func (m *mongoSchema) Up(ctx context.Context) error { return m.store.Migrate(ctx) }

func (m *mongoSchema) Down(context.Context, int) error {
	return errors.New("the mongo store has no way back: drop its collections by hand")
}

func (m *mongoSchema) Losses(context.Context, int) ([]admin.Loss, error) { return nil, nil }

func (m *mongoSchema) Status(ctx context.Context) ([]cli.SchemaStatus, error) {
	found, err := m.store.Drift(ctx)
	if err != nil {
		return nil, err
	}
	s := cli.SchemaStatus{Part: "collections", Applied: 1, Newest: 1}
	if len(found) > 0 {
		s.Applied = 0
	}
	return []cli.SchemaStatus{s}, nil
}

func (m *mongoSchema) Print() (string, error) {
	return "", errors.New("the mongo store has no SQL: migrate up makes its collections and indexes")
}

func (m *mongoSchema) Drift(ctx context.Context) ([]admin.Difference, error) {
	return m.store.Drift(ctx)
}
