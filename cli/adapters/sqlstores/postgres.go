package sqlstores

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/store/postgres"
)

// Postgres are the settings of the kind postgres, beside postgres.Options. Source is not needed: only bench stages
// messages.
type Postgres struct {
	// URL is the connection string, as a URL or as key=value words.
	URL cli.Secret
	TLS cli.TLS
	// InboxTable is the inbox's table; default postgres.DefaultInboxTable.
	InboxTable string
	// Schemas are the schemas of many outboxes, which a relay serves as a fleet; a * stands for any characters, as
	// in tenant_*. Other commands work on the one that Schema names.
	Schemas []string
	// Owners are roles whose schemas are served, besides superusers, the owner of the database and the relay's own
	// role. Name no role of a tenant: it could run its own code with the rights of the relay, in all schemas.
	Owners []string
	postgres.Options
}

// fleetConns is how many connections the pool of many outboxes has unless pool_max_conns in the URL says otherwise.
const fleetConns = 10

func openPostgres(ctx context.Context, s *Postgres, env cli.Env) (*cli.Store, error) {
	text, err := s.URL.Required("URL", "postgres://user:password@host:5432/database")
	if err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, waybill.Invalid("waybill: settings", "URL: is no connection string; it must look like postgres://user:password@host:5432/database")
	}
	tls, err := s.TLS.Config()
	if err != nil {
		return nil, waybill.Invalid("waybill: settings", err.Error())
	}
	if tls != nil {
		tls.ServerName = cmp.Or(tls.ServerName, cfg.ConnConfig.Host)
		cfg.ConnConfig.TLSConfig, cfg.ConnConfig.Fallbacks = tls, nil
	}
	cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { // a password that was rotated
		text, err := s.URL.Value()
		if err != nil {
			return fmt.Errorf("url: %w", err)
		}
		fresh, err := pgx.ParseConfig(text)
		if err != nil {
			return errors.New("url: is no connection string any more")
		}
		c.User, c.Password = fresh.User, fresh.Password
		return nil
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "waybill"
	}
	opts := s.Options
	opts.Source = cmp.Or(opts.Source, "/waybill")
	opts.Logger, opts.TracerProvider = env.Logger, env.TracerProvider
	if len(s.Schemas) > 0 && !strings.Contains(text, "pool_max_conns") {
		cfg.MaxConns = fleetConns
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), cfg)
	if err != nil {
		return nil, err
	}
	var many *postgres.Outboxes
	if len(s.Schemas) > 0 {
		if many, err = postgres.NewOutboxes(pool, postgres.Schemas{Names: s.Schemas, Owners: s.Owners}, opts); err != nil {
			pool.Close()
			return nil, err
		}
		if s.Schema == "" {
			return &cli.Store{Outboxes: many, Close: func(context.Context) error { pool.Close(); return nil }}, nil
		}
	}
	outbox, err := postgres.NewOutbox(pool, opts)
	if err != nil {
		pool.Close()
		return nil, err
	}
	inbox, err := postgres.NewInbox(pool, postgres.InboxOptions{Schema: s.Schema, Table: s.InboxTable})
	if err != nil {
		pool.Close()
		return nil, err
	}
	schema, err := newPostgresSchema(pool, postgres.MigrationOptions{Schema: s.Schema, Outbox: s.Table, Inbox: s.InboxTable, Source: s.Source})
	if err != nil {
		pool.Close()
		return nil, err
	}
	store := &cli.Store{
		Outbox: outbox, Inbox: inbox, Schema: schema, Producer: cli.NewProducer(outbox, outbox.UnitOfWork().Do), Mark: cli.NewMark(inbox),
		Close: func(ctx context.Context) error { err := outbox.Close(ctx); pool.Close(); return err },
	}
	if many != nil {
		store.Outboxes = many
	}
	return store, nil
}

// postgresSchema is the schema of a Postgres store.
type postgresSchema struct {
	m    *postgres.Migrations
	opts postgres.MigrationOptions
	pool *pgxpool.Pool
}

func newPostgresSchema(pool *pgxpool.Pool, opts postgres.MigrationOptions) (*postgresSchema, error) {
	m, err := postgres.NewMigrations(opts)
	return &postgresSchema{m, opts, pool}, err
}

func (p *postgresSchema) Only(part string) (cli.Schema, error) {
	opts := p.opts
	opts.Parts = []postgres.Part{postgres.Part(part)}
	return newPostgresSchema(p.pool, opts)
}

func (p *postgresSchema) Up(ctx context.Context) error { return p.m.Up(ctx, p.pool) }

func (p *postgresSchema) Down(ctx context.Context, version int) error {
	return p.m.Down(ctx, p.pool, version)
}

func (p *postgresSchema) Losses(ctx context.Context, version int) ([]admin.Loss, error) {
	return p.m.Losses(ctx, p.pool, version)
}

func (p *postgresSchema) Status(ctx context.Context) ([]cli.SchemaStatus, error) {
	applied, err := p.m.Applied(ctx, p.pool)
	if err != nil {
		return nil, err
	}
	var out []cli.SchemaStatus
	for _, part := range []postgres.Part{postgres.PartBase, postgres.PartInbox, postgres.PartOutbox} {
		if part != postgres.PartBase && len(p.opts.Parts) > 0 && !slices.Contains(p.opts.Parts, part) {
			continue
		}
		out = append(out, cli.SchemaStatus{Part: string(part), Applied: applied[part], Newest: p.m.Newest(part)})
	}
	return out, nil
}

func (p *postgresSchema) Print() (string, error) { return p.m.SQL(), nil }

func (p *postgresSchema) Grants(r cli.Roles) string { return p.m.Grants(postgres.Roles(r)) }

func (p *postgresSchema) Drift(ctx context.Context) ([]admin.Difference, error) {
	return p.m.Drift(ctx, p.pool)
}
