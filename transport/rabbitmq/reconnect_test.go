package rabbitmq_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// RM-10: hundreds of lost connections leave nothing behind: no connection and no channel on the broker, no
// goroutine, no memory. It has the process to itself. WAYBILL_RECONNECTS is how many; `make nightly` has 300.
func TestManyReconnects(t *testing.T) {
	tier.Nightly(t, "hundreds of reconnects, while no other test runs: 10 s")
	mq := testenv.RabbitMQ(t)
	proxy := testenv.NewProxy(t, hostOf(t, mq.URL))
	secret := rabbitmq.Credentials{User: mq.User, Password: mq.Password, Expires: time.Now().Add(time.Hour)}
	bus := dial(t, anonymous(proxy.URL(mq.URL)), rabbitmq.Options{
		ReconnectMax: 10 * time.Millisecond, PublishConnections: 1,
		Connection: rabbitmq.ConnectionOptions{Credentials: func(context.Context) (rabbitmq.Credentials, error) { return secret, nil }},
	})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}})
	cycle := func(id string) {
		t.Helper()
		e := envelope(id, "a")
		for {
			err := bus.Publish(t.Context(), []waybill.Envelope{e}).FirstErr()
			if err == nil {
				break
			}
			if waybill.ClassOf(err) != waybill.ClassOutage || t.Context().Err() != nil {
				t.Fatal(err)
			}
		}
		for seen := false; !seen; {
			d := receive(t, r, 1)[0]
			_ = r.Settle(t.Context(), []core.Ack{core.AckDone(d)}) // may be stale
			seen = d.Envelope.ID == id
		}
	}
	const warmUp = 20
	reconnects := 300
	if s := os.Getenv("WAYBILL_RECONNECTS"); s != "" {
		var err error
		if reconnects, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for i := range warmUp {
		proxy.Cut()
		cycle(fmt.Sprintf("w%d", i))
	}
	count := func(kind string) int {
		var list []struct{}
		if err := mq.Do(t.Context(), http.MethodGet, "/api/vhosts/"+url.PathEscape(mq.VHost)+"/"+kind, nil, &list); err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	twoOfEach := func() {
		t.Helper()
		// the broker's lists lag behind by some seconds
		patience.Until(t, "two connections and two channels", func() bool { return count("connections") == 2 && count("channels") == 2 })
	}
	twoOfEach()
	goroutines, heap := runtime.NumGoroutine(), liveHeap()
	for i := range reconnects {
		proxy.Cut()
		cycle(fmt.Sprintf("m%d", i))
	}
	twoOfEach()
	patience.Until(t, fmt.Sprintf("%d goroutines again", goroutines), func() bool { return runtime.NumGoroutine() <= goroutines })
	const perReconnect = 2 << 10 // bytes; a connection that is kept has many times that
	patience.Until(t, "the heap has not grown", func() bool { return liveHeap() <= heap+uint64(perReconnect*reconnects) })
	t.Logf("%d reconnects; goroutines %d, then %d; heap %d KiB, then %d KiB", reconnects, goroutines, runtime.NumGoroutine(), heap>>10, liveHeap()>>10)
}

// liveHeap returns the bytes that are in use.
func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
