package postgres

import (
	"context"
)

// Check reports whether the outbox can work.
func (o *Outbox) Check(ctx context.Context) error {
	_, err := o.HighWater(ctx)
	return err
}

// Check reports whether the inbox can work.
func (i *Inbox) Check(ctx context.Context) error {
	_, err := i.pool.Exec(ctx, i.names.sql("SELECT consumer, source, id FROM {inbox} LIMIT 0"))
	return failure("check", err)
}
