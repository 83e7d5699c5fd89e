//go:build unix

package outages_test

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// secret is what a service for secrets returns.
type secret struct{ user, password atomic.Value }

func newSecret(password string) *secret {
	s := &secret{}
	s.user.Store("")
	s.set(password)
	return s
}

func (s *secret) set(password string) { s.password.Store(password) }

// ofPool gives user and password to each new connection of a pool, once there is a user.
func (s *secret) ofPool(cfg *pgxpool.Config) {
	cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		if user := s.user.Load().(string); user != "" {
			c.User, c.Password = user, s.password.Load().(string)
		}
		return nil
	}
}

// ofBroker is for rabbitmq.ConnectionOptions.Credentials.
func (s *secret) ofBroker(context.Context) (rabbitmq.Credentials, error) {
	return rabbitmq.Credentials{User: s.user.Load().(string), Password: s.password.Load().(string)}, nil
}
