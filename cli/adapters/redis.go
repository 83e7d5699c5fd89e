package adapters

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// Redis are the settings of the kind redis, beside redisstreams.Options.
type Redis struct {
	// URL is the address, with user and password.
	URL cli.Secret
	TLS cli.TLS
	redisstreams.Options
}

func openRedis(ctx context.Context, s *Redis, env cli.Env) (*cli.Transport, error) {
	text, err := secret(s.URL, "URL", "redis://user:password@host:6379/0")
	if err != nil {
		return nil, err
	}
	opts := s.Options
	if opts.TLS, err = s.TLS.Config(); err != nil {
		return nil, invalid("%s", err)
	}
	opts.Lazy, opts.Logger, opts.Passive = true, env.Logger, opts.Passive || env.Passive
	opts.Credentials = func(context.Context) (user, password string, err error) { // a password that was rotated
		text, err := s.URL.Value()
		if err != nil {
			return "", "", fmt.Errorf("url: %w", err)
		}
		fresh, err := redis.ParseURL(text)
		if err != nil { // its text may hold the password
			return "", "", errors.New("url: is no address any more")
		}
		return fresh.Username, fresh.Password, nil
	}
	bus, err := redisstreams.Dial(ctx, text, opts)
	if err != nil {
		return nil, err
	}
	return &cli.Transport{Publisher: bus, Close: bus.Close}, nil
}
