package dashboard_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/internal/demo"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/tier"
)

// nightly leaves the tests of this package to the night. The tests of the dashboard check the text of the pages.
func nightly(tb testing.TB) {
	tb.Helper()
	tier.Nightly(tb, "clicks in a browser: 2 to 10 seconds each")
}

// chromium starts the browser that all tests share.
var chromium = sync.OnceValues(func() (context.Context, error) {
	name := os.Getenv("WAYBILL_TEST_CHROMIUM")
	if name == "" {
		name = "chromium"
	}
	file, err := exec.LookPath(name)
	if err != nil {
		return nil, fmt.Errorf("no browser: %w: run scripts/servers, or set WAYBILL_TEST_CHROMIUM", err)
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(file), chromedp.NoSandbox, chromedp.WindowSize(1280, 900), chromedp.Flag("headless", "new"))
	ctx, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, _ = chromedp.NewContext(ctx)
	stopBrowser = stop
	return ctx, chromedp.Run(ctx)
})

var stopBrowser = func() {}

func TestMain(m *testing.M) {
	code := m.Run()
	stopBrowser()
	os.Exit(code)
}

// shop runs the demo with some more messages, and serves its dashboard.
func shop(t *testing.T, change func(*dashboard.Options), more ...waybill.Message) (d *demo.Demo, url string) {
	t.Helper()
	d, err := demo.New(t.Context(), t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Stage(t.Context(), append(demo.Troubles(), more...)...); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	opts := d.Options()
	opts.Logger = slog.New(slog.DiscardHandler)
	if change != nil {
		change(&opts)
	}
	site, err := dashboard.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	server := httptest.NewServer(site)
	entrances.Store(server.URL, site.SignInURL(server.URL))
	t.Cleanup(func() {
		server.CloseClientConnections() // streams
		server.Close()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := d.Close(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	})
	// The troubles are there once one message is parked and two were given up.
	there := func() bool {
		counts, err := d.Store.Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		gone := int64(0)
		for _, c := range counts {
			if c.State == core.StateAbandoned {
				gone += c.N
			}
		}
		return gone >= 2 && len(d.Bus.Parked(demo.Queue)) > 0
	}
	patience.Until(t, "the troubles are there", there)
	return d, server.URL
}

// tab is a page of the browser.
type tab struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp keeps the page in its context
}

// newTab opens a page. A complaint of the browser fails the test.
func newTab(t *testing.T) *tab {
	t.Helper()
	browser, err := chromium()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := chromedp.NewContext(browser)
	t.Cleanup(stop)
	b := &tab{t, ctx}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *page.EventJavascriptDialogOpening:
			t.Errorf("a dialog has opened: %s", e.Message)
			go func() { _ = chromedp.Run(ctx, page.HandleJavaScriptDialog(true)) }()
		case *runtime.EventExceptionThrown:
			t.Errorf("a script has failed: %s", e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			refused := strings.Contains(e.Entry.Text, "401") // a wrong password is asked for
			if !refused && (e.Entry.Level == log.LevelError || e.Entry.Level == log.LevelWarning) {
				t.Errorf("the browser complains: %s %s", e.Entry.Text, e.Entry.URL)
			}
		}
	})
	// The page lives as long as the context of its first use.
	if err := chromedp.Run(ctx, log.Enable(), runtime.Enable()); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *tab) run(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.ctx, patience.For(patience.Limit))
	defer stop()
	if err := chromedp.Run(ctx, actions...); err != nil {
		b.t.Fatalf("%v; the page says: %s", err, b.text())
	}
}

// text returns what one can read.
func (b *tab) text() string {
	var s string
	ctx, stop := context.WithTimeout(b.ctx, patience.For(patience.Limit))
	defer stop()
	if err := chromedp.Run(ctx, chromedp.Evaluate(`document.title + "\n" + document.body.innerText`, &s)); err != nil {
		return err.Error()
	}
	return s
}

// holds evaluates an expression. An answer that is lost with its page counts as no.
func (b *tab) holds(expression string) (ok bool) {
	ctx, stop := context.WithTimeout(b.ctx, patience.For(2*time.Second))
	defer stop()
	return chromedp.Run(ctx, chromedp.Evaluate(expression, &ok)) == nil && ok
}

// until waits for an expression to be true, over loads of pages too.
func (b *tab) until(expression string) {
	b.t.Helper()
	defer func() {
		if b.t.Failed() {
			b.t.Logf("the page says: %s", b.text())
		}
	}()
	patience.Until(b.t, expression, func() bool { return b.holds(expression) })
}

// see waits until a page whose heading begins with head says all of texts.
func (b *tab) see(head string, texts ...string) {
	b.t.Helper()
	conditions := []string{`document.readyState === "complete"`, fmt.Sprintf(`document.querySelector("h1").textContent.startsWith(%s)`, strconv.Quote(head))}
	for _, s := range texts {
		conditions = append(conditions, fmt.Sprintf(`document.body.innerText.includes(%s)`, strconv.Quote(s)))
	}
	b.until(strings.Join(conditions, " && "))
}

// entrances has the address with the token of each site that no tab has opened yet. All tabs share their cookies.
var entrances sync.Map

func (b *tab) open(url string) {
	b.t.Helper()
	entrances.Range(func(site, signIn any) bool {
		if strings.HasPrefix(url, site.(string)) {
			entrances.Delete(site)
			b.run(chromedp.Navigate(signIn.(string)))
			b.until(`location.search === "" && document.readyState === "complete"`)
		}
		return true
	})
	b.run(chromedp.Navigate(url))
}

// click clicks what an XPath finds, once it is there and at its place: the styles move it when they arrive.
func (b *tab) click(path string) {
	b.t.Helper()
	find := fmt.Sprintf(`document.evaluate(%s, document, null, XPathResult.FIRST_ORDERED_NODE_TYPE, null).singleNodeValue`, strconv.Quote(path))
	b.until(`document.readyState === "complete" && ` + find + ` !== null`)
	var at []float64
	b.run(chromedp.Evaluate(`(() => { const e = `+find+`; e.scrollIntoView({ block: "center" }); const r = e.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2]; })()`, &at))
	b.run(chromedp.MouseClickXY(at[0], at[1]))
}

// tabTo presses Tab until what has the focus is called name, and then Enter.
func (b *tab) tabTo(name string) {
	b.t.Helper()
	var seen []string
	for range 80 {
		var focused string
		b.run(chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(`(document.activeElement.getAttribute("aria-label") || document.activeElement.innerText || document.activeElement.name || document.activeElement.tagName).trim()`, &focused))
		if focused == name {
			var outlined string
			b.run(chromedp.Evaluate(`getComputedStyle(document.activeElement).outlineStyle`, &outlined))
			if outlined == "none" {
				b.t.Errorf("one cannot see that %q has the focus", name)
			}
			b.run(chromedp.KeyEvent(kb.Enter))
			return
		}
		seen = append(seen, focused)
	}
	b.t.Fatalf("Tab does not come to %q, but to %q", name, seen)
}
