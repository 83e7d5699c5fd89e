package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/obs"
)

// maxHosts bounds Connection.Hosts.
const maxHosts = 16

// target is where connections go, and as whom.
type target struct {
	url         string
	endpoints   []endpoint        // the URL's is the first
	credentials *credentialSource // nil = the URL's user
}

// endpoint is a listener of a broker.
type endpoint struct {
	host string
	port int
}

func (e endpoint) String() string { return net.JoinHostPort(e.host, strconv.Itoa(e.port)) }

// parseEndpoint reads host or host:port. It reports whether s is one of them.
func parseEndpoint(s string, port int) (endpoint, bool) {
	host := s
	switch {
	case strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]"):
		host = s[1 : len(s)-1]
	case strings.HasPrefix(s, "[") || strings.Count(s, ":") == 1: // with more of them it is an IPv6 address
		var text string
		var err error
		if host, text, err = net.SplitHostPort(s); err != nil {
			return endpoint{}, false
		}
		if port, err = strconv.Atoi(text); err != nil || port < 1 || port >= 1<<16 {
			return endpoint{}, false
		}
	}
	ok := host != "" && len(host) <= 255 && !strings.ContainsAny(host, " \t\r\n/@?#[]\\")
	return endpoint{host, port}, ok
}

// parseEndpoints returns the URL's endpoint and those of hosts behind it, and the faults of hosts. It shows none of
// them, since a password may be in it. A first without a host is none.
func parseEndpoints(first endpoint, hosts []string) (list []endpoint, problems []string) {
	list = []endpoint{first}
	if len(hosts) > maxHosts {
		return list, []string{fmt.Sprintf("Connection.Hosts: has %d hosts; at most %d", len(hosts), maxHosts)}
	}
	for i, s := range hosts {
		e, ok := parseEndpoint(s, first.port)
		switch at := slices.Index(list, e); {
		case !ok:
			problems = append(problems, fmt.Sprintf("Connection.Hosts[%d]: is neither a host nor host:port, such as rabbit-2 or rabbit-2:5672; "+
				"scheme, user, virtual host and TLS are the URL's", i))
		case at == 0:
			problems = append(problems, fmt.Sprintf("Connection.Hosts[%d]: is the URL's host; name only further ones", i))
		case at > 0:
			problems = append(problems, fmt.Sprintf("Connection.Hosts[%d]: is listed twice", i))
		default:
			list = append(list, e)
		}
	}
	return list, problems
}

// dialFailure is an endpoint that could not be used.
type dialFailure struct {
	at  endpoint
	err error
}

// dialErrors are what dial tried in vain.
type dialErrors []dialFailure

// err returns the one failure, or all of them as one error. That is a misconfiguration only if each is.
func (d dialErrors) err() error {
	if len(d) == 1 {
		return d[0].err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "none of %d endpoints can be used", len(d))
	cause := error(nil)
	for _, f := range d {
		err := f.err
		classified := dialError(err)
		misconfigured := errors.Is(classified, waybill.ErrMisconfigured)
		if misconfigured {
			err = classified.Err
		}
		if cause == nil || !misconfigured {
			cause = err
		}
		fmt.Fprintf(&text, "; %s: %v", f.at, err)
	}
	return outage("connect", &unusable{text.String(), cause})
}

// unusable is the error of several endpoints; its cause is that of the one that says most.
type unusable struct {
	text  string
	cause error
}

func (e *unusable) Error() string { return e.text }
func (e *unusable) Unwrap() error { return e.cause }

// logFailed says which endpoints could not be used before at was.
func (l *link) logFailed(ctx context.Context, failed dialErrors, at endpoint) {
	log := obs.NewLogger(l.opts.Logger)
	for _, f := range failed {
		log.Event(ctx, slog.LevelWarn, "rabbitmq.endpoint_failed", "an endpoint cannot be used; the connection is open to another one",
			slog.String("link", l.name), slog.String("endpoint", f.at.String()), slog.String("used", at.String()), slog.Any("error", dialError(f.err)))
	}
}
