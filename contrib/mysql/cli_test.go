package waybillmysql_test

import (
	"bytes"
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
)

// MySQL are the settings of the kind mysql in a configuration of the waybill command: stores.shop.dsn, and the keys of
// Options, such as stores.shop.source.
type MySQL struct {
	DSN cli.Secret
	waybillmysql.Options
}

func openMySQL(_ context.Context, s *MySQL, env cli.Env) (*cli.Store, error) {
	dsn, err := s.DSN.Value()
	if err != nil {
		return nil, err
	}
	s.TracerProvider = env.TracerProvider
	store, err := waybillmysql.Open(dsn, s.Options)
	if err != nil {
		return nil, err
	}
	return &cli.Store{Outbox: store, Inbox: store, Producer: cli.NewProducer(store, transactions(store.DB())), Close: func(context.Context) error { return store.Close() }}, nil
}

// transactions runs functions in transactions, so that cancel can be used.
func transactions(db *sql.DB) func(context.Context, func(context.Context, *sql.Tx) error) error {
	return func(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after Commit it does nothing
		if err := fn(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	}
}

// app is the waybill command with MySQL.
func app() cli.App {
	return cli.App{Stores: append(adapters.Stores(), cli.NewStoreKind("mysql", openMySQL)), Transports: adapters.Transports()}
}

// OP-01: the waybill command works with an adapter of another module.
func TestCommand(t *testing.T) {
	t.Parallel()
	dsn := newDatabase(t, func(database string) string { return dsnOf(t, database) })
	store := openAt(t, dsn, waybillmysql.Options{})
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := transactions(store.DB())(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := store.Stage(ctx, tx, waybill.RawMessage("fine", "text/plain", []byte("hello"), waybill.ID("m1"), waybill.Delay(time.Hour)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"version", "mysql", cli.ExitOK},
		{"list", "m1", cli.ExitOK},
		{"show m1", "hello", cli.ExitOK},
		{"cancel m1", "cancelled", cli.ExitOK},
		{"status", "0 waiting", cli.ExitOK},
	} {
		var out, errs bytes.Buffer
		set := []string{"--set", "stores.shop.kind=mysql", "--set", "stores.shop.dsn=" + dsn, "--set", "stores.shop.source=/shop"}
		code := app().Run(t.Context(), append(strings.Fields(c.args), set...), cli.IO{In: &out, Out: &out, Err: &errs})
		if code != c.code || !strings.Contains(out.String()+errs.String(), c.want) {
			t.Errorf("%s: %d\n%s%s", c.args, code, out.String(), errs.String())
		}
	}
}

// A waybill command that knows MySQL too: this is its main.
func Example_command() {
	app().Main()
}
