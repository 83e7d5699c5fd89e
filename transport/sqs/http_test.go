package sqs_test

import "net/http"

// newHTTP returns HTTP connections of a test's own, which goleak does not see after it.
func newHTTP() *http.Transport { return &http.Transport{MaxIdleConnsPerHost: 64} }

func clientOf(t *http.Transport) *http.Client { return &http.Client{Transport: t} }
