package rabbitmq

import (
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

	amqp "github.com/rabbitmq/amqp091-go"
)

// maxAnswer bounds an answer of the management API.
const maxAnswer = 8 << 20

// management is a client of RabbitMQ's management API for one virtual host.
type management struct {
	base           string // without user
	user, password string
	vhost          string
	timeout        time.Duration // of one request
	tls            *tls.Config
}

var errNotFound = errors.New("not found")

const exampleManagementURL = "https://user:password@host:15671" //nolint:gosec // an example, no credentials

// managementProblem returns what is wrong with Options.ManagementURL, or "". It never holds any part of the URL.
func (o Options) managementProblem() string {
	if o.ManagementURL == "" {
		if o.ManagementTLS != nil {
			return "ManagementTLS: is set, but ManagementURL is not"
		}
		return ""
	}
	u, err := url.Parse(o.ManagementURL)
	switch {
	case err != nil || strings.ContainsAny(o.ManagementURL, " \t\r\n"):
		return "ManagementURL: cannot be read; escape special characters in user and password; it must look like " + exampleManagementURL
	case u.Scheme != "http" && u.Scheme != "https":
		return "ManagementURL: the scheme is not http or https; it must look like " + exampleManagementURL
	case u.Hostname() == "":
		return "ManagementURL: names no host; it must look like " + exampleManagementURL
	case u.RawQuery != "" || u.Fragment != "":
		return "ManagementURL: has a query or a fragment; it must look like " + exampleManagementURL
	case u.Scheme == "http" && o.ManagementTLS != nil:
		return "ManagementTLS: is set, but ManagementURL says http://, which is not encrypted; use https://"
	}
	return ""
}

// newManagement returns the client for valid options, or nil without ManagementURL. The user is that of the AMQP
// connection unless the URL names one.
func newManagement(o Options, user, password, vhost string) *management {
	if o.ManagementURL == "" {
		return nil
	}
	u, err := url.Parse(o.ManagementURL)
	if err != nil {
		return nil
	}
	m := &management{user: user, password: password, vhost: vhost, timeout: o.ConnectTimeout, tls: o.ManagementTLS}
	if m.tls == nil {
		m.tls = o.TLS
	}
	if u.User != nil {
		m.user = u.User.Username()
		m.password, _ = u.User.Password()
		u.User = nil
	}
	m.base = strings.TrimSuffix(u.String(), "/")
	return m
}

// managementOf returns the client for a connection to the AMQP URL raw.
func managementOf(o Options, raw string) *management {
	u, err := amqp.ParseURI(raw)
	if err != nil {
		return nil // refused elsewhere
	}
	return newManagement(o, u.Username, u.Password, u.Vhost)
}

// asking is a run of questions, which share connections.
type asking struct {
	*management
	client *http.Client
}

func (m *management) begin() *asking {
	return &asking{m, &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: m.tls.Clone(), MaxConnsPerHost: 1},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the password is for this host only
	}}
}

func (a *asking) end() { a.client.CloseIdleConnections() }

// get asks for /api/{kind}/{vhost}/{parts...} and decodes the answer into out. errNotFound says that there is no such
// object.
func (a *asking) get(ctx context.Context, out any, kind string, parts ...string) error {
	const op = "management"
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	var path strings.Builder
	path.WriteString(a.base + "/api/" + kind + "/" + url.PathEscape(a.vhost))
	for _, p := range parts {
		path.WriteString("/" + url.PathEscape(p))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, path.String(), nil)
	if err != nil {
		return outage(op, errors.New("the address cannot be read: check Options.ManagementURL"))
	}
	req.SetBasicAuth(a.user, a.password)
	resp, err := a.client.Do(req)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err
		}
		if tlsProblem(err) {
			return misconfigured(op, "TLS: %w: check Options.ManagementTLS (authorities, server name, client certificate)", err)
		}
		return outage(op, fmt.Errorf("%w: check host and port of Options.ManagementURL, and that the management plugin is enabled", err))
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return outage(op, err)
	case resp.StatusCode == http.StatusNotFound:
		return errNotFound
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		return misconfigured(op, "the user of Options.ManagementURL was refused (status %d): check its name and password, give it the tag \"management\" and any permission on virtual host %q",
			resp.StatusCode, a.vhost)
	case resp.StatusCode != http.StatusOK:
		return outage(op, fmt.Errorf("status %d: check that Options.ManagementURL leads to the management API", resp.StatusCode))
	case len(body) > maxAnswer:
		return outage(op, fmt.Errorf("an answer has more than %d bytes", maxAnswer))
	}
	if err := json.Unmarshal(body, out); err != nil {
		return outage(op, errors.New("the answer cannot be read: check that Options.ManagementURL leads to the management API"))
	}
	return nil
}
