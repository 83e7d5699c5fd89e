package testenv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

var errRabbitURL = errors.New("waybill/testenv: rabbitmq: WAYBILL_TEST_RABBITMQ must be a URL such as amqp://guest:guest@127.0.0.1:5672/")

// Management is a client of RabbitMQ's management API.
type Management struct {
	// ManagementURL is the address without a user, such as http://127.0.0.1:15672.
	ManagementURL string
	// User and Password are those of an administrator. They also work for AMQP.
	User, Password string
}

// client keeps no connections, so that no goroutine outlives a request.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// Do sends a request to the management API. The path starts with /api/; parts such as a virtual host must be escaped
// with url.PathEscape. in, if not nil, is sent as JSON; the answer is decoded into out, if not nil. A status of 400 and
// above is an error, 404 too.
func (m Management) Do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("waybill/testenv: rabbitmq: %s %s: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, m.ManagementURL+path, body)
	if err != nil {
		return fmt.Errorf("waybill/testenv: rabbitmq: %s %s: %w", method, path, err)
	}
	req.SetBasicAuth(m.User, m.Password)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("waybill/testenv: rabbitmq: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("waybill/testenv: rabbitmq: %s %s: %w", method, path, err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return &StatusError{Method: method, Path: path, Code: resp.StatusCode, Body: string(answer)}
	}
	if out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			return fmt.Errorf("waybill/testenv: rabbitmq: %s %s: %w", method, path, err)
		}
	}
	return nil
}

// StatusError is an answer of the management API with a status of 400 or above.
type StatusError struct {
	Method, Path string
	Code         int
	Body         string
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("waybill/testenv: rabbitmq: %s %s: status %d: %s", e.Method, e.Path, e.Code, e.Body)
}

// CreateVHost makes a virtual host and gives the administrator all permissions on it.
func (m Management) CreateVHost(ctx context.Context, vhost string) error {
	if err := m.Do(ctx, http.MethodPut, "/api/vhosts/"+url.PathEscape(vhost), struct{}{}, nil); err != nil {
		return err
	}
	return m.SetPermissions(ctx, vhost, m.User, ".*", ".*", ".*")
}

// DeleteVHost deletes a virtual host with its queues and connections. It is no error if there is none.
func (m Management) DeleteVHost(ctx context.Context, vhost string) error {
	return ignoreNotFound(m.Do(ctx, http.MethodDelete, "/api/vhosts/"+url.PathEscape(vhost), nil, nil))
}

// CreateUser makes a user without any permission. Users are known to the whole broker: give each a random name and
// delete it.
func (m Management) CreateUser(ctx context.Context, user, password string) error {
	return m.Do(ctx, http.MethodPut, "/api/users/"+url.PathEscape(user), map[string]string{"password": password, "tags": ""}, nil)
}

// DeleteUser deletes a user. It is no error if there is none.
func (m Management) DeleteUser(ctx context.Context, user string) error {
	return ignoreNotFound(m.Do(ctx, http.MethodDelete, "/api/users/"+url.PathEscape(user), nil, nil))
}

// SetPermissions sets the regular expressions of the objects that a user may configure, write and read in a virtual
// host. "" permits nothing.
func (m Management) SetPermissions(ctx context.Context, vhost, user, configure, write, read string) error {
	return m.Do(ctx, http.MethodPut, "/api/permissions/"+url.PathEscape(vhost)+"/"+url.PathEscape(user),
		map[string]string{"configure": configure, "write": write, "read": read}, nil)
}

// SetPolicy sets a policy for the objects that match the pattern. applyTo is queues, exchanges or all.
func (m Management) SetPolicy(ctx context.Context, vhost, name, pattern, applyTo string, definition map[string]any) error {
	return m.Do(ctx, http.MethodPut, "/api/policies/"+url.PathEscape(vhost)+"/"+url.PathEscape(name),
		map[string]any{"pattern": pattern, "apply-to": applyTo, "definition": definition}, nil)
}

// DeletePolicy deletes a policy. It is no error if there is none.
func (m Management) DeletePolicy(ctx context.Context, vhost, name string) error {
	return ignoreNotFound(m.Do(ctx, http.MethodDelete, "/api/policies/"+url.PathEscape(vhost)+"/"+url.PathEscape(name), nil, nil))
}

// Connections returns the names of the open connections of a virtual host. The broker lists a new one within about a
// second.
func (m Management) Connections(ctx context.Context, vhost string) ([]string, error) {
	var list []struct {
		Name string `json:"name"`
	}
	if err := m.Do(ctx, http.MethodGet, "/api/vhosts/"+url.PathEscape(vhost)+"/connections", nil, &list); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(list))
	for _, c := range list {
		names = append(names, c.Name)
	}
	return names, nil
}

// CloseConnections closes the connections of a virtual host as an operator does (CONNECTION_FORCED). It waits up to ten
// seconds until the broker lists one, and returns how many it closed. One that was opened within the last second may be
// missed when others are listed already.
func (m Management) CloseConnections(ctx context.Context, vhost string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	closed := 0
	err := poll(ctx, nil, func(ctx context.Context) error {
		names, err := m.Connections(ctx, vhost)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := ignoreNotFound(m.Do(ctx, http.MethodDelete, "/api/connections/"+url.PathEscape(name), nil, nil)); err != nil {
				return err
			}
			closed++
		}
		if closed == 0 {
			return fmt.Errorf("waybill/testenv: rabbitmq: no open connection in virtual host %s", vhost)
		}
		return nil
	})
	return closed, err
}

func ignoreNotFound(err error) error {
	var status *StatusError
	if errors.As(err, &status) && status.Code == http.StatusNotFound {
		return nil
	}
	return err
}

// managementFor returns the client for a broker that an environment variable names.
func managementFor(amqpURL, managementURL string) (Management, error) {
	u, err := url.Parse(amqpURL)
	if err != nil || u.Host == "" {
		return Management{}, errRabbitURL
	}
	m := Management{ManagementURL: "http://" + net.JoinHostPort(u.Hostname(), "15672"), User: "guest", Password: "guest"}
	take := func(user *url.Userinfo) {
		if user != nil {
			m.User = user.Username()
			m.Password, _ = user.Password()
		}
	}
	take(u.User)
	if managementURL == "" {
		return m, nil
	}
	mu, err := url.Parse(managementURL)
	if err != nil || mu.Host == "" {
		return Management{}, errors.New("waybill/testenv: rabbitmq: WAYBILL_TEST_RABBITMQ_MANAGEMENT must be a URL such as http://guest:guest@127.0.0.1:15672")
	}
	take(mu.User)
	m.ManagementURL = mu.Scheme + "://" + mu.Host
	return m, nil
}
