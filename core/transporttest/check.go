package transporttest

import (
	"context"
	"embed"

	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/internal/patience"
)

// side is what a check tests: the publisher, the subscriber, or both of them.
type side uint8

const (
	ofPublisher side = 1 << iota
	ofSubscriber
	ofEither = ofPublisher | ofSubscriber
)

// named is a check as it is written: it gives up in the way of package suitetest, which run turns into an error. Its
// promise is the first paragraph of the comment of its function.
type named struct {
	name string
	of   side
	fn   func(k *kit)
}

func (c named) run(ctx context.Context, h Harness) error {
	ctx, cancel := context.WithTimeout(ctx, patience.For(Timeout))
	defer cancel()
	return source.Do(ctx, c.name, func() {
		k := newKit(ctx, h)
		defer k.close()
		k.needs(c.of&ofPublisher != 0 && h.Publisher != nil || c.of&ofSubscriber != 0 && h.Subscriber != nil, "under test, only the other direction is")
		c.fn(k)
	})
}

//go:embed *.go
var files embed.FS

var source = suitetest.Source{Files: files, NotDeclared: ErrNotDeclared}

func (k *kit) fail(format string, a ...any) { suitetest.Failf(format, a...) }

// failIf is fail if the condition holds.
func (k *kit) failIf(is bool, format string, a ...any) {
	if is {
		suitetest.Failf(format, a...)
	}
}
