package redisstreams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
)

// The server closes the connection of a command whose largest argument is above one of its limits. At its
// proto-max-bulk-len it answers first, but the answer is often lost: the driver is still writing. At its
// client-query-buffer-limit it does not answer. Both are at least 1 MiB. So a message above aloneBytes is a chunk of
// its own, and no other message shares its fate.

const (
	// aloneBytes is so far below 1 MiB that the names of fields cannot make up for it.
	aloneBytes = chunkBytes / 2
	// closedTimes is how often the server must close the connection at a size before the message is to blame.
	closedTimes = 3
)

// limits are the settings of the server that bound an argument.
var limits = []string{"proto-max-bulk-len", "client-query-buffer-limit"}

// errAsRefused is that of an argument above proto-max-bulk-len.
const errAsRefused = "Protocol error: invalid bulk length"

// tooLarge returns the error of the one message of c if err, by which it was not stored, comes from its size. Otherwise
// it returns nil, as if the server cannot be asked. batch is the one that c was made of.
func (t *Transport) tooLarge(ctx context.Context, batch []waybill.Envelope, c *chunk, err error) error {
	refusal := redis.HasErrorPrefix(err, errAsRefused)
	if len(c.entries) != 1 || !refusal && !isCut(err) {
		return nil
	}
	_, args := c.scriptCall(t.keys, t.opts.MaxLen)
	packed, _ := args[len(args)-1].([]byte)
	size := len(packed)
	if size <= aloneBytes {
		return nil
	}
	cause := t.limitBelow(ctx, size)
	switch {
	case cause != "":
	case refusal:
		cause = "the server's " + limits[0] + " is less"
	case t.closesAt(ctx, size):
		cause = "the server closes the connection at that size, by its proto-max-bulk-len, client-query-buffer-limit or maxmemory-clients"
	default:
		return nil
	}
	return refused(waybill.ReasonTooLarge, fmt.Errorf("topic %q: the message has %d bytes as the server gets it; %s: raise that, "+
		"or set Options.MaxMessageBytes below it (%w)", batch[c.entries[0].slot].Topic, size, cause, err))
}

// limitBelow names the setting of the server that is below size bytes, and its value. It returns "" if none is, or if
// the user may not read settings (CONFIG GET).
func (t *Transport) limitBelow(ctx context.Context, size int) string {
	below, _ := call(ctx, t, "limits", func(ctx context.Context) (string, error) {
		node, err := t.primary(ctx)
		if err != nil {
			return "", err
		}
		for _, name := range limits {
			got, err := node.ConfigGet(ctx, name).Result()
			if err != nil {
				return "", err
			}
			if limit, err := strconv.Atoi(got[name]); err == nil && limit < size+len("\r\n") {
				return fmt.Sprintf("the server's %s is %d", name, limit), nil
			}
		}
		return "", nil
	})
	return below
}

// closesAt reports whether the server closes the connection at each of closedTimes arguments of size bytes, and answers
// a question after each. The command is one that the server refuses for its number of arguments, and never executes.
func (t *Transport) closesAt(ctx context.Context, size int) bool {
	argument := make([]byte, size)
	for range closedTimes {
		_, err := call(ctx, t, "try", func(ctx context.Context) (any, error) {
			p := t.client.Pipeline()
			tried := p.Do(ctx, "GET", t.keys.version(), argument)
			t.follow(ctx, p)
			_, _ = p.Exec(ctx)
			return nil, tried.Err()
		})
		if !isCut(err) && !redis.HasErrorPrefix(err, errAsRefused) {
			return false
		}
		_, err = call(ctx, t, "try", func(ctx context.Context) (any, error) { return nil, t.client.Get(ctx, t.keys.version()).Err() })
		if err != nil && !errors.Is(err, redis.Nil) {
			return false
		}
	}
	return true
}

// follow adds a question to a pipeline whose first command may be too large. If the server answers that and closes
// the connection, the question gets no answer, and the driver gives the connection up. Otherwise the driver would use
// it for the next call.
func (t *Transport) follow(ctx context.Context, p redis.Pipeliner) { p.Get(ctx, t.keys.version()) }

// isCut reports whether the server, or the way to it, has closed the connection of a call.
func isCut(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
