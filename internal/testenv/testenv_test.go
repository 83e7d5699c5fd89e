package testenv_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/internal/testenv"
)

func TestPostgresPerTestDatabase(t *testing.T) {
	t.Parallel()
	for range 3 {
		begin := time.Now()
		db := testenv.Postgres(t)
		t.Logf("database after %v", time.Since(begin))
		conn, err := pgx.Connect(t.Context(), db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "CREATE TABLE only_mine (id int)"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(t.Context()) }) // still open when the database is dropped
	}
}

func TestRabbitMQPerTestVirtualHost(t *testing.T) {
	t.Parallel()
	for range 3 {
		begin := time.Now()
		mq := testenv.RabbitMQ(t)
		t.Logf("virtual host after %v", time.Since(begin))
		conn, err := amqp.Dial(mq.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		// Exclusive names would clash if the virtual hosts were one.
		if _, err := ch.QueueDeclare("only-mine", false, false, true, false, nil); err != nil {
			t.Fatal(err)
		}
	}
}
