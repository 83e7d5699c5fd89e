package testenv

import amqp "github.com/rabbitmq/amqp091-go"

// Channel opens a plain driver connection to the broker at url, and a channel on it. Both end with the test.
func Channel(tb TB, url string) *amqp.Channel {
	tb.Helper()
	c, err := amqp.Dial(url)
	if err != nil {
		tb.Fatalf("waybill/testenv: rabbitmq: %v", err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	ch, err := c.Channel()
	if err != nil {
		tb.Fatalf("waybill/testenv: rabbitmq: %v", err)
	}
	return ch
}
