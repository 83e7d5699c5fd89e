package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/obs"
)

// With Connection.Credentials the user and the password, or a token, are asked for anew before each connection. A token
// that expires is replaced on the open connection before that (keepSecret): the broker would close the connection. No
// error and no log line has a password.

// Credentials are what a connection is opened with.
type Credentials struct {
	// User is the name of the user. It may not be empty. With OAuth 2 the broker takes the name from the token.
	User string
	// Password is the password, or the OAuth 2 token.
	Password string
	// Expires is when the broker no longer takes Password, by the clock of this process; zero = never.
	Expires time.Time
}

// String returns the user, without the password.
func (c Credentials) String() string {
	if c.Expires.IsZero() {
		return c.User
	}
	return c.User + " until " + c.Expires.Format(time.RFC3339)
}

// GoString is String.
func (c Credentials) GoString() string { return c.String() }

// credentialSource asks Connection.Credentials, one call at a time: however long a call takes, there is only one.
type credentialSource struct {
	ask  func(context.Context) (Credentials, error)
	busy chan struct{} // capacity 1: held during a call
}

// newCredentialSource returns nil without a function.
func newCredentialSource(ask func(context.Context) (Credentials, error)) *credentialSource {
	if ask == nil {
		return nil
	}
	return &credentialSource{ask: ask, busy: make(chan struct{}, 1)}
}

const opCredentials = "get credentials"

// get returns the function's result, within ctx. An error or a delay of the function is an outage.
func (s *credentialSource) get(ctx context.Context) (Credentials, error) {
	late := func() error {
		return outage(opCredentials, fmt.Errorf("Connection.Credentials has not returned in time: %w", context.Cause(ctx)))
	}
	select {
	case s.busy <- struct{}{}:
	case <-ctx.Done():
		return Credentials{}, late()
	}
	var c Credentials
	err := await(ctx, func() (err error) {
		defer func() { <-s.busy }()
		c, err = s.call(ctx)
		return err
	}, nil)
	switch {
	case err != nil && ctx.Err() != nil:
		return Credentials{}, late()
	case err != nil:
		return Credentials{}, err
	}
	return c, c.check()
}

// call calls the function. A panic is an error. The value of the panic is not shown, since it may hold a secret.
func (s *credentialSource) call(ctx context.Context) (c Credentials, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = misconfigured(opCredentials, "Connection.Credentials panicked with a value of type %T: correct the function", p)
		}
	}()
	if c, err = s.ask(ctx); err != nil {
		return c, outage(opCredentials, fmt.Errorf("Connection.Credentials failed: %w", err))
	}
	return c, nil
}

// check refuses what cannot be sent: a NUL would end the field.
func (c *Credentials) check() error {
	switch {
	case c.User == "":
		return misconfigured(opCredentials, "Connection.Credentials returned no User: give one, with an OAuth 2 token too")
	case strings.ContainsRune(c.User, 0) || strings.ContainsRune(c.Password, 0):
		return misconfigured(opCredentials, "Connection.Credentials returned a User or a Password with a NUL: correct the function")
	}
	return nil
}

// userAndPassword is get for the management API.
func (s *credentialSource) userAndPassword(ctx context.Context) (user, password string, err error) {
	c, err := s.get(ctx)
	return c.User, c.Password, err
}

// minRenewal is the least time between two calls for one connection.
const minRenewal = 100 * time.Millisecond

var (
	renewalBackoff = waybill.Backoff{Base: minRenewal, Cap: 10 * time.Second, Attempts: -1}

	errExpiredCredentials = errors.New("Connection.Credentials returned credentials that have expired: check its cache and the clock")
)

// renewIn returns when to renew what expires after left: with a fifth of the time in reserve.
func renewIn(left time.Duration) time.Duration { return max(left/5*4, minRenewal) }

// keepSecret gives the connection new secrets, each before the one before expires, until the connection ends. A failure
// is tried again, with growing pauses; the broker ends the connection if it lasts. Without Expires it returns at once.
func (l *link) keepSecret(ctx context.Context, c *conn, have Credentials) {
	log := obs.NewLogger(l.opts.Logger)
	name := slog.String("link", l.name)
	failures := 0
	for !have.Expires.IsZero() {
		wait := renewIn(time.Until(have.Expires))
		if failures > 0 {
			wait, _, _ = renewalBackoff.Next(failures, nil)
		}
		t := time.NewTimer(wait)
		select {
		case <-c.gone:
			t.Stop()
			return
		case <-t.C:
		}
		fresh, err := l.renew(ctx, c, have)
		switch {
		case isClosed(c.gone):
			return
		case err != nil:
			failures++
			log.Event(ctx, slog.LevelWarn, "rabbitmq.credentials_failed",
				"an open connection could not be given new credentials; trying again", name,
				slog.Time("expires", have.Expires), slog.Int("failed_attempts", failures), slog.Any("error", err))
			continue
		case failures > 0:
			log.Event(ctx, slog.LevelInfo, "rabbitmq.credentials_renewed",
				"an open connection has new credentials again", name, slog.Int("failed_attempts", failures))
		}
		have, failures = fresh, 0
	}
}

// renew asks for credentials and gives the secret to the broker (connection.update-secret). A connection keeps its
// user: of another one it is told nothing, and the broker ends it when it likes.
func (l *link) renew(ctx context.Context, c *conn, have Credentials) (Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.ConnectTimeout)
	defer cancel()
	fresh, err := l.target.credentials.get(ctx)
	switch {
	case err != nil:
		return Credentials{}, err
	case !fresh.Expires.IsZero() && time.Until(fresh.Expires) <= 0:
		return Credentials{}, outage(opCredentials, errExpiredCredentials)
	case fresh.User != have.User, fresh.Password == have.Password:
		return fresh, nil
	}
	if err := await(ctx, func() error { return c.UpdateSecret(fresh.Password, "it expires") }, nil); err != nil {
		return Credentials{}, outage("update secret", err)
	}
	return fresh, nil
}
