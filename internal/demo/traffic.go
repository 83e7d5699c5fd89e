package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
)

// order returns a message about order n.
func order(n int) waybill.Message {
	m := waybill.RawMessage(TopicOrders, "application/json", fmt.Appendf(nil, `{"order":%d,"customer":{"name":"Ada","city":"Turin"},"total":%d.50}`, n, 10+n%90))
	m.Key = fmt.Sprintf("order-%d", 100+n%50)
	return m
}

// Troubles returns the messages that need an operator: one message that no broker takes, one for which no queue is
// bound, a key of three messages that is blocked, an order that its handler gives up, a timer, and a message on a route
// that no relay serves.
func Troubles() []waybill.Message {
	poison, nobody, head, behind, last, free, later, lost := order(1), order(2), order(3), order(4), order(5), order(6), order(7), order(8)
	poison.Topic, poison.Key, nobody.Topic = TopicPoison, "", TopicNobody
	head.Key, behind.Key, last.Key = BlockedKey, BlockedKey, BlockedKey
	free.Key, free.Body = "order-6", []byte(`{"order":6,"customer":{"name":"Grace","city":"Oslo"}}`)
	later.Topic, later.Delay = TopicLater, 2*time.Hour
	lost.Routes = []string{RouteArchive}
	return []waybill.Message{poison, nobody, head, behind, last, free, later, lost}
}

// Traffic stages the troubles, and then orders and mails, the number of which goes up and down, until ctx ends.
func (d *Demo) Traffic(ctx context.Context) error {
	if err := d.Stage(ctx, Troubles()...); err != nil {
		return err
	}
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for n := 10; ; {
		select {
		case <-ctx.Done():
			return nil
		case now := <-t.C:
			messages := make([]waybill.Message, 1+now.Second()%30/3)
			for i := range messages {
				messages[i] = order(n)
				if n++; n%4 == 0 {
					messages[i].Topic, messages[i].Routes = "mails.welcome", []string{RouteMails}
				}
				if n%1000 == 0 {
					messages[i].Body = fmt.Appendf(nil, `{"order":%d}`, n)
				}
			}
			if err := d.Stage(ctx, messages...); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}
