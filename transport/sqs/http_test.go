package sqs_test

import (
	"bytes"
	"io"
	"net/http"
)

// newHTTP returns HTTP connections of a test's own, which goleak does not see after it.
func newHTTP() *http.Transport { return &http.Transport{MaxIdleConnsPerHost: 64} }

func clientOf(t *http.Transport) *http.Client { return &http.Client{Transport: whole{t}} }

// whole sends each request with a body of its own. The SDK closes its own when the answer begins. A server on the same
// machine answers before net/http has seen the end of that body. Then net/http closes the connection in mid-answer.
type whole struct{ next http.RoundTripper }

func (w whole) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		req = req.Clone(req.Context())
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	return w.next.RoundTrip(req)
}
