package transform

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"

	"github.com/waybill-go/waybill"
)

const (
	defaultMinGzip = 1 << 10
	defaultMaxBody = 32 << 20
)

// Gzip compresses bodies; its coding is gzip (RFC 1952). Put it before Encrypt: an encrypted body cannot be compressed.
// Do not compress secrets together with text that a stranger can choose: the size tells of the secret.
type Gzip struct {
	// MinBytes is the least size of a body that is compressed; default 1 KiB. A body that does not become smaller
	// stays as it is.
	MinBytes int
	// Level is that of compress/gzip, 1 to 9; default 6.
	Level int
	// MaxBytes bounds bodies, before Do and after Undo; default 32 MiB. Do refuses a larger one as too large, and
	// Undo parks it as undecodable.
	MaxBytes int
}

// Coding returns gzip.
func (Gzip) Coding() string { return "gzip" }

// Validate reports bad fields.
func (g Gzip) Validate() error {
	p := sizes(g.MinBytes, g.MaxBytes)
	if g.Level < 0 || g.Level > gzip.BestCompression {
		p = append(p, fmt.Sprintf("Level: %d is not between 1 and 9, or 0 for the default", g.Level))
	}
	return waybill.Invalid("gzip", p...)
}

// Do compresses the body.
func (g Gzip) Do(_ context.Context, e *waybill.Envelope) ([]byte, bool, error) {
	if len(e.Body) < orDefault(g.MinBytes, defaultMinGzip) {
		return nil, false, nil
	}
	if err := fits("Gzip", len(e.Body), g.MaxBytes); err != nil {
		return nil, false, err
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, orDefault(g.Level, gzip.DefaultCompression))
	if err != nil {
		return nil, false, err
	}
	if _, err = w.Write(e.Body); err == nil {
		err = w.Close()
	}
	if err != nil || out.Len() >= len(e.Body) {
		return nil, false, err
	}
	return out.Bytes(), true, nil
}

// Undo decompresses the body.
func (g Gzip) Undo(_ context.Context, e *waybill.Envelope) ([]byte, error) {
	limit := orDefault(g.MaxBytes, defaultMaxBody)
	r, err := gzip.NewReader(bytes.NewReader(e.Body))
	if err != nil {
		return nil, Unreadable("the body is not compressed by gzip")
	}
	body, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	switch {
	case err != nil:
		return nil, Unreadable("the body is cut off, or was changed on its way")
	case len(body) > limit:
		return nil, Unreadable(fmt.Sprintf("the body has more than %d bytes; raise Gzip.MaxBytes and replay it", limit))
	}
	return body, nil
}

// sizes reports bounds of bodies that are negative.
func sizes(minBytes, maxBytes int) (problems []string) {
	if minBytes < 0 {
		problems = append(problems, fmt.Sprintf("MinBytes: %d is negative; leave it 0 for the default", minBytes))
	}
	if maxBytes < 0 {
		problems = append(problems, fmt.Sprintf("MaxBytes: %d is negative; leave it 0 for the default", maxBytes))
	}
	return problems
}

// fits returns an error if a body is larger than a consumer with the same step takes.
func fits(step string, size, limit int) error {
	if limit = orDefault(limit, defaultMaxBody); size <= limit {
		return nil
	}
	return &waybill.Error{
		Class: waybill.ClassPermanent, Reason: waybill.ReasonTooLarge,
		Err: fmt.Errorf("the body has %d bytes, more than %d; raise %s.MaxBytes, first at the consumers", size, limit, step),
	}
}

func orDefault(n, def int) int {
	if n == 0 {
		return def
	}
	return n
}
