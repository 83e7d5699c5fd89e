package rabbitmq

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/internal/check"
)

// ConnectionOptions say how connections are opened. The zero value is ready for use.
type ConnectionOptions struct {
	// Name is shown in the broker's list of connections; default "waybill".
	Name string
	// TLS is the client's side of TLS for amqps:// URLs: own authorities, client certificate, server name. Nil
	// means the system's authorities.
	TLS *tls.Config
	// Heartbeat is the interval after which a silent peer is suspected; it is declared dead after one and a
	// half to two of it. Default 10 s, at least 1 s. A heartbeat in the URL wins.
	Heartbeat time.Duration
	// Hosts are further nodes of the cluster, each as host or host:port, at most 16; without a port the URL's
	// is meant. Scheme, virtual host, user and TLS are the URL's; the server's name for TLS is the host, unless
	// TLS or the URL names one. The first connection goes to any of them, URL and Hosts alike. After a loss the
	// next one in turn is tried, and all of them before the back-off. ConnectTimeout bounds each attempt.
	// Default none.
	Hosts []string
	// PerSubscription opens a connection for each subscription, and closes it with its receiver. So what ends one
	// of them (an operator, a proxy) leaves the deliveries of the others alone. Default false:
	// the subscriptions of a transport share one.
	PerSubscription bool
	// Credentials is asked for user and password, or an OAuth 2 token, before each connection is opened, so
	// that a password that was changed works at the next reconnect. The URL then names no user. If what it
	// returned expires, it is called again at four fifths of that time, and the open connection gets the new
	// secret (connection.update-secret). A failure is tried again after 100 ms, doubled up to 10 s. It must end
	// with its context; one call runs at a time. An error is an outage; its text goes into errors and the log,
	// so it may hold no secret. Default nil: the URL's user.
	Credentials func(context.Context) (Credentials, error)
}

// problems returns the faults of o, which has its defaults.
func (o *ConnectionOptions) problems() []string {
	var p []string
	if s := check.Name(o.Name); s != "" {
		p = append(p, "Connection.Name: "+s)
	}
	if o.Heartbeat < time.Second {
		p = append(p, fmt.Sprintf("Connection.Heartbeat: %s is less than 1s; leave it 0 for the default", o.Heartbeat))
	}
	_, problems := parseEndpoints(endpoint{}, o.Hosts)
	return append(p, problems...)
}
