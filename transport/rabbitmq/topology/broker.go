package topology

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/transport/rabbitmq/internal/tlserr"
)

// exampleURL is what errors show instead of the URL, which holds a password.
const exampleURL = "https://user:password@host:15671" //nolint:gosec // an example, no credentials

const (
	defaultTimeout = 10 * time.Second
	maxAnswer      = 8 << 20 // bytes of an answer of the management API
)

var errNotFound = errors.New("not found")

// BrokerOptions say how to reach the management API of a broker.
type BrokerOptions struct {
	// URL is the address of the management API, such as https://user:password@host:15671. Required.
	URL string
	// User and Password are used if URL names no user. The user needs the tag "management".
	User, Password string
	// Credentials, if not nil, is asked for user and password before each comparison, in place of User and
	// Password. Its error is the comparison's.
	Credentials func(context.Context) (user, password string, err error)
	// VHost is the virtual host; default "/".
	VHost string
	// TLS is the client's side of TLS for an https:// URL; nil means the system's authorities.
	TLS *tls.Config
	// Timeout bounds one question; default 10 s.
	Timeout time.Duration
}

// Problems returns the faults of o: none if it is valid. It never holds any part of the URL.
func (o BrokerOptions) Problems() []string {
	var p []string
	u, err := url.Parse(o.URL)
	switch {
	case err != nil || strings.ContainsAny(o.URL, " \t\r\n"):
		p = append(p, "URL: cannot be read; escape special characters in user and password; it must look like "+exampleURL)
	case u.Scheme != "http" && u.Scheme != "https":
		p = append(p, "URL: the scheme is not http or https; it must look like "+exampleURL)
	case u.Hostname() == "":
		p = append(p, "URL: names no host; it must look like "+exampleURL)
	case u.RawQuery != "" || u.Fragment != "":
		p = append(p, "URL: has a query or a fragment; it must look like "+exampleURL)
	case u.User == nil && o.User == "" && o.Credentials == nil:
		p = append(p, "URL: names no user; it must look like "+exampleURL)
	case u.Scheme == "http" && o.TLS != nil:
		p = append(p, "TLS: is set, but the URL says http://, which is not encrypted; use https://")
	}
	if o.Timeout < 0 {
		p = append(p, fmt.Sprintf("Timeout: %s is negative; leave it 0 for the default", o.Timeout))
	}
	return p
}

// Broker is a virtual host of a live broker, seen through the management API. It is safe for concurrent use.
type Broker struct {
	base           string // without user
	user, password string
	credentials    func(context.Context) (user, password string, err error) // nil = user and password
	vhost          string
	timeout        time.Duration // of one question
	tls            *tls.Config
}

// NewBroker returns a Broker. It connects to nothing: each call does.
func NewBroker(opts BrokerOptions) (*Broker, error) {
	if p := opts.Problems(); len(p) > 0 {
		return nil, waybill.Invalid("waybill/rabbitmq: management API", p...)
	}
	u, err := url.Parse(opts.URL)
	if err != nil {
		return nil, waybill.Invalid("waybill/rabbitmq: management API", "URL: cannot be read")
	}
	b := &Broker{
		user: opts.User, password: opts.Password, vhost: cmp.Or(opts.VHost, "/"),
		timeout: cmp.Or(opts.Timeout, defaultTimeout), tls: opts.TLS,
	}
	if b.credentials = opts.Credentials; u.User != nil {
		b.credentials = nil
		b.user = u.User.Username()
		b.password, _ = u.User.Password()
		u.User = nil
	}
	b.base = strings.TrimSuffix(u.String(), "/")
	return b, nil
}

// inquiry is a run of questions, which share connections.
type inquiry struct {
	*Broker
	client         *http.Client
	user, password string
	known          bool // user and password
}

func (b *Broker) begin() *inquiry {
	return &inquiry{Broker: b, user: b.user, password: b.password, known: b.credentials == nil, client: &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: b.tls.Clone(), MaxConnsPerHost: 1},
		// The password is for this host only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (q *inquiry) end() { q.client.CloseIdleConnections() }

// get asks for /api/{kind}/{vhost}/{parts...} and decodes the answer into out. errNotFound says that there is no
// such object.
func (q *inquiry) get(ctx context.Context, out any, kind string, parts ...string) error {
	return q.do(ctx, http.MethodGet, out, kind, parts...)
}

// do is get with another method. An answer without content leaves out as it is.
func (q *inquiry) do(ctx context.Context, method string, out any, kind string, parts ...string) error {
	return q.send(ctx, method, nil, out, kind, parts...)
}

// send is do with a JSON value in the request; nil = none. An exchange with bindings is not deleted.
func (q *inquiry) send(ctx context.Context, method string, in, out any, kind string, parts ...string) error {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	var path strings.Builder
	path.WriteString(q.base + "/api/" + kind + "/" + url.PathEscape(q.vhost))
	for _, p := range parts {
		path.WriteString("/" + url.PathEscape(p))
	}
	if method == http.MethodDelete && kind == "exchanges" {
		path.WriteString("?if-unused=true")
	}
	var content io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return outage(err)
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, path.String(), content)
	if err != nil {
		return outage(errors.New("the address cannot be read: check the management URL"))
	}
	if !q.known {
		if q.user, q.password, err = q.credentials(ctx); err != nil {
			return err
		}
		q.known = true
	}
	req.SetBasicAuth(q.user, q.password)
	resp, err := q.client.Do(req)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err
		}
		if tlserr.Is(err) {
			return misconfigured("TLS: %w: check authorities, server name and client certificate for the management URL", err)
		}
		return outage(fmt.Errorf("%w: check host and port of the management URL, and that the management plugin is enabled", err))
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return outage(err)
	case resp.StatusCode == http.StatusNotFound:
		return errNotFound
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		return misconfigured("the user of the management URL was refused (status %d): check its name and password, "+
			"give it the tag \"management\" and any permission on virtual host %q", resp.StatusCode, q.vhost)
	case resp.StatusCode == http.StatusNoContent, resp.StatusCode == http.StatusCreated:
		return nil
	case resp.StatusCode != http.StatusOK:
		return outage(fmt.Errorf("status %d: check that the management URL leads to the management API", resp.StatusCode))
	case len(body) > maxAnswer:
		return outage(fmt.Errorf("an answer has more than %d bytes", maxAnswer))
	}
	if err := json.Unmarshal(body, out); err != nil {
		return outage(errors.New("the answer cannot be read: check that the management URL leads to the management API"))
	}
	return nil
}

func outage(err error) error {
	return &waybill.Error{Op: "waybill/rabbitmq: management API", Class: waybill.ClassOutage, Err: err}
}

func misconfigured(format string, args ...any) error {
	return outage(fmt.Errorf("%w: "+format, append([]any{waybill.ErrMisconfigured}, args...)...))
}
