package transform_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transform"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// folder keeps blobs in a directory. A bucket needs as many lines.
type folder string

func (f folder) Put(_ context.Context, name string, body []byte) error {
	tmp, err := os.CreateTemp(string(f), "new-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	if _, err = tmp.Write(body); err == nil {
		err = tmp.Sync()
	}
	if err := errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), filepath.Join(string(f), name))
}

func (f folder) Get(_ context.Context, name string) ([]byte, error) {
	body, err := os.ReadFile(filepath.Join(string(f), name))
	if errors.Is(err, os.ErrNotExist) {
		err = errors.Join(transform.ErrNoBlob, err)
	}
	return body, err
}

func Example() {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	dir, err := os.MkdirTemp("", "blobs-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()

	steps := []transform.Step{
		transform.Gzip{},
		transform.Encrypt{KeyID: "2026-11", Keys: transform.StaticKeys(map[string][]byte{"2026-11": secret})},
		transform.ClaimCheck{Blobs: folder(dir), MinBytes: 100 << 10},
	}

	bus, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "reports", Bindings: []string{"reports.*"}}}})
	if err != nil {
		panic(err)
	}
	publisher, err := transform.Publisher(bus, steps...) // give it to relay.New, or to a relay.Route
	if err != nil {
		panic(err)
	}
	sent := waybill.Envelope{ID: "r-1", Source: "/shop", Topic: "reports.ready", Body: []byte(strings.Repeat("all is well. ", 1000))}
	if err := publisher.Publish(context.Background(), []waybill.Envelope{sent}).FirstErr(); err != nil {
		panic(err)
	}

	handler, err := transform.Handler(waybill.Handler{ // or one of the inbox
		Name: "reports.ready",
		Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			fmt.Println("handled:", len(d.Envelope.Body), "bytes")
			return waybill.HandlerProcessed, nil
		},
	}, steps...)
	if err != nil {
		panic(err)
	}
	// the consumer does this
	receiver, err := bus.Subscribe(context.Background(), core.Subscription{Queue: "reports"})
	if err != nil {
		panic(err)
	}
	deliveries, err := receiver.Receive(context.Background(), 1)
	if err != nil {
		panic(err)
	}
	d := deliveries[0]
	fmt.Println("in the queue:", d.Envelope.Headers[transform.Header], "in less than 200 bytes:", len(d.Envelope.Body) < 200)
	if _, err := handler.Handle(context.Background(), d); err != nil {
		panic(err)
	}
	// Output:
	// in the queue: gzip, waybill-aes256gcm in less than 200 bytes: true
	// handled: 13000 bytes
}

// A service signs with a private key of its own. The others verify with its public one, which signs nothing.
func ExampleSign() {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err)
	}
	sign := transform.Sign{KeyID: "orders-1", Keys: transform.StaticSigningKeys(map[string]transform.SigningKey{
		"orders-1": {Private: private, Sources: []string{"/orders"}}, // a consumer has Public instead
	})}
	verify := transform.Sign{Keys: transform.StaticSigningKeys(map[string]transform.SigningKey{
		"orders-1": {Public: public, Sources: []string{"/orders"}},
	})}
	message := waybill.Envelope{ID: "1", Source: "/orders", Topic: "orders.placed", Body: []byte("4711")}
	message.Body, _, err = sign.Do(context.Background(), &message)
	if err != nil {
		panic(err)
	}
	body, err := verify.Undo(context.Background(), &message)
	fmt.Println(string(body), err)
	message.Topic = "orders.cancelled"
	_, err = verify.Undo(context.Background(), &message)
	fmt.Println(err != nil)
	// Output:
	// 4711 <nil>
	// true
}
