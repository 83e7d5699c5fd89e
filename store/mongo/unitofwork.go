package mongo

import (
	"context"

	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/waybill-go/waybill"
)

// NewUnitOfWork returns a unit of work that stages through s, in transactions of its client by the driver's
// WithTransaction, which runs a function again if it conflicts with others. The context that the function gets carries
// the session: with it the client's collections take part in the transaction.
func (s *Store) NewUnitOfWork() (*waybill.UnitOfWork[*driver.Session], error) {
	return waybill.NewUnitOfWork[*driver.Session](s, func(ctx context.Context, fn func(ctx context.Context, tx *driver.Session) error) error {
		sess, err := s.db.Client().StartSession()
		if err != nil {
			return classify("unit of work", err)
		}
		defer sess.EndSession(context.WithoutCancel(ctx)) // it rolls back after a panic
		_, err = sess.WithTransaction(ctx, func(ctx context.Context) (any, error) {
			return nil, fn(ctx, driver.SessionFromContext(ctx))
		}, txOptions())
		if err != nil && down(err) {
			return classify("unit of work", err)
		}
		return err // fn's own
	})
}
