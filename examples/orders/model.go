package main

import (
	"context"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// OrderPlaced is the topic, declared once for both sides.
var OrderPlaced = waybill.NewTopic("orders.placed", waybill.JSON[Order]())

// Order is the N-th order of a customer.
type Order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	N        int64  `json:"n"`
	Cents    int    `json:"cents"`
}

// The business tables. bills and arrivals have no unique key on purpose: a doubled effect would show. An arrival comes
// again if the broker had handed it out before.
const businessTables = `
CREATE TABLE customers (id text PRIMARY KEY, orders bigint NOT NULL DEFAULT 0);
CREATE TABLE orders (id text PRIMARY KEY, customer text NOT NULL, n bigint NOT NULL, cents int NOT NULL);
CREATE TABLE bills (order_id text NOT NULL, cents int NOT NULL);
CREATE TABLE arrivals (pos bigint GENERATED ALWAYS AS IDENTITY, customer text NOT NULL, n bigint NOT NULL, again boolean NOT NULL);
INSERT INTO customers (id) SELECT 'customer-' || i FROM generate_series(0, 99) i;`

const customers = 100

// The two queues: each gets a copy of every order.
var (
	billingQueue = waybill.Subscription{Queue: "billing.orders", Bindings: []string{"orders.*"}}
	auditQueue   = waybill.Subscription{Queue: "audit.orders", Bindings: []string{"orders.#"}, Prefetch: 1}
)

// config is what every role needs, from the environment.
type config struct {
	postgres, rabbitmq string
	rate               int
}

func configFromEnv() config {
	rate, err := strconv.Atoi(os.Getenv("ORDERS_RATE"))
	if err != nil || rate <= 0 {
		rate = 200
	}
	return config{postgres: os.Getenv("ORDERS_POSTGRES"), rabbitmq: os.Getenv("ORDERS_RABBITMQ"), rate: rate}
}

func (c config) env() []string {
	return []string{"ORDERS_POSTGRES=" + c.postgres, "ORDERS_RABBITMQ=" + c.rabbitmq, "ORDERS_RATE=" + strconv.Itoa(c.rate)}
}

func (c config) pool(ctx context.Context) (*pgxpool.Pool, error) { return pgxpool.New(ctx, c.postgres) }

func (c config) outbox(pool *pgxpool.Pool) (*postgres.Outbox, error) {
	return postgres.NewOutbox(pool, postgres.Options{Source: "/orders"})
}

func (c config) bus(ctx context.Context) (*rabbitmq.Transport, error) {
	return rabbitmq.Dial(ctx, c.rabbitmq, rabbitmq.Options{Exchange: "shop", Connection: rabbitmq.ConnectionOptions{Heartbeat: heartbeat}, Lazy: true})
}
