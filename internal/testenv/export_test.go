package testenv

import (
	"context"
	"testing"
	"time"
)

// AnswerWithin sets answerTime for one test.
func AnswerWithin(t *testing.T, d time.Duration) {
	t.Helper()
	was := answerTime
	answerTime = d
	t.Cleanup(func() { answerTime = was })
}

// Reserved tells whether the port is some process's.
func Reserved(port int) bool {
	l, ok := reserve(port)
	if ok {
		_ = l.Close()
	}
	return !ok
}

// Unavailable is unavailable, for tests.
var Unavailable = unavailable

// Complete is (*RabbitMQCluster).complete, for tests.
var Complete = func(ctx context.Context, c *RabbitMQCluster) error { return c.complete(ctx) }
