package adapters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/core"
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
	text, err := s.URL.Required("URL", "redis://user:password@host:6379/0")
	if err != nil {
		return nil, err
	}
	opts := s.Options
	if opts.TLS, err = s.TLS.Config(); err != nil {
		return nil, invalid("%s", err)
	}
	redisLines.of(env.Logger, s.URL)
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

// redisLines takes the lines that the client of Redis writes by itself to standard error: they go to the log of the
// command, in its format, and without the passwords of the settings. The client has one such log for all connections.
var redisLines redisLog

type redisLog struct {
	mu   sync.Mutex
	log  *slog.Logger
	urls []cli.Secret
}

// of gives the lines to log from now on.
func (r *redisLog) of(log *slog.Logger, url cli.Secret) {
	if log == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log, r.urls = log, append(r.urls, url)
	redis.SetLogger(r)
}

// Printf logs a line of the client.
func (r *redisLog) Printf(ctx context.Context, format string, v ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf(format, v...)
	for _, url := range r.urls {
		for _, password := range passwordsIn(url) {
			text = strings.ReplaceAll(text, password, "***")
		}
	}
	r.log.LogAttrs(ctx, slog.LevelWarn, "the client of Redis reports", slog.String("event", "redis.client"),
		slog.String("text", core.ErrorText(errors.New(text))))
}

// passwordsIn returns the password of a URL, as it is and as it stands there.
func passwordsIn(url cli.Secret) (out []string) {
	text, err := url.Value()
	if err != nil {
		return nil
	}
	if opts, err := redis.ParseURL(text); err == nil && opts.Password != "" {
		out = append(out, opts.Password)
	}
	_, rest, _ := strings.Cut(text, "://")
	if at := strings.LastIndexByte(rest, '@'); at > 0 {
		if _, password, _ := strings.Cut(rest[:at], ":"); password != "" {
			out = append(out, password)
		}
	}
	return out
}
